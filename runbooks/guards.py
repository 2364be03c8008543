"""What may be done to the fleet right now. Pure: the fleet and the time are arguments.

A drained fleet is worse than a missed fault: each guard is asked before each act that disrupts or drains, and the first
that refuses says why and when it is asked again. docs/guards.md has each with its default and its source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from runbooks import guards_causes, guards_history, guards_room
from runbooks.guards_history import REBOOT_INTERVAL, SUSPECT_WITHIN
from runbooks.guards_room import cap
from runbooks.verdicts import (
    Act,
    Allowed,
    Bounds,
    Fleet,
    PastReboot,
    Refusal,
    Refused,
    Request,
    WiderCause,
)

__all__ = [
    "GUARDS",
    "REBOOT_INTERVAL",
    "SUSPECT_WITHIN",
    "Act",
    "Allowed",
    "Bounds",
    "Fleet",
    "Guard",
    "PastReboot",
    "Refusal",
    "Refused",
    "Request",
    "Verdict",
    "WiderCause",
    "cap",
    "check",
    "explain",
]

# When what stands in the way is asked again: our choice, often enough that a released switch is felt at once.
_ASK_AGAIN = timedelta(minutes=1)


@dataclass(frozen=True)
class Guard:
    """`asks` completes "Is it refused because ...?"; `check` answers None where it has nothing against it."""

    name: str
    asks: str
    check: Callable[[Request, Fleet, datetime], Refused | None]


@dataclass(frozen=True)
class Verdict:
    """One guard's answer; `refused` None: nothing against it."""

    guard: Guard
    refused: Refused | None


def _stopped(request: Request, fleet: Fleet, now: datetime) -> Refused | None:
    if not fleet.stopped:
        return None
    return Refused(Refusal.STOPPED, f"The stop switch is engaged: {fleet.stopped}", now + _ASK_AGAIN)


def _mode(request: Request, fleet: Fleet, now: datetime) -> Refused | None:
    if fleet.mode not in ("off", "shadow"):
        return None
    return Refused(Refusal.MODE, f"The runbook's mode is now {fleet.mode}", now + _ASK_AGAIN)


def _maintenance(request: Request, fleet: Fleet, now: datetime) -> Refused | None:
    if request.node not in fleet.maintained:
        return None
    return Refused(Refusal.MAINTENANCE, fleet.maintained[request.node], now + _ASK_AGAIN)


def _decommissioned(request: Request, fleet: Fleet, now: datetime) -> Refused | None:
    if request.node not in fleet.decommissioned:
        return None
    reason = fleet.decommissioned[request.node].removesuffix(".")
    return Refused(Refusal.DECOMMISSIONED, reason, now + _ASK_AGAIN)


# In the order in which they are asked: what a person has decided first, what may pass soon before what may not.
GUARDS: tuple[Guard, ...] = (
    Guard("stop switch", "somebody has stopped everything", _stopped),
    Guard("mode", "the runbook or the site may not act", _mode),
    Guard("decommissioned", "the node is being taken away for good", _decommissioned),
    Guard("breaker", "too much of the fleet has turned bad at once", guards_causes.breaker),
    Guard("hold", "faults that came together are still being counted", guards_causes.held),
    Guard("wider cause", "something that the node hangs on has an incident of its own", guards_causes.wider),
    Guard("unreachable alone", "nothing but silence speaks against the node", guards_causes.unreachable_alone),
    Guard("maintenance", "people work on the node", _maintenance),
    Guard("rate", "one fault type took out too many nodes within the hour", guards_history.rate),
    Guard("cap", "too many nodes of a partition are out", guards_room.partitions),
    Guard("pod floor", "too few nodes of the pod would be left", guards_room.pod),
    Guard("job floor", "too few nodes would be left for the largest job", guards_room.jobs),
    Guard("reboots", "the node was restarted lately", guards_history.reboots),
)


def check(request: Request, fleet: Fleet, now: datetime) -> Allowed | Refused:
    """Asked before each act that disrupts or drains: the first refusal counts."""
    for guard in GUARDS:
        refused = guard.check(request, fleet, now)
        if refused is not None:
            return refused
    return Allowed()


def explain(request: Request, fleet: Fleet, now: datetime) -> list[Verdict]:
    """What each guard says, not only the first that refuses: for people who want to know all that stands in the way."""
    return [Verdict(guard, guard.check(request, fleet, now)) for guard in GUARDS]
