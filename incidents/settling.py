"""What cleared or returned faults mean for their incidents. Always inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from detectors.faults import Recovery
from incidents.acting import move
from incidents.board import Board
from incidents.cases import IncidentCase, blocks
from incidents.changes import Acted, Change, ChangeKind
from incidents.lifecycle import State, Trigger, next_state
from incidents.models import Incident
from incidents.wording import resource as spoken
from incidents.writing import KINTSUGI

NODE_RESTARTED = "the node restarted"
_ATTEMPTS = 3


def settle(cases: Iterable[IncidentCase], *, board: Board, now: datetime) -> list[Change]:
    """Moves each incident whose faults have all cleared, or have come back."""
    changes: list[Change] = []
    for case in cases:
        changes.extend(_settled(case, board, now))
    return changes


def _settled(case: IncidentCase, board: Board, now: datetime) -> list[Change]:
    waiting = [fault for fault in case.members if blocks(fault, case.root.row.pk)]
    standing = [fault for fault in waiting if fault.row.is_active]
    if standing:
        restored_at = case.row.restored_at
        back = [fault for fault in standing if restored_at is None or fault.row.last_seen_at > restored_at]
        if not back:  # it stands, but was not seen since the repair: it has not returned
            return []
        what = back[0].row
        note = f"{what.fault_type} on {spoken(what.resource)}."
        if _moved(case.row, Trigger.FAULT_RETURNED, note=note, now=now):
            return [Change(case.row.pk, what.pk, ChangeKind.RETURNED, note)]
        return []
    if case.row.needs_human:
        # A failed repair asks a person, and its node stays drained: no fault stands there, but service is not back.
        return []
    values = {"restored_at": max((fault.row.cleared_at or now for fault in waiting), default=now)}
    restarted = any(fault.row.cleared_reason.startswith(NODE_RESTARTED) for fault in waiting)
    cured = {"recovery": str(Recovery.NODE_RESTART)} if restarted else {}
    if _moved(case.row, Trigger.FAULTS_CLEARED, now=now, **values, **cured):
        return [Change(case.row.pk, case.root.row.pk, ChangeKind.MONITORING, "all faults have cleared")]
    return []


def _moved(incident: Incident, trigger: Trigger, *, now: datetime, **values: Any) -> bool:
    """Where the state allows it. Looks again when someone moved the incident between our look and our write."""
    for _ in range(_ATTEMPTS):
        if next_state(State(incident.state), trigger) is None:
            return False
        if isinstance(move(incident, trigger, actor=KINTSUGI, now=now, **values), Acted):
            return True
        incident.refresh_from_db(fields=["state"])
    return False
