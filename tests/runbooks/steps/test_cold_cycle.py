"""A cold cycle at its edges: late boards, dead workers, people, controllers that lie, are away or
lock us out."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from detectors.detector import Target
from detectors.faults import Recovery
from fixtures.memory_power import MemoryPower
from incidents import services as incidents
from incidents.models import Incident, Node
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.engine import approvals, turn
from runbooks.lease.lease import LEASE
from runbooks.library import library
from runbooks.library.library import LibraryError
from runbooks.models import CureAttempt, Run, RunState, StepRun
from runbooks.power.protocol import NoPower, PowerState
from runbooks.steps.cold_cycle import ColdCycle
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
NODE = "gn001"
STEPS = ("drain", "wait_for_jobs", "cold_cycle", "wait_for_boot")
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _no_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives leave is tested with approvals; here it is given."""
    monkeypatch.setattr(ColdCycle, "needs_approval", False)


def a_run(site: Site, steps: tuple[str, ...] = STEPS, **given: Any) -> Run:
    run = site.begin(site.raise_fault(NODE))
    run.plan = [
        library.plan_step(name, given if name == "cold_cycle" else {}).as_row() for name in steps
    ]
    run.save()
    return run


def at_step(name: str) -> Callable[[Run], bool]:
    return lambda run: run.plan[run.step]["step"] == name and run.finished_at is None


def has(fact: str) -> Callable[[Run], bool]:
    return lambda run: fact in run.facts


def offs(site: Site) -> int:
    return site.power.journal.count(("off", NODE))


def test_a_node_is_off_for_a_minute_and_comes_back_with_another_boot() -> None:
    site = Site(nodes=1)
    before = site.nodes.nodes[NODE].boot_id
    run = site.play(a_run(site), limit=HOUR)
    assert run.state == RunState.SUCCEEDED
    assert run.facts["boot_id_before"] == before != run.facts["boot_id_after"]
    row = run.steps.get(name="cold_cycle")
    assert (row.outcome, row.text) == (
        StepRun.Outcome.DONE,
        f"{NODE} was off for 60 s and is on again.",
    )
    told = [line.split(" UTC ")[1] for line in row.evidence["power"].splitlines()]
    assert told == ["asked to go off", "off", "asked to go on", "on"]
    assert CureAttempt.objects.get().rung == Recovery.COLD_CYCLE
    assert "unfinished" not in run.facts


def test_nothing_is_switched_off_before_a_person_who_saw_that_it_is_on_has_given_leave() -> None:
    site = Site(nodes=1)
    run = a_run(site)
    run.plan = [
        row | {"approval": True} if row["step"] == "cold_cycle" else row for row in run.plan
    ]
    run.save()
    run = site.play(run, limit=HOUR)
    shown = approvals.get_open_approval(run)
    assert shown is not None
    assert (run.state, shown.shown["power"], site.power.journal) == (
        RunState.AWAITING_APPROVAL,
        "on",
        [],
    )
    services.approve(run.pk, actor="alice", seen=approvals.get_fingerprint(run), now=site.now)
    assert site.play(run, limit=HOUR).state == RunState.SUCCEEDED
    assert offs(site) == 1


def test_a_runbook_says_how_long_it_stays_off() -> None:
    site = Site(nodes=1)
    run = site.play(a_run(site, off_for="5s"), limit=HOUR)
    assert "was off for 5 s" in run.steps.get(name="cold_cycle").text
    for wrong in ("1s", "10m", "soon", 60, None):
        with pytest.raises(LibraryError, match="off_for is"):
            library.plan_step("cold_cycle", {"off_for": wrong})


def test_a_board_that_says_that_it_is_on_its_way_is_waited_for() -> None:
    site = Site(nodes=1)
    site.power.shows_change = True
    assert site.play(a_run(site), limit=HOUR).state == RunState.SUCCEEDED
    assert offs(site) == 1


def test_a_node_with_jobs_is_not_switched_off() -> None:
    site = Site(nodes=1)
    run = a_run(site, ("drain", "cold_cycle", "wait_for_boot"))
    site.slurm.add_job("1", nodes=[NODE])
    site.play(run, limit=timedelta(minutes=5))
    assert (run.waiting_for, offs(site)) == (f"{NODE} is not empty yet.", 0)
    site.slurm.finish_job("1")
    assert site.play(run, limit=HOUR).state == RunState.SUCCEEDED


class Dies(BaseException):
    """The worker is killed here."""


class Fatal:
    """Power whose caller dies right after a verb of it has answered."""

    def __init__(self, power: MemoryPower, verb: str) -> None:
        self._power, self._verb = power, verb

    def read_state(self, node: Target) -> PowerState:
        return self._die_after("state", self._power.read_state(node))

    def turn_off(self, node: Target) -> None:
        self._die_after("off", self._power.turn_off(node))

    def turn_on(self, node: Target) -> None:
        self._die_after("on", self._power.turn_on(node))

    def _die_after(self, verb: str, answer: Any) -> Any:
        if verb == self._verb:
            raise Dies
        return answer


