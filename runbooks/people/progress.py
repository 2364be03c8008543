"""What is being done about an incident now, in words: computed when it is read, of runs as they
stand. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from django.db.models import Q, QuerySet

from detectors.faults import Action
from incidents.models import Incident
from incidents.vocabulary.lifecycle import State
from runbooks.fleet import fleet
from runbooks.lease.lease import REFUSED, SAID_AT
from runbooks.library import library
from runbooks.models import UNFINISHED, Breaker, Mode, Run, RunState, StepRun

_CALLED_FOR = (State.OPEN, State.ACKNOWLEDGED)
# Of a run that has not taken its node out yet.
_HELD_BY_MODE = {
    Mode.OFF: "{runbook} is off there: nothing is done. `kintsugi mode set {runbook} shadow`.",
    Mode.SHADOW: "{runbook} is in shadow there: it is written down and nothing is done. To let it"
    " act on some nodes: `kintsugi arming add {runbook} approval --nodes NODES --for 14d --reason"
    " WHY`.",
    Mode.APPROVAL: "{runbook} is in approval there: a person is asked before its first act.",
}


def format_progress(incident: Incident, now: datetime) -> str:
    """What its run does, or what keeps it from it. Empty where none is under way."""
    return format_progress_of(incident, list(get_runs_about(incident)))


def format_prospect(incident_id: int | None, now: datetime, *, stop_file: Path) -> str:
    """What is in the way of what was just asked for, and what lifts it; else what is done. A guard
    that nobody has asked yet says so when its run begins. Empty: there is no such incident."""
    if incident_id is None:
        return ""
    incident = Incident.objects.filter(pk=incident_id).first()
    if incident is None:
        return ""
    stopped_by = fleet.get_stop_reason(stop_file)
    if stopped_by:
        return (
            f"Held by the stop: {stopped_by}. Nothing is drained until it is released"
            " (`kintsugi stop --release`; a stop file: `kintsugi stop --file --release`)."
        )
    breaker = Breaker.objects.filter(closed_at=None).first()
    if breaker is not None:
        return (
            f"Held by the breaker, which {breaker}. Nothing is drained until a person closes it"
            ' (`kintsugi breaker close --reason "WHY"`).'
        )
    progress = format_progress(incident, now)
    if not progress:
        return (
            "No run has begun for it yet: one begins within a sweep, where its runbook's mode lets"
            " it (`kintsugi mode show`) and no other guard holds it; its incident says which."
        )
    run = get_runs_about(incident).first()
    if run is None:
        return progress
    return f"{progress} {_format_next_order(run, now)}".rstrip()


def _format_next_order(run: Run, now: datetime) -> str:
    """What a person may order of a run that waits for people, or whose mode holds it."""
    if run.state == RunState.AWAITING_APPROVAL:
        return f"To approve it: `kintsugi approval give {run.pk}`."
    if run.state == RunState.PAUSED:
        return f"To go on: resume run {run.pk} on its page."
    if run.claimed_at is not None:
        return ""
    mode = fleet.decide_mode(run.runbook, run.node, now).mode
    held = _HELD_BY_MODE.get(mode, "")
    return held.format(runbook=run.runbook)


def get_runs_about(incident: Incident) -> QuerySet[Run]:
    """Its own runs, newest first, and the run of another incident that is on its node now."""
    about = Q(incident=incident)
    if incident.node_id is not None:
        about |= Q(node=incident.node_id, state__in=UNFINISHED)
    return Run.objects.filter(about).select_related("node", "incident").order_by("-pk")


def format_progress_of(incident: Incident, runs: Sequence[Run]) -> str:
    """The same of `get_runs_about` it."""
    own = next((run for run in runs if run.incident_id == incident.pk), None)
    if own is not None and own.state in UNFINISHED:
        return format_run(own)
    if State(incident.state) not in _CALLED_FOR:
        return ""
    if own is not None and own.state == RunState.SHADOWED:
        return format_run(own)
    foreign = next((run for run in runs if run.incident_id != incident.pk), None)
    waits = foreign is not None and Action(incident.action).at_least(Action.RESET_GPU)
    return _format_wait_behind(foreign) if waits and foreign is not None else ""


def format_run(run: Run) -> str:
    """Of a run that is under way, or was written down only."""
    what = f"{get_title(run)} on {run.place}"
    if run.state == RunState.AWAITING_APPROVAL:
        return f"Waits for a person to approve {what}. Nothing is done to the node before."
    if run.state == RunState.PAUSED:
        return f"A person paused {what}. Nothing more is done until it is resumed."
    if run.state == RunState.SHADOWED:
        return f"Shadow mode: wrote down what {what} would do, and did nothing."
    if run.facts.get(REFUSED):
        return f"Does not go on with {what}: {format_wait(run)}"
    return f"Runs {what}. {format_wait(run) or _get_last_text(run)}".strip()


def format_wait(run: Run) -> str:
    """With the time at which it was so: a run looks again when it thinks fit, and says nothing in
    between."""
    said_at = run.facts.get(SAID_AT)
    if not run.waiting_for or not said_at:
        return run.waiting_for
    at = datetime.fromisoformat(said_at)
    return f"{run.waiting_for.removesuffix('.')} (as of {at:%Y-%m-%d %H:%M %Z})."


def get_title(run: Run) -> str:
    book = library.load().get(run.runbook)
    return f"“{book.title}”" if book is not None else run.runbook


def _get_last_text(run: Run) -> str:
    steps = [
        step for step in run.steps.all() if step.text and step.outcome != StepRun.Outcome.REFUSED
    ]
    return steps[-1].text if steps else ""


def _format_wait_behind(run: Run) -> str:
    """A node has one run at a time."""
    return (
        f"Waits for run {run.pk}, which is on {run.place} for incident #{run.incident_id}."
        f" {format_run(run)}"
    )
