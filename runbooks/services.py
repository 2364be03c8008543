"""The public face of what is done: everything that other packages may ask of runbooks. Only these
functions write."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.conf import settings

from incidents.db.prepared import Given, Prepared
from runbooks.engine import approvals, outcome_history, result, start
from runbooks.engine.refutations import WrongRule, list_wrong_rules
from runbooks.engine.start import format_plan
from runbooks.engine.turn import advance
from runbooks.fleet import left_drains, proposals, step_backs
from runbooks.fleet.breaker import evaluate_breaker
from runbooks.fleet.fleet import get_mode, get_site_mode, get_stop_reason
from runbooks.fleet.proposals import Proposal
from runbooks.lease import lease
from runbooks.lease.lease import move_times_back
from runbooks.library import library
from runbooks.models import Mode, Run, RunState
from runbooks.outcomes import AskedSecond, Controlled, ControlRefused, Outcome
from runbooks.people import preflight
from runbooks.people.asked_again import (
    UnansweredQuestion,
    list_unanswered,
    record_pages,
    sweep_unanswered,
)
from runbooks.people.controls import (
    ArmingDraft,
    abort,
    approve,
    begin_arming,
    close_breaker,
    confirm_request,
    end_arming,
    pause,
    reject_request,
    release,
    resume,
    set_mode,
    stop,
    take_over,
)
from runbooks.people.job_stops import Leave, may_stop_job
from runbooks.people.manual_runs import start_manual_run
from runbooks.people.progress import format_progress, format_prospect
from runbooks.people.restore import follow_restore
from runbooks.people.standstill import sweep_standstills
from runbooks.second_person import power_cycles
from runbooks.shadow.episodes import Episode, group_by_runbook, load_episodes
from runbooks.shadow.report import (
    DryRunReport,
    ExternalDrains,
    Share,
    compute_report,
    list_external_drains,
)
from runbooks.shadow.texts import describe_report
from runbooks.step import World

__all__ = [
    "ArmingDraft",
    "AskedSecond",
    "ControlRefused",
    "Controlled",
    "DryRunReport",
    "Episode",
    "ExternalDrains",
    "Leave",
    "Outcome",
    "Proposal",
    "Share",
    "UnansweredQuestion",
    "WrongRule",
    "abort",
    "advance",
    "approve",
    "begin_arming",
    "close_breaker",
    "compute_report",
    "confirm_request",
    "describe_report",
    "end_arming",
    "evaluate_breaker",
    "evaluate_outcomes",
    "follow_restore",
    "format_plan",
    "format_progress",
    "format_prospect",
    "get_due_runs",
    "get_mode",
    "get_runbook_titles",
    "get_site_mode",
    "get_stop_reason",
    "group_by_runbook",
    "is_due",
    "is_shadow",
    "list_external_drains",
    "list_proposals",
    "list_unanswered",
    "list_wrong_rules",
    "load_episodes",
    "may_stop_job",
    "move_times_back",
    "pause",
    "record_pages",
    "reject_request",
    "release",
    "report_preflight",
    "resume",
    "set_mode",
    "start_after",
    "start_due",
    "start_manual_run",
    "stop",
    "sweep_left_drains",
    "sweep_second_person",
    "sweep_standstills",
    "sweep_unanswered",
    "sweep_wrong_acts",
    "take_over",
]


_NOT_CURED = Prepared(
    lambda: Run.objects.filter(pk=Given("run"), state=RunState.NOT_CURED).values_list("incident_id")
)


def get_due_runs(now: datetime) -> list[int]:
    """Runs whose `wake_at` has come, or whose worker's lease ran out. Last, those that look once
    more."""
    return lease.list_due_runs(now)


def start_due(incident_ids: Iterable[int] | None, *, now: datetime, world: World) -> list[int]:
    """Starts what the incidents call for (None: all open ones) and returns the runs that are due at
    once."""
    if incident_ids is None:
        approvals.withdraw_needless(now, bounds=world.policy.bounds)
    return start.start_due(incident_ids, now=now, world=world)


def evaluate_outcomes(now: datetime) -> int:
    """Says of rungs whose runs have ended whether they cured their fault, once that is known. How
    many were judged."""
    return outcome_history.evaluate_outcomes(now, library.load())


def sweep_wrong_acts(now: datetime) -> int:
    """Takes a rung from each arming or mode by which a node was taken out that people have called
    well since. How many have gone down."""
    runs = step_backs.list_candidates(now)
    return sum(result.step_back_if_wrong(run, now) for run in runs)


def sweep_left_drains(now: datetime) -> int:
    """Asks people for nodes that stand drained for incidents that are closed. How many."""
    return left_drains.sweep(now)


def sweep_second_person(now: datetime) -> None:
    """Ends requests to a second person that nobody can confirm any more."""
    power_cycles.sweep(now)


def list_proposals(now: datetime) -> list[Proposal]:
    """What may be armed next by the site's own record, or what that still lacks."""
    return proposals.list_proposals(now, most=settings.KINTSUGI["KINTSUGI_ARMING_BOUND"])


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
    return all(point["is_ok"] for point in preflight.create_report(world, by=by, now=now).checks)


def get_runbook_titles() -> dict[str, str]:
    """Name and title of each runbook in the library."""
    return {name: book.title for name, book in library.load().items()}
