"""The page and the command of the dry-run report: three numbers in words, and the faults behind
them."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from kintsugi.cli import lists
from runbooks.models import Run, RunState, SeenAct
from runbooks.shadow import episode_facts
from runbooks.shadow.episode_facts import EpisodeFacts, FaultLook
from tests.builders import a_node, an_incident
from tests.kintsugi.pages import RUNBOOK, a_run
from tests.kintsugi.people import People, people

__all__ = ["people"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def run(db: None) -> Run:
    """Of a node that was looked at twice and was well."""
    a_node()
    run = a_run(an_incident(), RunState.SHADOWED)
    now = timezone.now()
    run.started_at = now - timedelta(days=1)
    seen = {"refuted_at": run.started_at + timedelta(minutes=5), "allowed_at": run.started_at}
    episode = EpisodeFacts(has_looked=True, look=FaultLook.DENIED, **seen)
    episode_facts.store(run.facts, episode)
    run.save()
    return run


def test_the_numbers_and_the_fault_behind_them_stand_there(people: People, run: Run) -> None:
    page = people.viewer.get("/shadow/").content.decode()
    assert "Drains of nodes that were well: 1 of 1 (95 % interval 2.5% to 100.0%)." in page
    assert "Looked for twice on the node, and not there" in page
    assert "Kintsugi would have drained it" in page
    assert f"run #{run.pk}" in page


def test_what_people_took_out_stands_there_once(people: People, run: Run) -> None:
    for number in range(41):
        node = a_node(f"gn{100 + number}")
        SeenAct.objects.create(node=node, kind="drain", at=timezone.now(), by="bob", text="row 3")
    page = people.viewer.get("/shadow/").content.decode()
    assert "<strong>41 nodes</strong> by bob: row 3" in page


@pytest.mark.parametrize("query", ["?days=x&view=y&page=z", "?view=broken", "?view=unknown"])
def test_other_views_and_words_that_are_none_show_a_page(
    people: People, run: Run, query: str
) -> None:
    page = people.viewer.get(f"/shadow/{query}").content.decode()
    assert "The last 30 days" in page


def test_what_began_before_the_period_does_not_count(people: People, run: Run) -> None:
    Run.objects.update(started_at=timezone.now() - timedelta(days=8))
    assert "Nothing yet" in people.viewer.get("/shadow/?days=7").content.decode()


def test_the_command_gives_the_same_as_one_object(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    lists.report_dry_runs(RUNBOOK, days=30, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["runbooks"][RUNBOOK]["well"]["count"] == 1
    assert [row["verdict"] for row in found["episodes"]] == ["well"]
    lists.report_dry_runs(RUNBOOK, days=30)
    assert "Drains of nodes that were well: 1 of 1" in capsys.readouterr().out
