"""The states of an incident and what moves it between them, as one table. Pure: no clock, no
database.

A fault is active or cleared, and detectors write that; the incident's state is written by people
and runbooks only. Silencing is neither.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    REPAIRING = "repairing"
    MONITORING = "monitoring"
    AWAITING_VENDOR = "awaiting_vendor"
    RESOLVED = "resolved"
    FALSE_POSITIVE = "false_positive"
    DUPLICATE = "duplicate"


class Trigger(StrEnum):
    ACKNOWLEDGE = "acknowledge"
    CONFIRM = "confirm"
    REPAIR_STARTED = "repair_started"
    REPAIR_SUCCEEDED = "repair_succeeded"
    REPAIR_FAILED = "repair_failed"
    REPAIR_WITHDRAWN = "repair_withdrawn"
    HANDED_TO_VENDOR = "handed_to_vendor"
    FAULTS_CLEARED = "faults_cleared"
    FAULT_RETURNED = "fault_returned"
    QUIET_ELAPSED = "quiet_elapsed"
    RESOLVE = "resolve"
    MARK_FALSE_POSITIVE = "mark_false_positive"
    MARK_DUPLICATE = "mark_duplicate"


CLOSED = frozenset({State.RESOLVED, State.FALSE_POSITIVE, State.DUPLICATE})
OPEN = frozenset(State) - CLOSED

_WORKING = (
    State.OPEN,
    State.ACKNOWLEDGED,
    State.REPAIRING,
    State.MONITORING,
    State.AWAITING_VENDOR,
)

# (state, trigger) -> state. What is not here is refused; `docs/reference/contracts.md` shows the
# same table.
TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.OPEN, Trigger.ACKNOWLEDGE): State.ACKNOWLEDGED,
    # Taken by a person while Kintsugi or the vendor works on it: that goes on.
    **{
        (s, Trigger.ACKNOWLEDGE): s
        for s in (State.REPAIRING, State.MONITORING, State.AWAITING_VENDOR)
    },
    **{(state, Trigger.CONFIRM): state for state in _WORKING},
    (State.OPEN, Trigger.REPAIR_STARTED): State.REPAIRING,
    (State.ACKNOWLEDGED, Trigger.REPAIR_STARTED): State.REPAIRING,
    (State.AWAITING_VENDOR, Trigger.REPAIR_STARTED): State.REPAIRING,
    (State.REPAIRING, Trigger.REPAIR_SUCCEEDED): State.MONITORING,
    (State.REPAIRING, Trigger.REPAIR_FAILED): State.OPEN,
    (State.REPAIRING, Trigger.REPAIR_WITHDRAWN): State.OPEN,
    **{
        (state, Trigger.HANDED_TO_VENDOR): State.AWAITING_VENDOR
        for state in _WORKING
        if state != State.AWAITING_VENDOR
    },
    (State.OPEN, Trigger.FAULTS_CLEARED): State.MONITORING,
    (State.ACKNOWLEDGED, Trigger.FAULTS_CLEARED): State.MONITORING,
    # A reboot silences a broken part; only a person knows that the vendor replaced it.
    (State.MONITORING, Trigger.FAULT_RETURNED): State.OPEN,
    (State.MONITORING, Trigger.QUIET_ELAPSED): State.RESOLVED,
    **{(state, Trigger.RESOLVE): State.RESOLVED for state in _WORKING},
    **{(state, Trigger.MARK_FALSE_POSITIVE): State.FALSE_POSITIVE for state in _WORKING},
    **{(state, Trigger.MARK_DUPLICATE): State.DUPLICATE for state in _WORKING},
    # An engineer may learn the truth after the fact.
    (State.RESOLVED, Trigger.MARK_FALSE_POSITIVE): State.FALSE_POSITIVE,
    (State.RESOLVED, Trigger.MARK_DUPLICATE): State.DUPLICATE,
}


def get_next_state(state: State, trigger: Trigger) -> State | None:
    """The state after `trigger`, or None where the trigger is refused in `state`."""
    return TRANSITIONS.get((state, trigger))
