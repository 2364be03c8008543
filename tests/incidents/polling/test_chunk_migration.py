"""A database of before the chunks: what its polls remember goes on."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.state import StateApps

from detectors.detector import Sample
from detectors.evaluation.judge import Memory
from incidents.models import Poll, PollChunk
from incidents.polling import polling
from incidents.polling.polling import PollPace
from tests.builders import NOW

MINUTE = timedelta(minutes=1)
BEFORE = "0012_inbox_attempts"
MEMORY = Memory({("node/gn001", "told.errors"): Sample(100, NOW)}, looked_at=NOW)


def migrate_back(name: str) -> StateApps:
    """The models as they were after that migration."""
    executor = MigrationExecutor(connection)
    executor.migrate([("incidents", name)])
    return executor.loader.project_state([("incidents", name)]).apps


def migrate_all() -> None:
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())


@pytest.mark.django_db(transaction=True)
def test_memories_of_before_go_on_and_the_silent_stay_out_of_step() -> None:
    polls = migrate_back(BEFORE).get_model("incidents", "Poll").objects
    kept = polling.pack(MEMORY, None)
    for name, failures in (("gn001", 0), ("gn002", 4)):
        polls.create(
            detector="gpu",
            kind="node",
            target=name,
            failures=failures,
            memory=kept,
            polled_at=NOW,
            next_poll_at=NOW + MINUTE,
        )
    migrate_all()
    try:
        pace = PollPace("gpu", "node", MINUTE, frozenset(("gn001", "gn002")))
        polling.plan([pace], NOW)
        assert PollChunk.objects.get().names == ["gn001", "gn002"]
        in_step = Poll.objects.filter(next_poll_at=None)
        assert [row.target for row in in_step] == ["gn001"]
        (chunk, *_) = polling.claim([pace], NOW + MINUTE, tick=timedelta(seconds=5))
        held = polling.begin(chunk, NOW + MINUTE)
        (state,) = polling.get_poll_states(held, held.targets).values()
        assert (state.memory, state.polled_at) == (MEMORY, NOW)
    finally:
        Poll.objects.all().delete()
        PollChunk.objects.all().delete()
