"""Nodes that are being taken away for good: nothing is started on them, and what runs there
stops."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.models import Decommission, Incident, Node
from incidents.reserve import decommissions, spares
from incidents.vocabulary.changes import Refused as NotNow
from runbooks import services
from runbooks.models import Run, RunState
from runbooks.outcomes import Controlled, ControlRefused
from runbooks.people import decommission, manual_runs
from runbooks.people.simulate import simulate
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
SAID = "gn001 is being decommissioned (alice, 2025-01-15 03:00 UTC: sold)."


def leaves(site: Site, node: str = "gn001") -> str:
    outcome = decommission.begin(node, actor="alice", why="sold", now=site.now)
    assert isinstance(outcome, Controlled)
    return outcome.text


def test_nothing_is_started_on_a_node_that_is_being_taken_away() -> None:
    site = Site(nodes=20)
    assert leaves(site) == f"{SAID} Nothing is started on it from now on."
    incident = site.lose_gpu()
    assert site.start() == []
    refused = manual_runs.start_manual_run(
        "drain_and_ask", incident.pk, actor="bob", note="", now=site.now
    )
    assert isinstance(refused, ControlRefused)
    assert refused.reason.startswith(f"{SAID} No run is started on it")
    leave = services.may_stop_job("gn001", ["gpu.xid.79"], now=site.now, world=site.world)
    assert (leave.is_granted, leave.reason) == (False, SAID.removesuffix("."))
    assert not Run.objects.exists()
    assert site.slurm.journal == []


def test_simulation_says_who_takes_the_node_away() -> None:
    site = Site(nodes=20)
    leaves(site)
    told = simulate(
        "drain_reboot_verify", "gn001", fault_type="gpu.xid.79", now=site.now, world=site.world
    )
    assert [(one.guard, one.reason) for one in told.steps[0].guards if not one.allows] == [
        ("decommissioned", SAID.removesuffix("."))
    ]


@pytest.mark.parametrize("step", range(5))
def test_run_stops_where_it_is_and_never_puts_the_node_back(step: int) -> None:
    site = Site(nodes=20)
    run = site.begin(site.lose_gpu())
    site.play(run, until=lambda run: run.step == step)
    before = list(site.slurm.journal)
    assert leaves(site).endswith(f"Run {run.pk} is stopped.")
    site.now += timedelta(hours=1)
    site.start()
    site.play(run)
    assert site.slurm.journal == before
    assert (run.state, Run.objects.count()) == (RunState.ABORTED, 1)
    incident = Incident.objects.get()
    assert SAID in " ".join(site.story(incident))
    assert (
        incident.needs_human
        == "gn001 is being decommissioned: resolve its incident once it is gone."
    )


def test_run_that_began_in_the_same_moment_is_held_before_its_first_act() -> None:
    site = Site(nodes=20)
    incident = site.lose_gpu()
    run = site.begin(incident)
    decommissions.begin("gn001", actor="alice", why="sold", now=site.now)
    site.advance(run)
    assert site.slurm.journal == []
    assert any(
        text.startswith(SAID.removesuffix(".")) and "Asked again at" in text
        for text in site.story(incident)
    )


def test_node_that_stays_after_all_is_repaired_again() -> None:
    site = Site(nodes=20)
    leaves(site)
    incident = site.lose_gpu()
    outcome = decommission.end("gn001", actor="bob", why="the buyer went away", now=site.now)
    assert isinstance(outcome, Controlled)
    assert outcome.text == "gn001 is no longer being decommissioned, by bob: the buyer went away"
    assert site.start() == [site.run_of(incident).pk]
    row = Decommission.objects.get()
    assert (row.set_by, row.ended_by, row.ended_why) == ("alice", "bob", "the buyer went away")


def test_what_leaves_is_no_spare() -> None:
    site = Site(nodes=4)
    spares.add("gn002", partitions=["gpu"], is_reserved=False, now=site.now)
    leaves(site, "gn002")
    assert spares.list_ready(["gpu"]) == []
    leaves(site)
    assert spares.add("gn001", partitions=["gpu"], is_reserved=False, now=site.now) == NotNow(SAID)


@pytest.mark.parametrize(
    ("node", "why", "reason"),
    [
        ("gn999", "sold", "The inventory knows no node gn999."),
        ("gn002", "sold", "The inventory knows no node gn002."),
        ("gn003", " ", "Say why: whoever finds it idle will ask."),
        ("gn001", "sold", SAID),
    ],
)
def test_what_cannot_be_taken_away_is_refused_with_why(node: str, why: str, reason: str) -> None:
    site = Site(nodes=3)
    Node.objects.filter(name="gn002").update(is_provisional=True)
    leaves(site)
    assert decommission.begin(node, actor="bob", why=why, now=site.now) == ControlRefused(reason)
    assert Decommission.objects.count() == 1
    assert isinstance(decommission.end("gn003", actor="bob", why="x", now=site.now), ControlRefused)
    assert isinstance(decommission.end("gn001", actor="bob", why="", now=site.now), ControlRefused)
