"""The step `diagnose` as a job of ours: no user's job starts on the node it is about, whoever dies
or interferes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from detectors.slurm.reservations import Reservation
from fixtures.cluster.facets.diagnostics import DiagnosticsFacet
from fixtures.memory_slurm_jobs import Asked
from incidents.models import Incident
from runbooks import services
from runbooks.engine import turn
from runbooks.lease.lease import LEASE
from runbooks.library import library
from runbooks.models import Run, RunState, StepRun
from runbooks.slurm.protocol import SlurmError, SlurmJob
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
NODE = "gn001"
HOURS = timedelta(hours=3)
STEPS = ("drain", "wait_for_jobs", "diagnose", "resume")
TAKES = timedelta(minutes=2)


class Killed(BaseException):
    """The worker died."""


class Lending:
    """A site with a run that tests gn001 by a job; a user's job waits for that node all the
    while."""

    def __init__(self, **given: Any) -> None:
        self.site = Site()
        self.done: dict[Asked, int] = {}
        self.site.slurm.work.outcome = self._work
        self.incident: Incident = self.site.raise_fault(NODE)
        self.site.start()
        self.run = self.site.run_of(self.incident)
        params = {"diagnose": {"where": "job", **given}}
        self.run.plan = [library.plan_step(name, params.get(name, {})).as_row() for name in STEPS]
        self.run.save()
        self.until_step("diagnose")
        self.users = self.site.slurm.work.submit(
            "train", Asked(("train",), (NODE,), ""), user="alice", gpus=8
        )

    def _work(self, asked: Asked) -> tuple[timedelta, int]:
        """Jobs of ours do on the simulated node what they would do on a real one."""
        if not asked.reservation:
            return HOURS, 0
        if asked not in self.done:
            self.done[asked] = self.site.nodes.nodes[NODE].run(asked.argv)[0] or 0
        return TAKES, self.done[asked]

    @property
    def job(self) -> SlurmJob | None:
        return self.site.slurm.find_job(f"{self.run.pk}-2-diagnose")

    @property
    def facts(self) -> dict[str, Any]:
        self.run.refresh_from_db()
        return self.run.facts.get("lent", {})

    @property
    def is_users(self) -> bool:
        """Whether a user's job has ever started there."""
        job = self.site.slurm.work.known(self.users)
        return job is not None and job.started_at is not None

    def until_step(self, name: str) -> None:
        self.site.play(self.run, until=lambda run: run.plan[run.step]["step"] == name, limit=HOURS)

    def until(self, fact: str) -> None:
        self.site.play(self.run, until=lambda run: fact in run.facts.get("lent", {}), limit=HOURS)
        assert fact in self.facts, self.run.outcome or self.run.waiting_for

    def to_the_end(self) -> Run:
        return self.site.play(self.run, limit=HOURS)

    def verbs(self) -> list[str]:
        return [act[0] for act in self.site.slurm.journal if act[1] != "spare"]

    def is_drained(self) -> bool:
        return self.site.slurm.read_nodes((NODE,))[NODE].is_draining


def test_the_node_is_reserved_before_it_is_let_in_and_drained_before_that_ends() -> None:
    lending = Lending(level=3)
    lending.until_step("resume")
    assert lending.verbs() == ["drain", "reserve", "resume", "submit", "drain", "unreserve"]
    assert lending.is_drained()
    assert not lending.is_users
    row = lending.run.steps.get(name="diagnose", outcome=StepRun.Outcome.DONE)
    assert row.text == "`dcgmi diag -r 3 -j` passed on gn001."
    assert "DCGM GPU Diagnostic" in next(iter(row.evidence.values()))
    assert "lent" not in lending.run.facts
    assert lending.to_the_end().state == RunState.SUCCEEDED
    assert lending.site.slurm.work.known(lending.users).started_at is not None  # type: ignore[union-attr]


