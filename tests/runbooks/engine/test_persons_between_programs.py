"""A person acts between any two programs that a run has Slurm answer, on a real Slurm with
slurmdbd: their word stands in the end, or is put back.

The points are counted in a run that nobody disturbs: a program that a later version asks for is one
more point.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from django.db import transaction

from detectors.detector import Output, Target
from detectors.transports.ssh import LocalShell
from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmDaemonsError
from runbooks import services
from runbooks.engine import turn
from runbooks.models import Run, RunState
from runbooks.node import overwritten
from runbooks.slurm.client import ScontrolWriter, parse_controller
from runbooks.slurm.protocol import NodeState, format_state
from tests.runbooks.conftest import CLUSTER, boots
from tests.runbooks.real_site import RealSite
from tests.runbooks.slurm.test_real_slurm_states import a_run, a_slurm, look
from tests.services.patience import deadline_in
from tests.services.slurmdbd import PROGRAMS, Slurmdbd

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", *PROGRAMS),
    pytest.mark.django_db,
]
NODE = "gn001"
THEIRS = "bob: tray out, hands inside"
PUT_BACK = "put back by Kintsugi"
# What a run waits for that a person has to end, or a look much later.
AT_REST = (
    "Kintsugi leaves it alone while that stands",
    "It stays drained and is not rebooted.",
)
# How often each act is tried in the plain tier.
PLAINLY = 1
_WITHIN_S = 90
_SHORT = timedelta(seconds=3)


@dataclass(frozen=True)
class Point:
    """Before that program of the first turn of a step, counted from 0."""

    step: str
    number: int


class Between(LocalShell):
    """Tells of each program before it runs, and at which point that is."""

    def __init__(self, act_at: Callable[[Point, tuple[str, ...]], None]) -> None:
        super().__init__()
        self._act_at = act_at
        self._step = ""
        self._begun: set[str] = set()
        self._count = 0
        self._guard = threading.Lock()
        self.points: list[Point] = []

    def begin_turn(self, step: str) -> None:
        self._step = "" if step in self._begun else step
        self._begun.add(step)
        self._count = 0

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        if self._step:
            with self._guard:  # several programs run at once before the act
                point = Point(self._step, self._count)
                self._count += 1
                self.points.append(point)
            self._act_at(point, argv)
        return super().run(target, argv, timeout)


@dataclass(frozen=True)
class Said:
    """A person's act, how often the node had booted before it, and whether it came directly before
    our resume."""

    is_accepted: bool
    boots: int
    is_before_resume: bool


@dataclass
class Play:
    """One run, and what a person said in its midst."""

    slurm: SlurmDaemons
    act: Callable[[SlurmDaemons, NodeState], bool] | None = None
    at: Point | None = None
    said: list[Said] = field(default_factory=list)

    def run(self) -> tuple[Run, tuple[Point, ...], NodeState]:
        site, run, _ = a_run(self.slurm)
        shell = Between(self._act_at)
        client = ScontrolWriter(
            shell, parse_controller("local"), cluster_name=CLUSTER, conf=str(self.slurm.conf)
        )
        site.world = replace(site.world, slurm=client, writer=client)
        run = self._play(site, run.pk, shell)
        return run, tuple(shell.points), look(self.slurm)

    def _act_at(self, point: Point, argv: tuple[str, ...]) -> None:
        if point != self.at or self.act is None or self.said:
            return
        booted = boots(self.slurm, NODE)
        is_accepted = self.act(self.slurm, look(self.slurm))
        self.said.append(Said(is_accepted, booted, "State=RESUME" in argv))
        if "State=DRAIN" in argv:  # of one user's two drains in one second there is one row
            wait_for_another_second(self.slurm)

    def _play(self, site: RealSite, run_id: int, shell: Between) -> Run:
        """Until nothing more is to come of it, or it is left to the person."""
        deadline = deadline_in(_WITHIN_S)
        while True:
            run = Run.objects.get(pk=run_id)
            waits = any(text in run.waiting_for for text in AT_REST)
            is_at_rest = run.finished_at is not None or waits
            if is_at_rest and not overwritten.is_unchecked(run.facts):
                return run
            assert time.monotonic() < deadline, (run.waiting_for, run.outcome)
            soon = site.now() + _SHORT
            if run.wake_at is not None and run.wake_at > soon and run.finished_at is None:
                Run.objects.filter(pk=run_id).update(wake_at=soon)
            if services.is_due(run_id, now=site.now()):
                is_over = run.finished_at is not None
                shell.begin_turn("afterwards" if is_over else run.plan[run.step]["step"])
                turn.advance(run_id, now=site.now(), world=site.world)
            time.sleep(0.02)


def wait_for_another_second(slurm: SlurmDaemons) -> None:
    second = int(time.time())
    slurm.wait_until(lambda: int(time.time()) > second, what="another second")


def give(slurm: SlurmDaemons, *argv: str) -> bool:
    """Whether Slurm takes it."""
    try:
        slurm.command(*argv)
    except SlurmDaemonsError:
        return False
    return True


def update(slurm: SlurmDaemons, *words: str) -> bool:
    return give(slurm, "scontrol", "update", f"NodeName={NODE}", *words)


def append(slurm: SlurmDaemons, before: NodeState) -> bool:
    """To what stands on a node that is out; elsewhere there is nothing to append to."""
    return before.is_draining and update(slurm, f"Reason={before.reason} -- {THEIRS}")


ACTS: dict[str, Callable[[SlurmDaemons, NodeState], bool]] = {
    "drain": lambda slurm, before: update(slurm, "State=DRAIN", f"Reason={THEIRS}"),
    "append": append,
    "fail": lambda slurm, before: update(slurm, "State=FAIL", f"Reason={THEIRS}"),
    "reboot": lambda slurm, before: give(slurm, "scontrol", "reboot", NODE),
    "resume": lambda slurm, before: before.is_draining and update(slurm, "State=RESUME"),
    "undrain": lambda slurm, before: before.is_draining and update(slurm, "State=UNDRAIN"),
}


def evaluate(act: str, play: Play, after: NodeState) -> str:
    """What became of the person's word: `stands`, `put back`, `overwritten`, `undone`, or `lost
    without a trace`: of a reason that changes while the node stays drained, and of a reboot that is
    asked for then, slurmctld tells the accounts nothing (src/slurmctld/node_mgr.c, update_node).
    """
    (said,) = play.said
    is_out = after.is_draining or after.is_failing
    if act == "reboot":
        is_made = boots(play.slurm, NODE) > said.boots or after.is_rebooting
        lost = "lost without a trace" if said.is_before_resume else "undone"
        return "stands" if is_made else lost
    if act in ("resume", "undrain"):
        return "undone" if is_out else "stands"
    if THEIRS not in after.reason:
        is_note_alone = act == "append" and said.is_before_resume
        return "lost without a trace" if is_note_alone else "overwritten"
    if not is_out:
        return "undone"
    return "put back" if PUT_BACK in after.reason else "stands"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmDaemons]:
    accounts = Slurmdbd()
    try:
        settings = accounts.start().settings
        with a_slurm(tmp_path_factory.mktemp("slurm"), boot_takes=2, **settings) as daemons:
            yield daemons
    finally:
        accounts.remove()


def clear(slurm: SlurmDaemons) -> None:
    """The node as if nobody had ever touched it."""

    def is_clear() -> bool:
        state = look(slurm)
        if state.is_rebooting and "REBOOT_ISSUED" not in state.flags:
            give(slurm, "scontrol", "cancel_reboot", NODE)
        elif (state.is_out or state.reason) and not state.is_rebooting:
            update(slurm, "State=RESUME")
        state = look(slurm)
        return state.base == "IDLE" and not state.flags

    slurm.wait_until(is_clear, what="the node is idle")
    (slurm.directory / "boots").write_text("")
    wait_for_another_second(slurm)  # what stood there until our drain would be a person's


@pytest.fixture(scope="module")
def counted() -> list[Point]:
    """The points, once a run that nobody disturbs has told them."""
    return []


def count_points(slurm: SlurmDaemons, counted: list[Point]) -> Sequence[Point]:
    if counted:
        return counted
    clear(slurm)
    with transaction.atomic():
        run, points, after = Play(slurm).run()
        transaction.set_rollback(True)
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert (boots(slurm, NODE), after.is_out) == (1, False)
    counted += points
    return counted


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("act", ACTS)
def test_a_persons_word_stands_or_is_put_back_wherever_between_two_programs_it_comes(
    act: str, slurm: SlurmDaemons, counted: list[Point], is_full_length: bool
) -> None:
    points = count_points(slurm, counted)
    chosen = points if is_full_length else random.Random(act).sample(points, PLAINLY)
    found: dict[str, list[str]] = {}
    for point in chosen:
        clear(slurm)
        with transaction.atomic():
            play = Play(slurm, ACTS[act], point)
            run, _, after = play.run()
            outcome = f"{run.state}: {run.outcome or run.waiting_for}"
            transaction.set_rollback(True)
        what = "no such point"
        if play.said:
            what = evaluate(act, play, after) if play.said[0].is_accepted else "not taken"
        told = f"{point}: {format_state(after)} after {outcome}"
        found.setdefault(what, []).append(told)
    print(f"{act}: {len(points)} points;", {what: len(told) for what, told in found.items()})
    assert len(found.get("lost without a trace", ())) <= 1, found
    wrong = {what: told for what, told in found.items() if what in ("overwritten", "undone")}
    assert wrong == {}, "\n".join(f"{what} {told}" for what in wrong for told in wrong[what])
