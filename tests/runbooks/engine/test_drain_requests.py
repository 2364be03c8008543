"""A check of the site asks for a node to be drained: the guards decide as for any fault, and the
node comes back when whoever asked says so and it is verified."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.faults import EventKind
from detectors.provenance import Forger, Provenance, Transport
from incidents import services as incidents
from incidents.models import Fault, Incident
from incidents.people.drain_requests import DrainRequest, DrainRequestRefused, make_event
from incidents.reserve import decommissions
from runbooks.models import Mode, Run, RunState
from tests.runbooks.site import Site
from tests.security.test_forged_text import NODE, a_site, count_acts, is_drained, turn

pytestmark = pytest.mark.django_db
ADA = Provenance("nhc", Transport.PERSON, "ada", forger=Forger.NOBODY)
WHY = "scratch is read-only"


def an_armed_site() -> Site:
    site = a_site()
    site.set_mode(Mode.ARMED, "drain_on_request")
    return site


def ask(site: Site, *, check: str = "nhc", because: str = WHY, is_end: bool = False) -> None:
    request = DrainRequest(NODE, check, because, is_end)
    incidents.ingest([make_event(request, ADA, now=site.now)], now=site.now)


def get_run() -> Run:
    return Run.objects.get(runbook="drain_on_request")


def test_a_node_is_drained_on_request_and_given_back_when_it_is_withdrawn() -> None:
    site = an_armed_site()
    ask(site)
    turn(site, 3, timedelta(seconds=20))
    assert is_drained(site)
    turn(site, 5, timedelta(hours=1))
    assert is_drained(site), "the request stands"
    ask(site, because="", is_end=True)
    turn(site, 30, timedelta(minutes=1))
    assert get_run().state == RunState.SUCCEEDED
    assert not is_drained(site)
    assert count_acts(site) == (0, 0, 0, 0)


def test_a_node_for_which_two_checks_asked_waits_for_both() -> None:
    site = an_armed_site()
    ask(site)
    ask(site, check="disk-check", because="sda has pending sectors")
    turn(site, 3, timedelta(seconds=20))
    assert (Incident.objects.count(), Fault.objects.active().count()) == (1, 2)
    ask(site, is_end=True)
    turn(site, 20, timedelta(minutes=1))
    assert is_drained(site)
    ask(site, check="disk-check", is_end=True)
    turn(site, 30, timedelta(minutes=1))
    assert not is_drained(site)


def test_a_node_that_does_not_verify_stays_out() -> None:
    site = an_armed_site()
    ask(site)
    turn(site, 3, timedelta(seconds=20))
    site.nodes.inject("gpu_lost", f"{NODE}/gpu/0")
    ask(site, is_end=True)
    turn(site, 30, timedelta(minutes=1))
    assert is_drained(site)
    assert get_run().state != RunState.SUCCEEDED


def test_nothing_is_drained_in_shadow() -> None:
    site = a_site()
    site.set_mode(Mode.SHADOW, "drain_on_request")
    ask(site)
    turn(site, 5, timedelta(minutes=1))
    assert not is_drained(site)
    assert get_run().mode == Mode.SHADOW


def test_a_persons_drain_is_neither_taken_over_nor_undone() -> None:
    site = an_armed_site()
    site.slurm.drain(NODE, "hands inside, do not touch")
    ask(site)
    turn(site, 3, timedelta(seconds=20))
    ask(site, is_end=True)
    turn(site, 30, timedelta(minutes=1))
    assert site.slurm.read_nodes((NODE,))[NODE].reason == "hands inside, do not touch"
    assert is_drained(site)


def test_a_node_that_a_person_resumes_while_the_request_stands_is_theirs() -> None:
    site = an_armed_site()
    ask(site)
    turn(site, 3, timedelta(seconds=20))
    site.slurm.human_resume(NODE)
    turn(site, 3, timedelta(minutes=1))
    assert get_run().state == RunState.ABORTED
    assert "resumed" in get_run().incident.timeline.latest("pk").text
    turn(site, 30, timedelta(minutes=1))
    assert not is_drained(site)


def test_the_request_says_who_asked_and_why() -> None:
    site = an_armed_site()
    ask(site)
    fault = Fault.objects.get()
    assert (fault.fault_type, fault.qualifier) == ("site.unfit", "nhc")
    event = make_event(DrainRequest(NODE, "nhc", f" {WHY}\n"), ADA, now=site.now)
    assert (event.excerpt, event.event) == (f"nhc: {WHY}", EventKind.RAISED)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (DrainRequest("gn999", "nhc", WHY), "no node of the inventory"),
        (DrainRequest(NODE, "", WHY), "name of the check"),
        (DrainRequest(NODE, "nhc; reboot", WHY), "name of the check"),
        (DrainRequest(NODE, "nhc", "  "), "in a sentence why"),
        (DrainRequest(NODE, "nhc", "x" * 501), "500 at most"),
        (DrainRequest(NODE, "nhc", "", is_end=True), "No request stands there"),
    ],
)
def test_a_request_that_cannot_be_taken_is_refused_with_the_reason(
    request_: DrainRequest, problem: str
) -> None:
    site = an_armed_site()
    with pytest.raises(DrainRequestRefused, match=problem):
        make_event(request_, ADA, now=site.now)


def test_a_check_withdraws_its_own_request_alone() -> None:
    site = an_armed_site()
    ask(site)
    with pytest.raises(DrainRequestRefused, match="Requests of nhc stand"):
        make_event(DrainRequest(NODE, "disk-check", "", is_end=True), ADA, now=site.now)


def test_a_node_that_leaves_for_good_is_asked_for_in_vain() -> None:
    site = an_armed_site()
    decommissions.begin(NODE, actor="ada", why="sold", now=site.now)
    with pytest.raises(DrainRequestRefused, match="Nothing is done on it any more"):
        make_event(DrainRequest(NODE, "nhc", WHY), ADA, now=site.now)


def test_a_node_that_was_tested_and_found_ill_is_not_given_back_by_a_run_that_is_withdrawn() -> (
    None
):
    site = a_site()
    site.set_mode(Mode.ARMED, "isolate_node")
    site.nodes.inject("gpu_dead", f"{NODE}/gpu/0")
    node = site.nodes.nodes[NODE]
    node.kernel("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]", at=site.now)
    site.raise_fault(NODE, fault_type="node.lockup", resource=f"node/{NODE}")
    turn(site, 60, timedelta(minutes=1))
    tested, later = Run.objects.order_by("pk")
    assert (tested.state, later.state) == (RunState.NOT_CURED, RunState.WITHDRAWN)
    assert f"run {tested.pk} tested it and found it ill" in later.outcome
    assert is_drained(site)
