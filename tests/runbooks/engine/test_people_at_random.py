"""People, Slurm and a reaper of workers around one repair, in an order that a seed chooses: the code
of the runs, on the Slurm in memory.

Whatever the order: no person's drain, reason, FAIL or reboot is overwritten or undone for good, and
a cause has one reboot of ours. A failing play names its seed, and what was done in it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from django.db import transaction

from detectors.detector import Output, Target
from detectors.slurm import drain_reasons
from fixtures.memory_slurm_commands import CommandShell
from runbooks.engine import turn
from runbooks.models import Run
from runbooks.shadow import shadow_log
from runbooks.slurm.client import ScontrolWriter, parse_controller
from runbooks.slurm.protocol import NodeState
from tests.runbooks.site import CLUSTER, Site

pytestmark = pytest.mark.django_db
PLAYS, PLAYS_AT_LENGTH, PLAYS_A_TEST = 60, 400, 20
NODE = "gn001"
# How often somebody does something at a point of a turn, and how often a worker dies there.
SOMEBODY, DEATH = 0.12, 0.04
LASTS = timedelta(minutes=15)
# A person's word that comes while our update is under way stands again within this.
PUT_BACK_IN = timedelta(seconds=20)


class Killed(BaseException):
    """The worker is gone."""


@dataclass
class Play:
    """One node's repair. `word` is what a person said of the node last, and still means."""

    seed: int
    site: Site
    dice: random.Random = field(init=False)
    trace: list[str] = field(default_factory=list)
    word: str = ""
    is_seen: bool = False
    said: int = 0
    wrong_since: object = None
    reboots_asked: int = 0

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        shell = Between(self)
        client = ScontrolWriter(shell, parse_controller("local"), cluster_name=CLUSTER)
        self.site.world = replace(self.site.world, slurm=client, writer=client)

    @property
    def node(self) -> NodeState:
        return self.site.slurm.read_nodes((NODE,))[NODE]

    def note(self, text: str) -> None:
        self.trace.append(f"{self.site.now:%H:%M:%S} {text}")

    def act_somebody(self) -> None:
        """One thing that a person or Slurm does."""
        acts: list[Callable[[], None]] = [self.drain, self.fail, self.append, self.resume]
        acts += [self.reboot, self.start_job, self.end_jobs, self.pass_a_second]
        self.dice.choice(acts)()

    def say(self) -> str:
        self.said += 1
        self.word, self.is_seen = f"bob: hands inside, {self.said}", False
        return self.word

    def look(self) -> None:
        """As a site does every five seconds."""
        shadow_log.record_external_acts(self.site.slurm.read_nodes(), self.site.now)
        self.is_seen = self.is_seen or self.word in self.node.reason

    def drain(self) -> None:
        self.site.slurm.human_drain(NODE, self.say())
        self.note(f"drain: {self.word}")

    def fail(self) -> None:
        self.site.slurm.human_fail(NODE, self.say())
        self.note(f"fail: {self.word}")

    def append(self) -> None:
        reason = self.node.reason
        self.site.slurm.human_drain(NODE, f"{reason} -- {self.say()}"[:240])
        self.note(f"append: {self.word}")

    def resume(self) -> None:
        self.site.slurm.human_resume(NODE)
        self.word = ""
        self.note("resume")

    def reboot(self) -> None:
        self.site.slurm.human_reboot(NODE)
        self.reboots_asked += 1
        self.note("reboot")

    def start_job(self) -> None:
        if not self.node.is_out and not self.site.slurm.list_jobs(NODE):
            self.site.slurm.add_job(str(1000 + self.said), nodes=[NODE])
            self.note("a job starts")

    def end_jobs(self) -> None:
        for job in self.site.slurm.list_jobs(NODE):
            self.site.slurm.finish_job(job.job_id)
            self.note("its job ends")

    def pass_a_second(self) -> None:
        self.site.now += timedelta(seconds=1)

    def reach(self, point: str) -> None:
        """A point of a turn, where the machine may stop and others go on."""
        if self.dice.random() < SOMEBODY:
            self.act_somebody()
        if self.dice.random() < DEATH:
            self.note(f"the worker dies at {point}")
            raise Killed

    def check(self) -> None:
        """After each turn."""
        state = self.node
        if self.word and not self.is_seen and self._is_written_over(state):
            self.word = ""  # by Slurm, before anybody looked
        ours = [act[0] for act in self.site.slurm.journal if act[:2] == ("reboot", NODE)]
        assert len(ours) <= 1, "a second reboot of ours for one cause"
        if not self.word or self._stands(state):
            self.wrong_since = None
            return
        since = self.wrong_since = self.wrong_since or self.site.now
        assert isinstance(since, type(self.site.now))
        assert self.site.now - since <= PUT_BACK_IN, f"{self.word!r} is gone: {state}"

    def _stands(self, state: NodeState) -> bool:
        if not state.is_out:
            return False
        is_there = self.word in state.reason or "ask bob" in state.reason
        return is_there or self._is_written_over(state)

    def _is_written_over(self, state: NodeState) -> bool:
        """As Slurm 22.05 does at a second reboot, whatever stands there: the node is left to them."""
        is_slurms = drain_reasons.is_slurms_text(state.reason)
        return state.is_out and is_slurms and self.word not in state.reason


class Between(CommandShell):
    """Somebody may act between the client's look and its act: a drain that a second separates from
    ours, as slurmdbd can tell it."""

    def __init__(self, play: Play) -> None:
        super().__init__(play.site.slurm)
        self._play = play

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        play = self._play
        is_quiet = not play.node.is_rebooting and not play.site.slurm.list_jobs(NODE)
        if "update" in argv and is_quiet and play.dice.random() < SOMEBODY:
            play.pass_a_second()
            play.drain()
            play.pass_a_second()
        return super().run(target, argv, timeout)


def play_once(seed: int) -> Play:
    play = Play(seed, Site(nodes=2))
    run = play.site.begin(play.site.lose_gpu())
    ends_at = play.site.now + LASTS
    play.look()
    try:
        while play.site.now < ends_at:
            run.refresh_from_db()
            due = [at for at in (run.wake_at, run.leased_until) if at is not None]
            if not due:
                break
            play.look()
            play.site.now = max(play.site.now, min(due) if run.leased_until is None else max(due))
            advance(play, run)
            play.pass_a_second()
            play.check()
    except AssertionError as broken:
        raise AssertionError(f"seed {seed:08d}: {broken}\n" + "\n".join(play.trace)) from broken
    return play


def advance(play: Play, run: Run) -> None:
    before = len(play.site.slurm.journal)
    with contextlib.suppress(Killed):
        turn.advance(run.pk, now=play.site.now, world=play.site.world, at=play.reach)
    for act in play.site.slurm.journal[before:]:
        play.note(f"Kintsugi: {' '.join(act)}")


def play_many(seeds: range) -> None:
    for seed in seeds:
        with transaction.atomic():
            play_once(seed)
            transaction.set_rollback(True)


@pytest.mark.parametrize("first", range(0, PLAYS, PLAYS_A_TEST))
def test_no_order_of_events_overwrites_or_undoes_a_person(first: int) -> None:
    play_many(range(first, first + PLAYS_A_TEST))


def test_nor_do_some_hundreds_of_them(is_full_length: bool) -> None:
    play_many(range(PLAYS, PLAYS_AT_LENGTH if is_full_length else PLAYS + PLAYS_A_TEST))


def test_a_worker_that_dies_right_after_it_has_written_over_a_person_hides_nothing() -> None:
    """Found as a seed: Slurm had appended to our reason before anybody looked again."""
    play_once(47)
