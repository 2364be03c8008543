"""Guards on causes: where the fault may not be the node's own, nothing is done to the node.
Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from incidents.faults.fault_views import SILENCES
from runbooks.guards.verdicts import (
    Act,
    Bounds,
    Fleet,
    GuardRefused,
    Refusal,
    Request,
    format_node_names,
)

_ASK_AGAIN = timedelta(minutes=1)
_MOST_TOLD = 5
# What brings a node back that has left service already: the breaker lets it through.
_RECOVERS = (Act.RESTART_UNITS, Act.REBOOT, Act.RESET_GPU, Act.POWER_CYCLE)


def is_tripped(fleet: Fleet) -> bool:
    """More than the share of the fleet turned bad, and more nodes than the cap would let go of
    anyway."""
    return is_too_many(len(fleet.turned_bad), len(fleet.nodes), bounds=fleet.bounds)


def is_too_many(bad: int, node_count: int, *, bounds: Bounds) -> bool:
    return bad > max(bounds.cap_nodes, node_count * bounds.breaker_share)


def check_breaker(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    """Trips here, at once, and stays open until a person closes it."""
    if not fleet.breaker and not is_tripped(fleet):
        return None
    state = fleet.nodes.get(request.node)
    if request.act in _RECOVERS and state is not None and state.is_draining:
        return None
    why = fleet.breaker or format_trip(fleet.turned_bad, len(fleet.nodes), bounds=fleet.bounds)
    return GuardRefused(
        Refusal.BREAKER, f"The breaker is open: {why.rstrip('.')}", now + _ASK_AGAIN
    )


def format_trip(bad: frozenset[str], node_count: int, *, bounds: Bounds) -> str:
    """Why the breaker trips."""
    minutes = round(bounds.breaker_window.total_seconds() / 60)
    turned_bad = f"{len(bad)} of {node_count} nodes turned bad within {minutes} min"
    return f"{turned_bad} ({format_node_names(bad)}), and the limit is {bounds.breaker_share:.0%}"


def check_hold(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    if fleet.held_until is None or fleet.held_until <= now:
        return None
    return GuardRefused(
        Refusal.HELD,
        f"A wider cause is suspected: {fleet.held_reason.rstrip('.')}",
        fleet.held_until,
    )


def check_wider_cause(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    """What the node hangs on has an incident that is not restored, and that may bring about such a
    fault."""
    if not fleet.causes:
        return None
    text = "; ".join(cause.text for cause in fleet.causes[:_MOST_TOLD])
    return GuardRefused(
        Refusal.WIDER_CAUSE, f"A wider cause is suspected: {text}", now + _ASK_AGAIN
    )


def check_unreachable_alone(request: Request, fleet: Fleet, now: datetime) -> GuardRefused | None:
    if request.fault_type not in SILENCES or fleet.active_faults - SILENCES:
        return None
    reason = (
        f"Nothing but silence speaks against {request.node} ({request.fault_type}): that says"
        " nothing of its health, and Kintsugi does nothing to it for that alone"
    )
    return GuardRefused(Refusal.UNREACHABLE_ALONE, reason, now + _ASK_AGAIN)
