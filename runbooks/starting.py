"""Runs for the incidents that call for one. Touches no node: the run's first step does."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from detectors import catalog
from detectors.faults import Action, Component
from incidents import services as incidents
from incidents.lifecycle import CLOSED, State
from incidents.models import Fault, Incident, Node
from runbooks import fleet, library, policy, withdrawing
from runbooks.models import UNFINISHED, Mode, Run, RunState
from runbooks.step import World

_WAITS_FOR_RUN = (State.OPEN, State.ACKNOWLEDGED)
# After these a run comes again only by a person: it ended in asking one, or a person ended it.
_FINAL = frozenset({RunState.FAILED, RunState.ABORTED, RunState.SHADOWED})


def start_due(incident_ids: Iterable[int] | None, *, now: datetime, world: World) -> list[int]:
    """Starts what the incidents call for (None: all open ones) and returns the runs that are due at once.

    One unfinished run per node is a constraint: of several workers that start one, one does.
    """
    waiting = _calling().filter(state__in=_WAITS_FOR_RUN).exclude(node__runs__state__in=UNFINISHED)
    waiting = waiting.exclude(held_until__gt=now)  # a wider cause is suspected; the sweep comes back
    waiting = waiting.exclude(node__name__in=list(incidents.maintained(now)))  # people work there
    if incident_ids is not None:
        waiting = waiting.filter(pk__in=list(incident_ids))
    else:
        _withdraw_unapproved(now)
    started = (_start(incident, now) for incident in waiting.select_related("node", "root_fault").order_by("pk"))
    return [run.pk for run in started if run is not None and run.wake_at is not None and run.wake_at <= now]


def calling_for(node: Node) -> QuerySet[Incident]:
    """Open incidents that call for a runbook on the node."""
    return _calling().exclude(state__in=CLOSED).filter(node=node)


def _calling() -> QuerySet[Incident]:
    return Incident.objects.filter(
        action__in=list(policy.RUNBOOK_FOR), component__in=list(policy.COMPONENTS), node__is_provisional=False
    )


def _withdraw_unapproved(now: datetime) -> None:
    """A run that waits for approval is looked at by no worker: its incident may have ended meanwhile."""
    waiting = Run.objects.filter(state=RunState.AWAITING_APPROVAL)
    for run in waiting.select_related("incident", "node"):
        verdict = withdrawing.consider(State(run.incident.state), is_called_for=is_called_for(run))
        if isinstance(verdict, withdrawing.Withdraw):
            text = f"Run {run.pk}, never approved, is withdrawn, because {verdict.reason}."
            with transaction.atomic():
                values = {"state": RunState.WITHDRAWN, "outcome": text, "finished_at": now}
                if Run.objects.filter(pk=run.pk, state=RunState.AWAITING_APPROVAL).update(**values):
                    incidents.record(run.incident_id, kind="run_withdrawn", text=text, now=now, needs_human="")
                    incidents.note_withdrawal(run.incident_id, text, now)


def _start(incident: Incident, now: datetime) -> Run | None:
    chosen = policy.choose(
        Action(incident.action),
        Component(incident.component),
        is_node=incident.node is not None,
        is_provisional=incident.node is not None and incident.node.is_provisional,
    )
    if isinstance(chosen, policy.NoRunbook) or incident.node is None or is_over(incident):
        return None
    mode = fleet.mode_of(chosen)
    if mode is Mode.OFF:
        return None
    cause = _cause(incident)
    awaits = mode is Mode.APPROVAL
    try:
        with transaction.atomic():
            run = Run.objects.create(
                incident=incident,
                node=incident.node,
                runbook=chosen,
                fault_type=cause.fault_type if cause else incident.fault_type,
                mode=mode,
                state=RunState.AWAITING_APPROVAL if awaits else RunState.RUNNING,
                wake_at=None if awaits else max(now, _held_until(cause) or now),
                facts={"resource": cause.resource if cause else incident.root_resource},
                started_at=now,
            )
            _tell(run, now)
    except IntegrityError:  # another worker's run on this node was first
        return None
    return run


def is_called_for(run: Run) -> bool:
    """Whether the incident's root is still on the run's node, and of a class and action that call for a runbook."""
    incident = run.incident
    return (
        incident.node_id == run.node_id
        and incident.component in policy.COMPONENTS
        and incident.action in policy.RUNBOOK_FOR
    )


def is_over(incident: Incident) -> bool:
    """Whether the incident's last run ended in asking a person, or by one: then no run comes by itself."""
    last = incident.runs.order_by("-pk").first()
    return last is not None and (RunState(last.state) in _FINAL or bool(last.facts.get("handed_over")))


def _cause(incident: Incident) -> Fault | None:
    """The fault that calls for the action: the root, or a member that calls for more."""
    members = Fault.objects.filter(membership__incident=incident, is_active=True).order_by("raised_at", "pk")
    root = incident.root_fault
    if root is not None and root.action == incident.action:
        return root
    return next((fault for fault in members if fault.action == incident.action), root)


def _held_until(cause: Fault | None) -> datetime | None:
    """The end of the fault type's hold-down; mostly it is over before an incident opens."""
    row = catalog.load().get(cause.fault_type) if cause else None
    return cause.observed_at + row.hold_down if row is not None and cause is not None else None


def _tell(run: Run, now: datetime) -> None:
    book = library.load()[run.runbook]
    if run.state == RunState.AWAITING_APPROVAL:
        ask = f"Approve or abort run {run.pk}: {book.title.lower()}, on {run.node.name}."
        text = f"Run {run.pk} waits for approval: Kintsugi would {plan(run)}."
        incidents.record(run.incident_id, kind="approval_asked", text=text, now=now, needs_human=ask)
    elif run.mode == Mode.ARMED and run.wake_at is not None and run.wake_at > now:
        text = f"{book.title} on {run.node.name} begins at {run.wake_at:%H:%M:%S %Z}, unless the fault clears before."
        incidents.record(run.incident_id, kind="run_held", text=text, now=now)


def plan(run: Run) -> str:
    """What the run does, as the end of a sentence that begins with "Kintsugi would"."""
    parts = [step.plan.format(node=run.node.name) for step in library.load()[run.runbook].steps]
    return f"{', '.join(parts[:-1])}, and {parts[-1]}" if len(parts) > 1 else parts[0]
