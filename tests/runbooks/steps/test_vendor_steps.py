"""From the opened case to the node back in service, and what people, dead parts and killed workers
do in between."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.faults import Recovery
from incidents import services
from incidents.inventory import part_history
from incidents.inventory.part_history import Sighting
from incidents.models import Incident, VendorCase
from incidents.vendor import cases, deadlines
from incidents.vocabulary.lifecycle import State, Trigger
from incidents.vocabulary.part_kinds import Part
from incidents.vocabulary.vendor_states import CaseState, Move
from runbooks.engine import turn
from runbooks.library import library
from runbooks.models import Run, RunState
from runbooks.services import get_due_runs
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)
STEPS = ("drain", "wait_for_jobs", "open_vendor_case", "await_part", "verify", "resume")


class Killed(BaseException):
    """The worker died."""


def a_run(site: Site, steps: tuple[str, ...] = STEPS) -> Run:
    """A run of these steps for gn001's dead GPU."""
    incident = site.raise_fault()
    part_history.settle(
        [Sighting(Part.GPU, site.gpu("gn001"), serial="OLD-1")], site.now, why="seen by a poll"
    )
    run = site.begin(incident)
    run.plan = [library.plan_step(name, {}).as_row() for name in steps]
    run.save()
    return run


def up_to_the_wait(site: Site, run: Run) -> VendorCase:
    site.play(run, until=lambda run: "is opened since" in run.waiting_for)
    return VendorCase.objects.get()


def put_in(site: Site, case: VendorCase) -> None:
    """The machine was off for it, and boots."""
    site.nodes.reboot("gn001")
    cases.move(case.pk, Move.INSTALL, actor="ada", serial="NEW-1", now=site.now)


def test_a_run_waits_for_the_part_and_brings_the_node_back() -> None:
    site = Site(nodes=1)
    run = a_run(site)
    case = up_to_the_wait(site, run)
    assert (case.resource, case.old_serial) == (site.gpu("gn001"), "OLD-1")
    assert Incident.objects.get().state == State.AWAITING_VENDOR
    site.play(run, limit=3 * DAY)
    assert run.state == RunState.RUNNING
    assert len(get_due_runs(site.now)) == 0
    put_in(site, case)
    site.play(run, limit=timedelta(hours=2))
    incident = Incident.objects.get()
    assert (run.state, incident.state, incident.recovery) == (
        RunState.SUCCEEDED,
        State.MONITORING,
        Recovery.VENDOR_REPLACEMENT,
    )
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_draining
    deadlines.check_deadlines(site.now)
    case.refresh_from_db()
    assert case.state == CaseState.VERIFIED


def test_a_wait_of_days_costs_few_looks() -> None:
    site = Site(nodes=1)
    run = a_run(site)
    up_to_the_wait(site, run)
    looks = 0
    ends_at = site.now + DAY
    while run.wake_at is not None and run.wake_at <= ends_at:
        site.now = run.wake_at
        site.advance(run)
        looks += 1
    assert looks < 250


def test_a_worker_that_dies_after_the_case_was_opened_leads_to_no_second_one() -> None:
    site = Site(nodes=1)
    run = a_run(site)
    site.play(run, until=lambda run: run.step == 2)

    def die(point: str) -> None:
        if point == "acted":
            raise Killed

    with pytest.raises(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=die)
    assert VendorCase.objects.count() == 1
    site.now += timedelta(minutes=5)
    site.play(run, until=lambda run: run.step == 3)
    assert (VendorCase.objects.count(), run.state) == (1, RunState.RUNNING)
    assert run.facts["vendor_case"] == VendorCase.objects.get().pk


def test_a_case_that_is_closed_without_a_part_ends_the_run_and_asks() -> None:
    site = Site(nodes=1)
    run = a_run(site)
    case = up_to_the_wait(site, run)
    cases.move(case.pk, Move.CLOSE, actor="ada", note="Out of warranty.", now=site.now)
    site.play(run, limit=timedelta(hours=1))
    assert run.state == RunState.FAILED
    assert "was closed without a new part" in run.outcome
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_drained


def test_a_machine_that_is_still_off_is_waited_for() -> None:
    site = Site(nodes=1)
    run = a_run(site)
    case = up_to_the_wait(site, run)
    site.shell.silent.add("gn001")
    put_in(site, case)
    site.play(run, limit=timedelta(hours=1))
    assert Incident.objects.get().needs_human == "Switch gn001 on: its new part is to be tested."
    site.shell.silent.clear()
    site.play(run, limit=timedelta(hours=1))
    assert run.state == RunState.SUCCEEDED


def test_a_person_who_takes_the_node_back_meanwhile_is_respected() -> None:
    site = Site(nodes=1)
    run = a_run(site)
    up_to_the_wait(site, run)
    site.slurm.human_drain("gn001", "bob swaps the board")
    site.play(run, limit=timedelta(hours=1))
    assert run.state == RunState.ABORTED
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason == "bob swaps the board"


def test_a_false_alarm_while_the_part_is_awaited_leaves_the_node_drained() -> None:
    site = Site(nodes=1)
    run = a_run(site)
    up_to_the_wait(site, run)
    services.act(
        run.incident_id,
        Trigger.MARK_FALSE_POSITIVE,
        actor="ada",
        note="Was the riser.",
        now=site.now,
    )
    site.play(run, limit=timedelta(hours=1))
    assert run.state == RunState.WITHDRAWN
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_drained


def test_a_run_without_a_wait_for_the_part_ends_when_a_person_calls_the_vendor() -> None:
    site = Site(nodes=1)
    run = a_run(site, ("drain", "wait_for_jobs", "verify", "resume"))
    site.advance(run)
    cases.open_case(run.incident_id, actor="ada", now=site.now)
    site.play(run, limit=timedelta(hours=1))
    assert run.state == RunState.WITHDRAWN


def test_a_new_part_that_is_dead_too_is_counted_and_the_same_case_goes_on() -> None:
    site = Site(nodes=1)
    site.nodes.inject("gpu_dead", "gn001/gpu/0")
    run = a_run(site)
    case = up_to_the_wait(site, run)
    put_in(site, case)
    site.play(run, limit=timedelta(hours=2))
    assert run.state == RunState.NOT_CURED
    case.refresh_from_db()
    assert (case.state, case.dead_on_arrival, case.new_serial) == (CaseState.SHIPPED, 1, "")
    assert case.moves.get(move=Move.DEAD_ON_ARRIVAL).serial == "NEW-1"
    incident = Incident.objects.get()
    assert incident.state == State.OPEN
    again = Run.objects.create(
        incident=incident,
        node=run.node,
        runbook=run.runbook,
        plan=run.plan,
        fault_type=run.fault_type,
        mode=run.mode,
        wake_at=site.now,
        facts={"resource": site.gpu("gn001")},
        started_at=site.now,
    )
    site.play(again, until=lambda run: "is shipped since" in run.waiting_for)
    case.refresh_from_db()
    assert (case.state, case.dead_on_arrival, case.incident_id) == (
        CaseState.SHIPPED,
        1,
        incident.pk,
    )
    assert VendorCase.objects.count() == 1


def test_a_node_that_fails_for_another_reason_makes_no_part_dead() -> None:
    site = Site(nodes=1)
    run = a_run(site)
    case = up_to_the_wait(site, run)
    put_in(site, case)
    site.nodes.inject("gpu_dead", "gn001/gpu/1")
    site.play(run, limit=timedelta(hours=2))
    assert run.state == RunState.FAILED
    case.refresh_from_db()
    assert (case.state, case.dead_on_arrival) == (CaseState.INSTALLED, 0)
