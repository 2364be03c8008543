"""A node that still stands drained by a run of an incident that people have closed since: nobody
works on it, and nothing gives it back. A person is asked for it, once.

A run that is under way when its incident is closed is withdrawn, and says what becomes of its node.
One that had ended before, since it needed a person, left the node to them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from detectors.slurm import drain_reasons
from detectors.slurm.output import NodeState
from incidents.inventory import node_states
from incidents.models import FleetLook, Incident, Quarantine, TimelineEntry
from incidents.reserve import decommissions
from incidents.state import transitions
from incidents.state.outbox import DRAIN_LEFT
from incidents.vocabulary.lifecycle import CLOSED, State
from runbooks.models import Run
from runbooks.slurm import ownership
from runbooks.slurm.ownership import Owner

# Whoever closes an incident mostly resumes its node in the same minute (our choice).
_ASKS_AFTER = timedelta(minutes=1)


def sweep(now: datetime) -> int:
    """About how many nodes people were asked."""
    drained = node_states.load_out_by_reason(drain_reasons.OURS)
    return sum(_ask_if_left(state, now) for state in drained)


def _ask_if_left(state: NodeState, now: datetime) -> bool:
    number = ownership.parse_incident(state.reason)
    run = _find_run(number, state) if number is not None else None
    if run is None or not _is_left(run, now):
        return False
    node, incident = run.place, run.incident
    text = (
        f"{node} stays drained, though incident #{incident.pk} is closed: run {run.pk} had ended"
        " before and gives nothing back."
    )
    ask = f"Resume {node} when it is well: scontrol update NodeName={node} State=RESUME"
    with transaction.atomic():
        Incident.objects.select_for_update().get(pk=incident.pk)
        if TimelineEntry.objects.filter(incident=incident, kind=DRAIN_LEFT).exists():
            return False
        transitions.record(incident.pk, kind=DRAIN_LEFT, text=text, now=now, needs_human=ask)
    return True


def _find_run(number: int, state: NodeState) -> Run | None:
    """The last run of that incident on the node, where it wrote what stands there."""
    runs = Run.objects.filter(incident=number, node__name=state.name).order_by("-pk")
    for run in runs.select_related("incident", "node"):
        written = ownership.load_written(run.facts)
        if ownership.get_owner(state, number, written) is Owner.THIS_INCIDENT:
            return run
    return None


def _is_left(run: Run, now: datetime) -> bool:
    """Its incident was closed after it had ended, the node was looked at since, and nobody else
    holds it."""
    closed_at = run.incident.closed_at
    if State(run.incident.state) not in CLOSED or closed_at is None:
        return False
    if run.finished_at is None or run.finished_at > closed_at or now < closed_at + _ASKS_AFTER:
        return False
    if not FleetLook.objects.filter(answered_at__gt=closed_at).exists():
        return False
    if Run.objects.unfinished().filter(node=run.node).exists():
        return False
    is_set_aside = Quarantine.objects.filter(node=run.node, ended_at=None).exists()
    return not is_set_aside and run.place not in decommissions.get_decommissions()
