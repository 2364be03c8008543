"""The states of a vendor case and what moves it between them, as one table. Pure: no clock, no
database."""

from __future__ import annotations

from enum import StrEnum


class CaseState(StrEnum):
    """Where the part is, or the case."""

    OPENED = "opened"
    APPROVED = "approved"
    SHIPPED = "shipped"
    RECEIVED = "received"
    INSTALLED = "installed"
    VERIFIED = "verified"
    CLOSED = "closed"


class Move(StrEnum):
    """What happened, or what people say happened."""

    APPROVE = "approve"
    SHIP = "ship"
    RECEIVE = "receive"
    INSTALL = "install"
    VERIFY = "verify"
    DEAD_ON_ARRIVAL = "dead_on_arrival"
    CLOSE = "close"


# Before these the broken part is still in its slot, or nothing is.
WITHOUT_PART = (CaseState.OPENED, CaseState.APPROVED, CaseState.SHIPPED, CaseState.RECEIVED)

# (state, move) -> state. A vendor does not tell every stage: later ones may be entered from each
# earlier one. A part that is dead on arrival sends the case back to the way of the next part;
# nothing else goes back.
TRANSITIONS: dict[tuple[CaseState, Move], CaseState] = {
    (CaseState.OPENED, Move.APPROVE): CaseState.APPROVED,
    **{(state, Move.SHIP): CaseState.SHIPPED for state in WITHOUT_PART[:2]},
    **{(state, Move.RECEIVE): CaseState.RECEIVED for state in WITHOUT_PART[:3]},
    **{(state, Move.INSTALL): CaseState.INSTALLED for state in WITHOUT_PART},
    (CaseState.INSTALLED, Move.VERIFY): CaseState.VERIFIED,
    (CaseState.RECEIVED, Move.DEAD_ON_ARRIVAL): CaseState.SHIPPED,
    (CaseState.INSTALLED, Move.DEAD_ON_ARRIVAL): CaseState.SHIPPED,
    **{
        (state, Move.CLOSE): CaseState.CLOSED
        for state in CaseState
        if state is not CaseState.CLOSED
    },
}


def get_next_state(state: CaseState, move: Move) -> CaseState | None:
    """The state after `move`, or None where it is refused in `state`."""
    return TRANSITIONS.get((state, move))


def list_moves(state: CaseState) -> tuple[Move, ...]:
    """What may happen to a case in `state`, in the order of its life."""
    return tuple(move for move in Move if (state, move) in TRANSITIONS)
