"""Repairs that wait: while a wider cause is suspected, nothing behind it is drained or rebooted.
Starts nothing.

Changes incidents of a board; the board writes them, and the guards ask before each step.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from detectors.faults import Action
from incidents.faults.fault_views import FOLLOWS_HARDWARE
from incidents.models import Decision, Incident
from incidents.state.board import Board
from incidents.state.cases import Entry, IncidentCase
from incidents.text.wording import clock
from incidents.vocabulary.lifecycle import State

# Our choice: what is suspected is found, or not, within this time; a node that is broken by itself
# waits no longer.
LONGEST = timedelta(minutes=10)
_REPAIRS = [str(action) for action in Action if action.at_least(Action.RESET_GPU)]
_MAY_WAIT = [state.value for state in (State.OPEN, State.ACKNOWLEDGED, State.REPAIRING)]
_LONGEST_REASON = 255


def hold(
    board: Board,
    machines: Collection[str],
    *,
    until: datetime,
    reason: str,
    rule: str,
    holds_hardware: bool = True,
) -> list[IncidentCase]:
    """Lets the repairs on these machines wait; returns those that wait from now on. Told once, not
    at each extension.

    `holds_hardware` False: those whose root is a node's own hardware go on.
    """
    young = Incident.objects.filter(opened_at__gt=board.now - LONGEST)  # an older one waits no more
    rows = young.filter(
        owner__in=machines, state__in=_MAY_WAIT, action__in=_REPAIRS, node__isnull=False
    )
    board.read_incidents(rows.values_list("pk", flat=True))
    held = []
    for case in list(board.incidents.values()):
        if case.row.owner in machines and _waits(case, holds_hardware=holds_hardware):
            end = min(until, case.row.opened_at + LONGEST)
            if end > board.now and _hold(board, case, end, reason=reason, rule=rule):
                held.append(case)
    return held


def _waits(case: IncidentCase, *, holds_hardware: bool) -> bool:
    row = case.row
    calls = row.action in _REPAIRS and row.state in _MAY_WAIT and row.owner.startswith("node/")
    root = case.root.view()
    return calls and (holds_hardware or not root.is_hardware or root.is_one_of(FOLLOWS_HARDWARE))


def _hold(board: Board, case: IncidentCase, until: datetime, *, reason: str, rule: str) -> bool:
    """Whether this is new to the incident."""
    row = case.row
    was_held = row.held_until is not None and row.held_until > board.now
    if was_held and row.held_until is not None and row.held_until >= until:
        return False
    row.held_until, row.held_reason = until, reason[:_LONGEST_REASON]
    case.is_changed = True
    if was_held:
        return False
    text = f"No repair before {clock(until)}: {reason}"
    case.entries.append(Entry("repair_held", text, board.now))
    board.decisions.append(
        Decision(
            fault=case.root.row,
            incident=row,
            kind=Decision.Kind.HELD,
            rule=rule,
            text=text[:500],
            until=until,
            recorded_at=board.now,
        )
    )
    return True
