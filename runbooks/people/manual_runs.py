"""A run that a person asks for, such as the return of a node that hands have mended. Guards are
asked all the same."""

from __future__ import annotations

from datetime import datetime

from django.db import IntegrityError, transaction

from detectors.faults import Action
from incidents.models import Incident
from incidents.reserve import decommissions
from incidents.state import transitions
from incidents.vocabulary.lifecycle import State
from runbooks.engine import start
from runbooks.fleet import fleet
from runbooks.library import library
from runbooks.models import Mode, Run
from runbooks.node.idle_moment import WANTED_NOW
from runbooks.node.witnesses import VOUCHED, WITNESS, WITNESSED_ACTION, WITNESSED_SEVERITY
from runbooks.outcomes import Controlled, ControlRefused, Outcome

_MAY_START = (State.OPEN, State.ACKNOWLEDGED)


def start_manual_run(
    runbook: str, incident_id: int, *, actor: str, note: str, now: datetime
) -> Outcome:
    """Starts it for the incident; who asks for a run has approved it. In shadow it is written down
    only."""
    book = library.load().get(runbook)
    if book is None:
        return ControlRefused(
            f"There is no runbook {runbook}; there are {', '.join(library.load())}."
        )
    incident = Incident.objects.select_related("node", "root_fault").filter(pk=incident_id).first()
    if incident is None:
        return ControlRefused(f"There is no incident {incident_id}.")
    refusal = _find_objection(incident, needs_node=book.needs_node)
    mode = fleet.decide_mode(runbook, incident.node, now).mode
    if refusal or mode is Mode.OFF:
        return ControlRefused(
            refusal or f"{runbook} is off: `kintsugi mode list` says how far it may go."
        )
    root = incident.root_fault
    run = start.build_run(incident, book, mode, now=now)
    run.fault_type = root.fault_type if root is not None else incident.fault_type
    vouched = {
        WITNESS: f"{actor}, who asked for the run",
        WITNESSED_ACTION: Action.VENDOR.value,
        WITNESSED_SEVERITY: incident.severity,
        VOUCHED: True,
    }
    run.facts = {
        "resource": incident.root_resource,
        "why": f"{actor} asked for it",
        WANTED_NOW: True,
        **vouched,
    }
    run.approved_by = actor[:150]
    try:
        with transaction.atomic():
            run.save(force_insert=True)
            begun = f"Run {run.pk}, {book.title.lower()}, on {run.place} is started by {actor}."
            text = f"{begun} {note}".strip()
            transitions.record(
                incident.pk, kind="run_approved", text=text, actor=actor, now=now, needs_human=""
            )
    except IntegrityError:
        return ControlRefused("Another run has begun on that node meanwhile.")
    return Controlled(text)


def _find_objection(incident: Incident, *, needs_node: bool) -> str:
    """Why no run can be started for it; empty when one can."""
    if State(incident.state) not in _MAY_START:
        return (
            f"Incident {incident.pk} is {incident.state.replace('_', ' ')}: a run is started for an"
            " open one."
        )
    if incident.node is not None and incident.node.is_provisional:
        return (
            f"{incident.node.name} is not in the inventory, and what is not in the inventory is"
            " never acted upon."
        )
    if needs_node and incident.node is None:
        return f"Incident {incident.pk} is on no node of the inventory."
    leaving = ""
    if incident.node is not None:
        leaving = decommissions.get_decommissions().get(incident.node.name, "")
    if needs_node and leaving:
        return f"{leaving} No run is started on it: `kintsugi decommission end` says that it stays."
    busy = Run.objects.unfinished()
    is_busy = busy.filter(incident=incident).exists()
    if is_busy or (needs_node and busy.filter(node=incident.node).exists()):
        return "A run is under way there: abort it first, or let it end."
    return ""
