"""Runs that a person asks for."""

from __future__ import annotations

import pytest

from incidents import services as incidents
from incidents.models import Node
from incidents.vocabulary.lifecycle import Trigger
from runbooks.models import Mode, Run, RunState
from runbooks.outcomes import Controlled, ControlRefused
from runbooks.people import manual_runs
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
NAME = "drain_and_ask"


def test_run_that_a_person_asks_for_begins_at_once_and_says_who() -> None:
    site = Site(nodes=20)
    incident = site.lose_gpu()
    outcome = manual_runs.start_manual_run(
        NAME, incident.pk, actor="alice", note="I will look.", now=site.now
    )
    assert isinstance(outcome, Controlled)
    run = site.run_of(incident)
    assert (run.approved_by, run.state, run.facts["why"]) == (
        "alice",
        RunState.RUNNING,
        "alice asked for it",
    )
    assert (
        site.story(incident)[-1]
        == f"Run {run.pk}, drain and ask, on gn001 is started by alice. I will look."
    )
    site.play(run)
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_drained


def test_run_that_a_person_asks_for_touches_nothing_in_shadow() -> None:
    site = Site(nodes=20, mode=Mode.SHADOW)
    incident = site.lose_gpu()
    manual_runs.start_manual_run(NAME, incident.pk, actor="alice", note="", now=site.now)
    assert site.advance(site.run_of(incident)).state == RunState.SHADOWED
    assert site.slurm.journal == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("off", "drain_and_ask is off"),
        ("busy", "A run is under way there"),
        ("closed", "is resolved: a run is started for an open one"),
        ("vendor", "is awaiting vendor: a run is started for an open one"),
        ("provisional", "never acted upon"),
        ("no incident", "There is no incident 999"),
        ("no runbook", "There is no runbook pray"),
    ],
)
def test_run_is_refused_with_why(change: str, why: str) -> None:
    site = Site(nodes=20)
    incident = site.lose_gpu()
    triggers = {"closed": Trigger.RESOLVE, "vendor": Trigger.HANDED_TO_VENDOR}
    if change in triggers:
        incidents.act(incident.pk, triggers[change], actor="bob", now=site.now)
    if change == "off":
        site.set_mode(Mode.OFF, NAME)
    if change == "busy":
        site.start()
    if change == "provisional":
        Node.objects.update(is_provisional=True)
    before = Run.objects.count()
    number = 999 if change == "no incident" else incident.pk
    outcome = manual_runs.start_manual_run(
        "pray" if change == "no runbook" else NAME, number, actor="alice", note="", now=site.now
    )
    assert isinstance(outcome, ControlRefused)
    assert why in outcome.reason
    assert Run.objects.count() == before
