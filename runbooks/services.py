"""The public face of what is done: everything that other packages may ask of runbooks. Only these
functions write."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from incidents.db.prepared import Given, Prepared
from runbooks.engine import approvals, outcome_history, start
from runbooks.engine.start import plan
from runbooks.engine.turn import advance
from runbooks.fleet.breaker import evaluate_breaker as breaker
from runbooks.fleet.fleet import heard, mode_of, mode_of_site, stopped
from runbooks.lease import lease
from runbooks.library import library
from runbooks.models import Mode, Run, RunState
from runbooks.outcomes import Controlled, ControlRefused, Outcome
from runbooks.people import preflight
from runbooks.people.controls import (
    abort,
    approve,
    close_breaker,
    pause,
    release,
    resume,
    set_mode,
    stop,
    take_over,
)
from runbooks.people.job_stops import Leave, may_stop_job
from runbooks.people.manual_runs import start as start_by_hand
from runbooks.people.progress import of_incident as what_runs_do
from runbooks.people.standstill import sweep as ask_where_nothing_moves
from runbooks.shadow.shadow_log import Agreement, agreement, judge
from runbooks.slurm.running_jobs import jobs_on
from runbooks.step import World

__all__ = [
    "Agreement",
    "ControlRefused",
    "Controlled",
    "Leave",
    "Outcome",
    "abort",
    "advance",
    "agreement",
    "approve",
    "ask_where_nothing_moves",
    "breaker",
    "close_breaker",
    "due",
    "heard",
    "is_due",
    "is_shadow",
    "jobs_on",
    "judge",
    "judge_cures",
    "may_stop_job",
    "mode_of",
    "mode_of_site",
    "pause",
    "plan",
    "release",
    "report_preflight",
    "resume",
    "runbooks",
    "set_mode",
    "start_after",
    "start_by_hand",
    "start_due",
    "stop",
    "stopped",
    "take_over",
    "what_runs_do",
]


_NOT_CURED = Prepared(
    lambda: Run.objects.filter(pk=Given("run"), state=RunState.NOT_CURED).values_list("incident_id")
)


def due(now: datetime) -> list[int]:
    """Runs whose `wake_at` has come, or whose worker's lease ran out. Last, those that look once
    more."""
    return lease.all_due(now)


def start_due(incident_ids: Iterable[int] | None, *, now: datetime, world: World) -> list[int]:
    """Starts what the incidents call for (None: all open ones) and returns the runs that are due at
    once."""
    if incident_ids is None:
        approvals.withdraw_needless(now, bounds=world.policy.bounds)
    return start.start_due(incident_ids, now=now, world=world)


def judge_cures(now: datetime) -> int:
    """Says of rungs whose runs have ended whether they cured their fault, once that is known. How
    many were judged."""
    return outcome_history.judge(now, library.load())


def start_after(run_id: int, *, now: datetime, world: World) -> list[int]:
    """The next rung at once, where this run has ended without a cure; returns what is due."""
    ended = _NOT_CURED.values(run=run_id)
    return start_due(ended, now=now, world=world) if ended else []


def is_due(run_id: int, *, now: datetime) -> bool:
    return lease.is_due(run_id, now)


def is_shadow(run_id: int) -> bool:
    """Whether the run only writes down what it would do: any process may take its turn."""
    return Run.objects.filter(pk=run_id, mode=Mode.SHADOW).exists()


def report_preflight(world: World, *, by: str, now: datetime) -> bool:
    """Makes the preflight for processes that hold no key for acts, and keeps it. Whether every
    point is well."""
    return all(point["is_ok"] for point in preflight.report(world, by=by, now=now).checks)


def runbooks() -> dict[str, str]:
    """Name and title of each runbook in the library."""
    return {name: book.title for name, book in library.load().items()}
