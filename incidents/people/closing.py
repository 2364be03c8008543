"""What people do to an incident, closing it among it: what was measured does not end with a false
positive, whose root may be a text that anybody wrote."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction

from detectors import provenance
from detectors.provenance import BELIEVED, Transport
from incidents.db import upsert
from incidents.models import Fault, Incident
from incidents.people import edit
from incidents.polling.last_polls import get_last_polls
from incidents.state import transitions
from incidents.vocabulary.changes import Acted, Refused
from incidents.vocabulary.lifecycle import Trigger

MEASURED = "It was measured, and stays open until that is mended."


def act(
    incident_id: int, trigger: Trigger, *, actor: str, note: str = "", now: datetime, **changes: Any
) -> Acted | Refused:
    """As `incidents.state.transitions.act`. A false positive first lets go of the members that are
    active and were measured: they become an incident of their own in the same transaction, which
    `Acted.text` tells."""
    if trigger is not Trigger.MARK_FALSE_POSITIVE:
        return transitions.act(incident_id, trigger, actor=actor, note=note, now=now, **changes)
    with transaction.atomic():
        upsert.lock_placement()
        text = _split_off_measured(incident_id, actor=actor, now=now)
        outcome = transitions.act(incident_id, trigger, actor=actor, note=note, now=now, **changes)
        if isinstance(outcome, Refused):
            transaction.set_rollback(True)
            return outcome
    return Acted(outcome.state, text)


def _split_off_measured(incident_id: int, *, actor: str, now: datetime) -> str:
    """What was split off, as a sentence; empty where nothing was. The root stays: of that one the
    person has spoken."""
    incident = Incident.objects.open().filter(pk=incident_id).first()
    if incident is None or incident.root_fault_id is None:
        return ""
    members = [link.fault for link in edit.filter_members(incident_id) if link.fault.is_active]
    others = [fault for fault in members if fault.pk != incident.root_fault_id]
    polled_at = get_last_polls([fault.pk for fault in others])
    measured = [fault for fault in others if fault.forger in BELIEVED or fault.pk in polled_at]
    if not measured:
        return ""
    # What others were concluded from is their cause. Without one, whatever asks for most.
    concluded = [fault.pk for fault in measured if _is_concluded(fault)]
    outcome = edit.split(
        incident_id,
        [fault.pk for fault in measured],
        root_id=concluded[0] if concluded else None,
        actor=actor,
        note=MEASURED,
        now=now,
    )
    if isinstance(outcome, Refused):
        return ""
    count = "1 fault" if len(measured) == 1 else f"{len(measured)} faults"
    first = measured[0]
    return (
        f"{count} of it that were measured and stand are incident #{outcome.incident} now, among"
        f" them {first.fault_type} on {first.resource}: if that is wrong too, close that incident."
    )


def _is_concluded(fault: Fault) -> bool:
    told_by = provenance.from_wire(fault.best_provenance)
    return told_by.transport is Transport.CONCLUDED