def _dies_at(point: str) -> turn.Point:
    def die(at: str) -> None:
        if at == point:
            raise Dies

    return die


@pytest.mark.parametrize(
    ("point", "turns"),
    [
        ("attempted", 1),
        ("off", 1),
        ("acted", 1),
        *(("state", turns) for turns in range(1, 7)),
        ("on", 5),
        ("on", 6),
    ],
)
def test_a_worker_that_dies_anywhere_leaves_no_node_off_and_switches_none_off_twice(
    point: str, turns: int
) -> None:
    site = Site(nodes=1)
    run = site.play(a_run(site), until=at_step("cold_cycle"), limit=HOUR)
    for _ in range(turns - 1):
        if at_step("cold_cycle")(run):
            site.now = max(site.now, run.wake_at or site.now)
            site.advance(run)
    site.now = max(site.now, run.wake_at or site.now)
    fatal = replace(site.world, power=Fatal(site.power, point))
    with contextlib.suppress(Dies):
        turn.advance(run.pk, now=site.now, world=fatal, at=_dies_at(point))
    site.now += LEASE + timedelta(seconds=1)
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert site.power.is_on(NODE)
    assert site.nodes.nodes[NODE].boots == 1


@pytest.mark.parametrize("fact", ["power_off_at", "seen_off_at", "power_on_at"])
def test_an_incident_that_ends_meanwhile_does_not_leave_the_node_off(fact: str) -> None:
    site = Site(nodes=1)
    run = site.play(a_run(site), until=has(fact), limit=HOUR)
    incidents.act(
        run.incident_id, Trigger.MARK_FALSE_POSITIVE, actor="ada", note="looked at it", now=site.now
    )
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.WITHDRAWN
    assert site.power.is_on(NODE)
    assert "stays drained" in run.outcome
    assert site.slurm.read_nodes((NODE,))[NODE].is_draining


def test_a_person_who_takes_the_node_over_while_it_is_off_is_respected_and_told_that_it_is_off() -> (
    None
):
    site = Site(nodes=1)
    run = site.play(a_run(site), until=has("seen_off_at"), limit=HOUR)
    site.slurm.human_drain(NODE, "hands in the machine", user="bob")
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.ABORTED
    assert run.outcome.endswith(f"Kintsugi has switched {NODE} off, and it is off still.")
    assert not site.power.is_on(NODE)


@pytest.mark.parametrize("control", [services.pause, services.abort])
def test_whoever_stops_the_run_is_told_that_the_node_is_off(control: Callable[..., object]) -> None:
    site = Site(nodes=1)
    run = site.play(a_run(site), until=has("seen_off_at"), limit=HOUR)
    assert f"Kintsugi has switched {NODE} off" in str(control(run.pk, actor="ada", now=site.now))


def test_the_stop_switch_holds_no_node_off() -> None:
    site = Site(nodes=1)
    run = site.play(a_run(site), until=has("seen_off_at"), limit=HOUR)
    services.stop("power works", actor="ada", now=site.now)
    assert site.play(run, until=at_step("wait_for_boot"), limit=HOUR).facts["reboot_at"]
    assert site.power.is_on(NODE)


def test_the_stop_switch_lets_none_be_switched_off() -> None:
    site = Site(nodes=1)
    run = site.play(a_run(site), until=at_step("cold_cycle"), limit=HOUR)
    services.stop("power works", actor="ada", now=site.now)
    site.play(run, limit=timedelta(minutes=10))
    assert offs(site) == 0


def test_a_board_that_says_yes_and_does_nothing_is_asked_twice_and_then_a_person() -> None:
    site = Site(nodes=1)
    site.power.stuck.add(NODE)
    run = site.play(a_run(site), limit=HOUR)
    assert (run.state, offs(site)) == (RunState.FAILED, 2)
    assert Incident.objects.get().needs_human.startswith(f"Power-cycle {NODE} by hand")
    assert CureAttempt.objects.count() == 1


def test_a_board_that_does_not_come_back_is_asked_again_and_so_is_a_person_after_ten_minutes() -> (
    None
):
    site = Site(nodes=1)
    run = site.play(a_run(site), until=has("seen_off_at"), limit=HOUR)
    site.power.stuck.add(NODE)
    site.play(run, limit=timedelta(minutes=9))
    assert not Incident.objects.get().needs_human
    assert site.power.journal.count(("on", NODE)) > 1
    site.play(run, limit=timedelta(minutes=3))
    assert Incident.objects.get().needs_human.startswith(f"Look at {NODE}: it may be off since")
    site.power.stuck.clear()
    assert site.play(run, limit=HOUR).state == RunState.SUCCEEDED


