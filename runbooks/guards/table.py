"""What may be done to the fleet right now. Pure: the fleet and the time are arguments.

A drained fleet is worse than a missed fault: each guard is asked before each act that disrupts or
drains, and the first that refuses says why and when it is asked again. docs/guards.md has each with
its default and its source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from runbooks.guards import causes, history, room
from runbooks.guards.history import REBOOT_INTERVAL, SUSPECT_WITHIN
from runbooks.guards.room import compute_cap
from runbooks.guards.verdicts import (
    Act,
    Allowed,
    Bounds,
    Fleet,
    GuardRefused,
    PastReboot,
    Refusal,
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
    "GuardRefused",
    "GuardVerdict",
    "PastReboot",
    "Refusal",
    "Request",
    "WiderCause",
    "check",
    "compute_cap",
    "explain",
    "find_passed_limit",
    "refuse_for_maintenance",
]

# When what stands in the way is asked again: our choice, often enough that a released switch is
# felt at once.
_ASK_AGAIN = timedelta(minutes=1)


@dataclass(frozen=True)
class Guard:
    """`asks` completes "Is it refused because ...?"; `check` answers None where it has nothing
    against it."""

    name: str
    asks: str
    check: Callable[[Request, Fleet, datetime], GuardRefused | None]


@dataclass(frozen=True)
class GuardVerdict:
    """One guard's answer; `refused` None: nothing against it."""

    guard: Guard
    refused: GuardRefused | None


def _check_stop_switch(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    if not fleet.stopped:
        return None
    return GuardRefused(
        Refusal.STOPPED, f"The stop switch is engaged: {fleet.stopped}", now + _ASK_AGAIN
    )


def _check_mode(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    if fleet.mode not in ("off", "shadow"):
        return None
    why = f" by {fleet.mode_why}" if fleet.mode_why else ""
    text = f"The runbook's mode is now {fleet.mode}{why}"
    return GuardRefused(Refusal.MODE, text, now + _ASK_AGAIN)


def refuse_for_maintenance(sentence: str, now: datetime) -> GuardRefused | None:
    """`sentence` says until when and why people work on a node; empty where nobody does."""
    return GuardRefused(Refusal.MAINTENANCE, sentence, now + _ASK_AGAIN) if sentence else None


def _check_maintenance(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    return refuse_for_maintenance(fleet.maintained.get(request.node, ""), now)


def _check_decommissioned(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    if request.node not in fleet.decommissioned:
        return None
    reason = fleet.decommissioned[request.node].removesuffix(".")
    return GuardRefused(Refusal.DECOMMISSIONED, reason, now + _ASK_AGAIN)


# In the order in which they are asked: what a person has decided first, what may pass soon before
# what may not.
GUARDS: tuple[Guard, ...] = (
    Guard("stop switch", "somebody has stopped everything", _check_stop_switch),
    Guard("mode", "the runbook or the site may not act", _check_mode),
    Guard("decommissioned", "the node is being taken away for good", _check_decommissioned),
    Guard("breaker", "too much of the fleet has turned bad at once", causes.check_breaker),
    Guard("hold", "faults that came together are still being counted", causes.check_hold),
    Guard(
        "wider cause",
        "what the node hangs on has an incident that may be the cause",
        causes.check_wider_cause,
    ),
    Guard(
        "unreachable alone",
        "nothing but silence speaks against the node",
        causes.check_unreachable_alone,
    ),
    Guard("maintenance", "people work on the node", _check_maintenance),
    Guard("rate", "one fault type took out too many nodes within the hour", history.check_rate),
    Guard("cap", "too many nodes of a partition are out", room.check_partitions),
    Guard("pod floor", "too few nodes of the pod would be left", room.check_pod),
    Guard("job floor", "too few nodes would be left for the largest job", room.check_jobs),
    Guard("reboots", "the node was restarted lately", history.check_reboots),
)


def check(request: Request, fleet: Fleet, now: datetime) -> Allowed | GuardRefused:
    """Asked before each act that disrupts or drains: the first refusal counts."""
    for guard in GUARDS:
        refused = guard.check(request, fleet, now)
        if refused is not None:
            return refused
    return Allowed()


_LIMITS_ON_NUMBER = (history.check_rate, room.check_partitions, room.check_pod, room.check_jobs)


def find_passed_limit(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    """What would have held the node back if it were of use to jobs; None where nothing would, or
    it is."""
    if not room.is_drain_of_unusable(request, fleet):
        return None
    as_if_usable = replace(fleet, unusable="")
    refusals = (limit(request, as_if_usable, now) for limit in _LIMITS_ON_NUMBER)
    return next((refused for refused in refusals if refused is not None), None)


def explain(request: Request, fleet: Fleet, now: datetime) -> list[GuardVerdict]:
    """What each guard says, not only the first that refuses: for people who want to know all that
    stands in the way."""
    return [GuardVerdict(guard, guard.check(request, fleet, now)) for guard in GUARDS]
