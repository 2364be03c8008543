"""Guards on causes: where the fault may not be the node's own, nothing is done to the node. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from runbooks.verdicts import Act, Bounds, Fleet, Refusal, Refused, Request, named

_ASK_AGAIN = timedelta(minutes=1)
_MOST_TOLD = 5
# What only says that somebody was not answered: a dead management switch silences a hundred healthy nodes (DESIGN, 5,
# rule 7). What is concluded from it says no more, and Slurm's daemon may be behind the same switch.
SILENCES = frozenset(
    {
        "target.unreachable",
        "detector.silent",
        "detector.blind",
        "network.management_unreachable",
        "slurm.node_not_responding",
    }
)
# What brings a node back that has left service already: the breaker lets it through.
_RECOVERS = (Act.REBOOT, Act.RESET_GPU, Act.POWER_CYCLE)


def trips(fleet: Fleet) -> bool:
    """More than the share of the fleet turned bad, and more nodes than the cap would let go of anyway."""
    return is_too_many(len(fleet.turned_bad), len(fleet.nodes), bounds=fleet.bounds)


def is_too_many(bad: int, of: int, *, bounds: Bounds) -> bool:
    return bad > max(bounds.cap_nodes, of * bounds.breaker_share)


def breaker(request: Request, fleet: Fleet, now: datetime) -> Refused | None:
    """Trips here, at once, and stays open until a person closes it."""
    if not fleet.breaker and not trips(fleet):
        return None
    state = fleet.nodes.get(request.node)
    if request.act in _RECOVERS and state is not None and state.is_draining:
        return None
    why = fleet.breaker or said(fleet.turned_bad, len(fleet.nodes), bounds=fleet.bounds)
    return Refused(Refusal.BREAKER, f"The breaker is open: {why.rstrip('.')}", now + _ASK_AGAIN)


def said(bad: frozenset[str], of: int, *, bounds: Bounds) -> str:
    """Why the breaker trips."""
    minutes = round(bounds.breaker_window.total_seconds() / 60)
    return (
        f"{len(bad)} of {of} nodes turned bad within {minutes} min ({named(bad)}), and the limit is"
        f" {bounds.breaker_share:.0%}"
    )


def held(request: Request, fleet: Fleet, now: datetime) -> Refused | None:
    if fleet.held_until is None or fleet.held_until <= now:
        return None
    return Refused(Refusal.HELD, f"A wider cause is suspected: {fleet.held_reason.rstrip('.')}", fleet.held_until)


def wider(request: Request, fleet: Fleet, now: datetime) -> Refused | None:
    """An open incident of a switch, a rack, a feed, a file system, the site or a job that the node hangs on."""
    standing = [cause for cause in fleet.causes if cause.until is None or cause.until > now]
    if not standing:
        return None
    again = min((cause.until for cause in standing if cause.until is not None), default=now + _ASK_AGAIN)
    text = "; ".join(cause.text for cause in standing[:_MOST_TOLD])
    return Refused(Refusal.WIDER_CAUSE, f"A wider cause is suspected: {text}", min(again, now + _ASK_AGAIN))


def unreachable_alone(request: Request, fleet: Fleet, now: datetime) -> Refused | None:
    if request.fault_type not in SILENCES or fleet.standing - SILENCES:
        return None
    reason = (
        f"Nothing but silence speaks against {request.node} ({request.fault_type}): that says nothing of its health,"
        " and Kintsugi does nothing to it for that alone"
    )
    return Refused(Refusal.UNREACHABLE_ALONE, reason, now + _ASK_AGAIN)