@pytest.mark.parametrize("trouble", ["away", "locked"])
def test_a_controller_that_is_lost_while_the_node_is_off_ends_nothing(trouble: str) -> None:
    site = Site(nodes=1)
    run = site.play(a_run(site), until=has("seen_off_at"), limit=HOUR)
    lost: set[str] = getattr(site.power, trouble)
    lost.add(NODE)
    site.play(run, limit=timedelta(minutes=12))
    assert run.state == RunState.RUNNING
    assert "may be off" in Incident.objects.get().needs_human
    lost.clear()
    assert site.play(run, limit=HOUR).state == RunState.SUCCEEDED
    assert offs(site) == 1


def test_a_controller_that_is_away_before_anything_is_begun_is_waited_for_and_then_a_person_asked() -> (
    None
):
    site = Site(nodes=1)
    site.power.away.add(NODE)
    run = site.play(a_run(site), limit=timedelta(minutes=5))
    assert "is not power-cycled yet" in run.waiting_for
    assert not Incident.objects.get().needs_human
    site.play(run, limit=timedelta(minutes=10))
    assert Incident.objects.get().needs_human.startswith(f"Power-cycle {NODE} by hand")
    assert sum("is not power-cycled yet" in text for text in site.story(run.incident)) == 2
    site.power.away.clear()
    assert site.play(run, limit=HOUR).state == RunState.SUCCEEDED


def test_wrong_credentials_stop_the_run_before_anything_is_touched() -> None:
    site = Site(nodes=1)
    site.power.locked.add(NODE)
    run = site.play(a_run(site), limit=HOUR)
    assert (run.state, site.power.journal) == (RunState.FAILED, [])
    assert "does not let kintsugi in" in run.outcome


def test_a_site_without_controllers_asks_a_person() -> None:
    site = Site(nodes=1)
    site.world = replace(site.world, power=NoPower())
    run = site.play(a_run(site), limit=HOUR)
    assert run.state == RunState.FAILED
    assert "[group.bmc]" in run.outcome
    assert not CureAttempt.objects.exists()


def test_a_node_that_someone_else_has_switched_off_is_left_off_and_its_return_is_its_cold_cycle() -> (
    None
):
    site = Site(nodes=1)
    Node.objects.update(boot_id=site.nodes.nodes[NODE].boot_id)
    site.power.switch(NODE, False)
    run = site.play(a_run(site), limit=timedelta(minutes=5))
    assert site.power.journal == []
    assert Incident.objects.get().needs_human.startswith(f"See who has switched {NODE} off")
    site.power.switch(NODE, True)
    run = site.play(run, limit=HOUR)
    assert (run.state, site.power.journal) == (RunState.SUCCEEDED, [])


def test_a_node_that_answers_while_it_should_be_off_has_another_machines_controller() -> None:
    site = Site(nodes=2)
    site.power = MemoryPower([NODE], now=lambda: site.now)  # what it switches is not this node
    site.world = replace(site.world, power=site.power)
    run = site.play(a_run(site), limit=HOUR)
    assert run.state == RunState.FAILED
    assert "another machine's" in run.outcome
    site.now += timedelta(seconds=10)
    assert site.power.is_on(NODE)


def test_slurm_that_sees_the_node_down_while_it_is_off_stops_nothing() -> None:
    site = Site(nodes=1)
    run = site.play(a_run(site, (*STEPS[:3],)), until=has("seen_off_at"), limit=HOUR)
    site.slurm.set_down(NODE)
    site.slurm.drop_drain(NODE)
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.SUCCEEDED, run.outcome
    state = site.slurm.read_nodes((NODE,))[NODE]
    assert state.is_draining
    assert state.reason.startswith(f"kintsugi:{run.incident_id}/")


_TROUBLES = ("away", "locked", "stuck", "off", "on", "minute", "turn", "turn")


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_meanwhile_the_node_ends_on_or_a_person_is_asked(seed: int) -> None:
    site = Site(nodes=1)
    run = site.play(a_run(site), until=at_step("cold_cycle"), limit=HOUR)
    for trouble in random.Random(seed).choices(_TROUBLES, k=14):
        _happens(site, run, trouble)
    for ended in (site.power.away, site.power.locked, site.power.stuck):
        ended.clear()
    run = site.play(run, limit=timedelta(minutes=20))
    site.now += timedelta(seconds=10)
    asked = Incident.objects.get().needs_human
    assert site.power.is_on(NODE) or asked, run.waiting_for
    assert run.finished_at is not None or asked, run.waiting_for
    assert offs(site) <= 2


def _happens(site: Site, run: Run, trouble: str) -> None:
    if trouble in ("away", "locked", "stuck"):
        nodes: set[str] = getattr(site.power, trouble)
        nodes.symmetric_difference_update({NODE})
    elif trouble in ("off", "on"):
        site.power.switch(NODE, trouble == "on")
    elif trouble == "minute":
        site.now += timedelta(minutes=1)
    elif run.wake_at is not None:
        site.now = max(site.now, run.wake_at)
        site.advance(run)
