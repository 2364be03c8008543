"""What is being done about an incident now, in words: computed when it is read, of runs as they
stand. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.models import Q, QuerySet

from detectors.faults import Action
from incidents.models import Incident
from incidents.vocabulary.lifecycle import State
from runbooks.lease.lease import REFUSED, SAID_AT
from runbooks.library import library
from runbooks.models import UNFINISHED, Run, RunState, StepRun

_CALLED_FOR = (State.OPEN, State.ACKNOWLEDGED)


def format_progress(incident: Incident, now: datetime) -> str:
    """What its run does, or what keeps it from it. Empty where none is under way."""
    return format_progress_of(incident, list(get_runs_about(incident)))


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