def test_a_failing_test_calls_for_the_next_rung_and_the_node_stays_drained() -> None:
    lending = Lending()
    lending.site.nodes.nodes[NODE].facet(DiagnosticsFacet).fails = {"Targeted Stress"}
    run = lending.to_the_end()
    assert run.state == RunState.NOT_CURED
    assert "failed: Targeted Stress on GPU 0" in run.outcome
    assert lending.is_drained()
    assert lending.site.slurm.list_reservations() == []


VERBS = ("reserve", "resume", "submit", "drain", "unreserve")


@pytest.mark.parametrize("is_done_before", [True, False])
@pytest.mark.parametrize("verb", VERBS)
def test_no_users_job_starts_and_the_run_ends_the_same_when_a_worker_dies_at_an_act(
    verb: str, is_done_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lending = Lending()
    real = getattr(lending.site.slurm, verb)
    deaths = []

    def die(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named) if is_done_before or deaths else None
        if not deaths:
            deaths.append(verb)
            raise Killed
        return result

    monkeypatch.setattr(lending.site.slurm, verb, die)
    with pytest.raises(Killed):
        lending.until_step("resume")
    assert not lending.is_users
    lending.site.now += LEASE + timedelta(seconds=1)
    lending.until_step("resume")
    assert deaths == [verb]
    assert lending.run.state == RunState.RUNNING, lending.run.outcome
    assert not lending.is_users
    assert lending.is_drained()
    assert lending.site.slurm.list_reservations() == []
    assert lending.verbs().count("submit") == 1


@pytest.mark.parametrize("at_pass", range(1, 10))
def test_no_users_job_starts_when_a_worker_dies_between_two_lines(at_pass: int) -> None:
    lending = Lending()
    left = at_pass

    def die(point: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    while (
        lending.run.plan[lending.run.step]["step"] == "diagnose" and lending.run.wake_at is not None
    ):
        lending.site.now = max(
            lending.site.now, lending.run.wake_at, lending.run.leased_until or lending.site.now
        )
        lending.site.now += timedelta(seconds=1)
        try:
            turn.advance(lending.run.pk, now=lending.site.now, world=lending.site.world, at=die)
        except Killed:
            lending.site.now += LEASE
        assert not lending.is_users
        assert lending.is_drained() or lending.site.slurm.list_reservations()
        lending.run.refresh_from_db()
    assert lending.run.plan[lending.run.step]["step"] == "resume", lending.run.outcome


@pytest.mark.parametrize("is_done_all_the_same", [True, False])
@pytest.mark.parametrize("verb", VERBS)
def test_an_act_of_unknown_outcome_is_looked_at_when_slurm_breaks(
    verb: str, is_done_all_the_same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lending = Lending()
    real = getattr(lending.site.slurm, verb)
    breaks = []

    def break_once(*arguments: Any, **named: Any) -> Any:
        if breaks:
            return real(*arguments, **named)
        breaks.append(verb)
        if is_done_all_the_same:
            real(*arguments, **named)
        raise SlurmError(f"`scontrol {verb}` gave no answer within 30 s.")

    monkeypatch.setattr(lending.site.slurm, verb, break_once)
    lending.until_step("resume")
    assert breaks == [verb]
    assert lending.run.state == RunState.RUNNING, lending.run.outcome
    assert not lending.is_users
    assert lending.is_drained()
    assert lending.site.slurm.list_reservations() == []


def test_a_node_that_was_let_in_is_reserved_until_somebody_drains_it_however_long_no_worker_is_there() -> (
    None
):
    lending = Lending()
    lending.until("let_in_at")
    lending.site.now += timedelta(days=60)
    assert not lending.is_users
    lending.until_step("resume")
    assert lending.is_drained()
    assert not lending.is_users


def _delete(lending: Lending) -> None:
    lending.site.slurm.work.end(
        lending.users, "CANCELLED"
    )  # Slurm would start it: a person has opened the node
    lending.site.slurm.end_reservation(f"kintsugi_{lending.run.pk}-2-diagnose")


def _other(lending: Lending) -> None:
    now = lending.site.now
    lending.site.slurm.add_reservation(
        Reservation("works", (NODE,), frozenset({"MAINT"}), now, now + HOURS)
    )


def _down(lending: Lending) -> None:
    lending.site.slurm.switch_off(NODE)


def _prolog(lending: Lending) -> None:
    lending.site.slurm.slurm_drain(NODE, "Prolog error")


@pytest.mark.parametrize(
    ("happens", "words", "state"),
    [
        (_delete, "the reservation of gn001 has ended", RunState.FAILED),
        (_other, "the reservation works holds gn001 too", RunState.FAILED),
        (_prolog, 'gn001 was taken out by slurm: "Prolog error"', RunState.FAILED),
        (_down, "gn001 went down while", RunState.NOT_CURED),
    ],
)
def test_the_node_is_drained_at_once_when_the_job_cannot_go_on(
    happens: Callable[[Lending], None], words: str, state: RunState
) -> None:
    lending = Lending()
    lending.until("submitted_at")
    happens(lending)
    lending.site.play(
        lending.run,
        until=lambda run: "out_at" in run.facts.get("lent", {}),
        limit=timedelta(minutes=1),
    )
    assert lending.is_drained()
    run = lending.to_the_end()
    assert (run.state, words in run.outcome) == (state, True), run.outcome
    assert lending.is_drained()
    assert lending.job is not None
    assert lending.job.has_ended
    assert not lending.site.slurm.read_nodes((NODE,))[NODE].reason.startswith("Prolog")
    assert not any(
        one.name.startswith("kintsugi") for one in lending.site.slurm.list_reservations()
    )


@pytest.mark.parametrize(
    "fact", ["reserved_at", "lending_at", "let_in_at", "submitted_at", "out_at"]
)
def test_a_persons_drain_is_left_as_it_is_and_what_is_ours_is_taken_away(fact: str) -> None:
    lending = Lending()
    lending.until(fact)
    lending.site.slurm.human_drain(NODE, "tray is open")
    run = lending.to_the_end()
    assert run.state == RunState.ABORTED, run.outcome
    assert lending.site.slurm.read_nodes((NODE,))[NODE].reason == "tray is open"
    assert lending.site.slurm.list_reservations() == []
    assert lending.job is None or lending.job.has_ended
    assert not lending.is_users


def test_a_persons_resume_before_the_node_was_lent_is_respected() -> None:
    lending = Lending()
    lending.until("reserved_at")
    lending.site.slurm.human_resume(NODE)
    run = lending.to_the_end()
    assert (run.state, "was resumed by someone else" in run.outcome) == (RunState.ABORTED, True)
    assert not lending.is_drained()
    assert lending.site.slurm.list_reservations() == []


def test_a_persons_resume_after_it_was_taken_back_is_respected() -> None:
    lending = Lending()
    lending.until("out_at")
    lending.site.shell.silent.add(NODE)  # its report cannot be read yet
    lending.until("closed_at")
    lending.site.slurm.human_resume(NODE)
    assert lending.to_the_end().state == RunState.ABORTED
    assert not lending.is_drained()


def test_an_incident_that_is_closed_meanwhile_leaves_no_node_without_its_drain() -> None:
    lending = Lending()
    lending.until("submitted_at")
    Incident.objects.filter(pk=lending.incident.pk).update(state="false_positive")
    run = lending.to_the_end()
    assert run.state == RunState.WITHDRAWN
    assert lending.verbs()[-3:] == ["drain", "unreserve", "resume"]
    assert not any(
        one.name.startswith("kintsugi") for one in lending.site.slurm.list_reservations()
    )


def test_whoever_aborts_the_run_is_told_how_the_node_stands() -> None:
    lending = Lending()
    lending.until("submitted_at")
    aborted = services.abort(lending.run.pk, actor="bob", now=lending.site.now)
    assert isinstance(aborted, services.Controlled)
    assert "gn001 is not drained: only its reservation keeps users' jobs off" in aborted.text
    assert "scontrol delete ReservationName=kintsugi_" in aborted.text
    assert "stays drained" not in lending.site.story(lending.incident)[-1]
    lending.site.now += timedelta(days=7)
    assert not lending.is_users
