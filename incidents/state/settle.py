"""What cleared or returned faults mean for their incidents. Always inside the caller's
transaction."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from detectors.faults import ClearRule, Recovery, Role
from incidents.correlation import engine
from incidents.models import Incident, TimelineEntry
from incidents.state.batch import TriageBatch
from incidents.state.cases import FaultCase, IncidentCase, blocks
from incidents.state.transitions import move, tell
from incidents.text.wording import format_clock
from incidents.vocabulary.changes import KINTSUGI, Acted, Change, ChangeKind
from incidents.vocabulary.lifecycle import State, Trigger, get_next_state

NODE_RESTARTED = "the node restarted"
_ATTEMPTS = 3


def settle_touched(batch: TriageBatch) -> list[Change]:
    """The same for the incidents of a batch that it may have settled."""
    touched = [case for case in batch.incidents.values() if case.is_unsettled]
    return settle(touched, batch=batch, now=batch.now) if touched else []


def settle(cases: Iterable[IncidentCase], *, batch: TriageBatch, now: datetime) -> list[Change]:
    """Moves each incident whose faults have all cleared, or have come back."""
    changes: list[Change] = []
    told: list[TimelineEntry] = []
    for case in cases:
        changes.extend(_settle_incident(case, batch, told, now=now))
    tell(told, now)
    return changes


def _settle_incident(
    case: IncidentCase, batch: TriageBatch, told: list[TimelineEntry], *, now: datetime
) -> list[Change]:
    waiting = [fault for fault in case.members if blocks(fault, case.root.row.pk)]
    back = next((fault for fault in waiting if _is_back(fault, case, now)), None)
    if back is not None:
        note = f"{batch.format_fault(back.row)}."
        if _move(case.row, Trigger.FAULT_RETURNED, note=note, told=told, now=now):
            return [Change(case.row.pk, back.row.pk, ChangeKind.RETURNED, note)]
    if any(fault.row.is_active for fault in waiting):
        return []
    if case.row.needs_human:
        # A failed repair asks a person, and its node stays drained: no fault stands there, but
        # service is not back.
        return []
    values = {"restored_at": max((fault.row.cleared_at or now for fault in waiting), default=now)}
    restarted = any(fault.row.cleared_reason.startswith(NODE_RESTARTED) for fault in waiting)
    cured = {"recovery": str(Recovery.NODE_RESTART)} if restarted else {}
    note = (
        f"There were {len(case.members)}; the last ended at {format_clock(values['restored_at'])}."
    )
    if len(case.members) == 1:
        note = ""
    if _move(case.row, Trigger.FAULTS_CLEARED, note=note, told=told, now=now, **values, **cured):
        return [
            Change(case.row.pk, case.root.row.pk, ChangeKind.MONITORING, "all faults have cleared")
        ]
    return []


def _is_back(fault: FaultCase, incident: IncidentCase, now: datetime) -> bool:
    """Whether this batch brought back what the incident was about. What merely still stands has not
    returned."""
    is_here = fault.has_come and fault.row.is_active and not fault.is_held(now)
    return (
        is_here
        and not _is_cause_of_past(fault, incident)
        and engine.is_back(fault.view(), incident.view())
    )


def _is_cause_of_past(fault: FaultCase, incident: IncidentCase) -> bool:
    """A cause that became the root just now and tells of a moment, such as a switch's reboot: what
    it did is known."""
    took_root = any(joined is fault and role is Role.ROOT for joined, role, _, _ in incident.joins)
    return took_root and not incident.is_new and fault.row.clears == str(ClearRule.AFTER_QUIET)


def _move(incident: Incident, trigger: Trigger, *, now: datetime, **values: Any) -> bool:
    """Where the state allows it. Looks again when someone moved the incident between our look and
    our write."""
    for _ in range(_ATTEMPTS):
        if get_next_state(State(incident.state), trigger) is None:
            return False
        if isinstance(move(incident, trigger, actor=KINTSUGI, now=now, **values), Acted):
            return True
        incident.refresh_from_db(fields=["state"])
    return False
