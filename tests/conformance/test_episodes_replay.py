"""Real excerpts of one episode each: a good engineer's number of incidents is ours."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from kintsugi.replay import database, log_file, logs

NOW = datetime(2025, 6, 1, tzinfo=UTC)
EPISODES = Path(__file__).resolve().parents[3] / "shared" / "corpus" / "episodes"


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in EPISODES.glob("*.json")) or ["none at hand"]
)
def test_an_episode_makes_the_engineers_number_of_incidents_when_it_is_replayed(
    name: str, shared: Path, django_db_blocker: DjangoDbBlocker
) -> None:
    facts = json.loads((shared / "corpus" / "episodes" / f"{name}.json").read_text())
    lines = log_file.read([shared / "corpus" / "episodes" / facts["log"]], now=NOW, year=None)
    with django_db_blocker.unblock(), database.use_temporary_database():
        incidents = logs.play(lines).incidents
    told = [(row["fault_type"], row["root_resource"]) for row in incidents]
    assert len(incidents) == facts["expected_incidents"], told
