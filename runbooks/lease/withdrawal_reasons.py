"""When a run has lost its reason: its incident was closed, cleared by itself, or went to the
vendor. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from incidents.vocabulary.lifecycle import State

UNWITNESSED = "unwitnessed"
"""The fact of a run that ended since nobody who can be believed sees its fault."""
REFUTED = "refuted"
"""The fact of a run that ended since what can see its faults denied them: their types and
resources."""


@dataclass(frozen=True)
class GoOn:
    """The incident still calls for the run."""


@dataclass(frozen=True)
class Withdraw:
    """`hands_back`: what we drained and never rebooted is resumed."""

    reason: str
    hands_back: bool


_BY_STATE: dict[State, GoOn | Withdraw] = {
    State.OPEN: GoOn(),
    State.ACKNOWLEDGED: GoOn(),
    State.REPAIRING: GoOn(),
    State.MONITORING: Withdraw("its faults have cleared by themselves", hands_back=True),
    # Whoever called the vendor wants the node left as it is.
    State.AWAITING_VENDOR: Withdraw("a person handed it to the vendor", hands_back=False),
    State.RESOLVED: Withdraw("it is resolved", hands_back=True),
    State.FALSE_POSITIVE: Withdraw("it was a false alarm", hands_back=True),
    State.DUPLICATE: Withdraw("it is a duplicate", hands_back=True),
}


STATES = tuple(state for state, verdict in _BY_STATE.items() if isinstance(verdict, Withdraw))


# The cause was found in another machine, or in a part for which taking the node away does not help.
_ELSEWHERE = Withdraw("the cause of its incident lies elsewhere", hands_back=True)


def evaluate(
    state: State,
    *,
    is_called_for: bool = True,
    has_rebooted: bool = False,
    waits_for_part: bool = False,
) -> GoOn | Withdraw:
    """What the incident means for its run, looked at before each step.

    `is_called_for`: the incident's root is still on the run's node and calls for a runbook. A node
    that the run has rebooted is verified and handed back by it all the same. `waits_for_part`: the
    run itself waits for the vendor.
    """
    if state is State.AWAITING_VENDOR and waits_for_part:
        return GoOn()
    if isinstance(_BY_STATE[state], GoOn) and not is_called_for and not has_rebooted:
        return _ELSEWHERE
    return _BY_STATE[state]
