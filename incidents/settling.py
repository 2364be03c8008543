"""What cleared or returned faults mean for their incidents. Always inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from detectors.faults import Recovery
from incidents.acting import move
from incidents.board import KINTSUGI, Board
from incidents.cases import IncidentCase, blocks
from incidents.changes import Acted, Change, ChangeKind
from incidents.lifecycle import State, Trigger

NODE_RESTARTED = "the node restarted"


def settle(cases: Iterable[IncidentCase], *, board: Board, now: datetime) -> list[Change]:
    """Moves each incident whose faults have all cleared, or have come back."""
    changes: list[Change] = []
    for case in cases:
        changes.extend(_settled(case, board, now))
    return changes


def _settled(case: IncidentCase, board: Board, now: datetime) -> list[Change]:
    incident = case.row
    waiting = [fault for fault in case.members if blocks(fault, case.root.row.pk)]
    standing = [fault for fault in waiting if fault.row.is_active]
    state = State(incident.state)
    back = [
        fault for fault in standing if incident.restored_at is None or fault.row.last_seen_at > incident.restored_at
    ]
    if back and state is State.MONITORING:
        what = back[0].row
        note = f"{what.fault_type} on {what.resource}."
        if isinstance(move(incident, Trigger.FAULT_RETURNED, actor=KINTSUGI, note=note, now=now), Acted):
            return [Change(incident.pk, what.pk, ChangeKind.RETURNED, note)]
    if not standing and state in (State.OPEN, State.ACKNOWLEDGED):
        ended = max((fault.row.cleared_at or now for fault in waiting), default=now)
        changes = {"restored_at": ended}
        restarted = any(fault.row.cleared_reason.startswith(NODE_RESTARTED) for fault in waiting)
        values = {**changes, "recovery": str(Recovery.NODE_RESTART)} if restarted else changes
        moved = move(incident, Trigger.FAULTS_CLEARED, actor=KINTSUGI, now=now, **values)
        if isinstance(moved, Acted):
            return [Change(incident.pk, case.root.row.pk, ChangeKind.MONITORING, "all faults have cleared")]
    return []
