"""A worker killed between any two lines of a turn, and another that takes over: the same end, one
reboot."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from incidents.vocabulary.lifecycle import State
from runbooks.engine import turn
from runbooks.lease.lease import LEASE
from runbooks.models import Run, RunState, StepRun
from runbooks.slurm.protocol import NodeState, SlurmError
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db

POINTS = ("leased", "allowed", "attempted", "acted", "stored")


class Killed(BaseException):
    """The process is gone: nothing catches it."""


class Reaper:
    """Kills the worker at its n-th pass of any point, once."""

    def __init__(self, at_pass: int) -> None:
        self.left = at_pass
        self.point = ""

    def __call__(self, point: str) -> None:
        assert point in POINTS
        self.left -= 1
        if self.left == 0:
            self.point = point
            raise Killed(point)


def play(site: Site, run: Run, reaper: Reaper) -> Run:
    """As `Site.play`, with a worker that may be killed; after a kill its lease must run out."""
    for _ in range(500):
        run.refresh_from_db()
        if run.finished_at is not None or run.wake_at is None:
            return run
        lease_ends_at = run.leased_until + timedelta(seconds=1) if run.leased_until else site.now
        site.now = max(site.now, run.wake_at, lease_ends_at)
        try:
            turn.advance(run.pk, now=site.now, world=site.world, at=reaper)
        except Killed:
            continue
    raise AssertionError(f"{run} does not end: {run.waiting_for}")


@pytest.mark.parametrize("at_pass", range(1, 36))
def test_run_ends_the_same_with_one_reboot_when_a_worker_is_killed(at_pass: int) -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    run = site.begin(incident)
    reaper = Reaper(at_pass)
    run = play(site, run, reaper)
    incident.refresh_from_db()
    assert reaper.point, "the run passed fewer points than this test kills at"
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert incident.state == State.MONITORING
    assert site.slurm.reboots("gn001") == 1
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_out
    assert not run.steps.filter(outcome=StepRun.Outcome.ATTEMPTED).exists()
    kinds = [entry.kind for entry in incident.timeline.all()]
    assert kinds.count("repair_started") == 1
    assert kinds.count("repair_succeeded") == 1


@pytest.mark.parametrize("verb", ["drain", "reboot", "resume"])
@pytest.mark.parametrize("is_done_all_the_same", [True, False])
def test_act_of_unknown_outcome_is_looked_at_when_scontrol_breaks(
    verb: str, is_done_all_the_same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scontrol is cut off by its time limit: what it asked for was done, or was not."""
    site = Site(nodes=2)
    incident = site.lose_gpu()
    real = getattr(site.slurm, verb)
    calls = itertools.count()

    def break_once(*arguments: str, as_seen: NodeState) -> object:
        if next(calls):
            return real(*arguments, as_seen=as_seen)
        if is_done_all_the_same:
            real(*arguments, as_seen=as_seen)
        raise SlurmError(f"`scontrol {verb}` gave no answer within 30 s.")

    monkeypatch.setattr(site.slurm, verb, break_once)
    run = play(site, site.begin(incident), Reaper(10_000))
    assert run.state == RunState.SUCCEEDED
    assert [act[0] for act in site.slurm.journal] == ["drain", "reboot", "resume"]


def test_attempt_is_watched_before_it_is_taken_not_to_have_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    asked_at = []

    def hang(node: str, *, as_seen: NodeState) -> None:
        asked_at.append(site.now)
        raise SlurmError("`scontrol reboot` gave no answer within 30 s.")

    monkeypatch.setattr(site.slurm, "reboot", hang)
    site.play(run, limit=timedelta(minutes=10))
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
    assert gaps
    assert min(gaps) >= timedelta(seconds=60)


def test_worker_that_comes_late_stores_nothing() -> None:
    """It hung over its lease in the middle of the drain, another took over, and then it woke up."""
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())

    def overtaken(point: str) -> None:
        if point == "acted":
            site.now += LEASE + timedelta(seconds=1)
            turn.advance(run.pk, now=site.now, world=site.world)

    turn.advance(run.pk, now=site.now, world=site.world, at=overtaken)
    run.refresh_from_db()
    assert run.step == 1
    assert [step.outcome for step in run.steps.all()] == ["already_done"]
    assert [act[0] for act in site.slurm.journal] == ["drain"]


def test_second_worker_does_nothing_while_the_first_one_works() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())

    def rung_twice(point: str) -> None:
        if point == "leased":
            turn.advance(run.pk, now=site.now, world=site.world)

    turn.advance(run.pk, now=site.now, world=site.world, at=rung_twice)
    run.refresh_from_db()
    assert run.step == 1
    assert run.fence == 1


def test_broken_step_is_told_once_in_plain_words_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())

    def broken(node: str) -> list[object]:
        raise ZeroDivisionError("jobs")

    with monkeypatch.context() as patched:
        patched.setattr(site.slurm, "list_jobs", broken)
        run = site.play(run, limit=timedelta(minutes=5))
    assert run.state == RunState.RUNNING
    told = "The step was broken off: Kintsugi met an error of its own, which its log describes. Kintsugi looks again."
    assert sum(told in line for line in site.story(run.incident)) == 1
    assert not [line for line in site.story(run.incident) if "ZeroDivisionError" in line]
    assert "ZeroDivisionError: jobs" in caplog.text
    assert site.play(run).state == RunState.SUCCEEDED
