"""What may be done to the fleet right now. Pure: the fleet and the time are arguments.

A drained fleet is worse than a missed fault: the cap counts every node that is out, whoever took it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from detectors.slurm_output import NodeState

# At most this many nodes of a partition are out, and at most this share of it (issue 2, section 5).
CAP = 5
SHARE = 0.05
# After two reboots for one fault the hardware is suspect (DESIGN, section 5, rule 5): one a day, then a person.
REBOOT_INTERVAL = timedelta(hours=24)
_ASK_AGAIN = timedelta(minutes=1)


class Act(StrEnum):
    DRAIN = "drain"
    REQUEUE = "requeue"
    REBOOT = "reboot"


class Refusal(StrEnum):
    STOPPED = "stopped"
    MODE = "mode"
    CAP = "cap"
    REBOOTED_LATELY = "rebooted_lately"
    FAULT_RETURNED = "fault_returned"
    MAINTENANCE = "maintenance"
    HELD = "held"


@dataclass(frozen=True)
class Request:
    """What a run asks for: an act on a node, because of a fault type."""

    act: Act
    node: str
    fault_type: str


@dataclass(frozen=True)
class PastReboot:
    """A reboot that a run asked for, whether or not its outcome is known."""

    node: str
    fault_type: str
    at: datetime


@dataclass(frozen=True)
class Fleet:
    """`nodes` as Slurm shows them; `claimed` are nodes that other unfinished runs have taken out or are about to;
    `stopped` says who engaged the stop switch and why, empty when nobody did; `mode` is the runbook's now.
    `maintained`: nodes that people work on as planned, each with a sentence that says until when and why.
    `held_until`: no act for this run's incident before, as `held_reason` says: a wider cause is suspected."""

    nodes: Mapping[str, NodeState]
    claimed: frozenset[str] = frozenset()
    reboots: tuple[PastReboot, ...] = ()
    stopped: str = ""
    mode: str = "armed"
    maintained: Mapping[str, str] = field(default_factory=dict)
    held_until: datetime | None = None
    held_reason: str = ""


@dataclass(frozen=True)
class Allowed:
    """Go on."""


@dataclass(frozen=True)
class Refused:
    """Not now, and why. `ask_again_at` None: never by itself; a person is asked."""

    kind: Refusal
    reason: str
    ask_again_at: datetime | None = field(default=None)


def cap(partition_size: int) -> int:
    """How many nodes of a partition may be out at once: min(5, max(1, floor(5 %)))."""
    return min(CAP, max(1, int(partition_size * SHARE)))


def check(request: Request, fleet: Fleet, now: datetime) -> Allowed | Refused:
    """Asked before each act that disrupts or drains."""
    again = now + _ASK_AGAIN
    if fleet.stopped:
        return Refused(Refusal.STOPPED, f"The stop switch is engaged: {fleet.stopped}", again)
    if fleet.mode in ("off", "shadow"):
        return Refused(Refusal.MODE, f"The runbook's mode is now {fleet.mode}", again)
    if fleet.held_until is not None and fleet.held_until > now:
        return Refused(Refusal.HELD, f"A wider cause is suspected: {fleet.held_reason.rstrip('.')}", fleet.held_until)
    if request.node in fleet.maintained:
        return Refused(Refusal.MAINTENANCE, fleet.maintained[request.node], again)
    if request.act is Act.DRAIN:
        return _check_cap(request, fleet, again)
    if request.act is Act.REBOOT:
        return _check_reboots(request, fleet, now)
    return Allowed()


def _check_cap(request: Request, fleet: Fleet, again: datetime) -> Allowed | Refused:
    state = fleet.nodes.get(request.node)
    for partition in state.partitions if state else ():
        members = {name for name, node in fleet.nodes.items() if partition in node.partitions}
        limit = cap(len(members))
        claimed = (fleet.claimed & members) - {request.node}
        out = {name for name in members if fleet.nodes[name].is_out} | claimed
        # A node that is out already takes nothing more away; what our runs do at once stays capped all the same.
        taken = claimed if request.node in out else out
        if len(taken) >= limit:
            names = ", ".join(sorted(taken)[:CAP]) + (" ..." if len(taken) > CAP else "")
            reason = (
                f"{len(taken)} of {len(members)} nodes of partition {partition} are out ({names}), and the cap is"
                f" {limit}: draining {request.node} would pass it"
            )
            return Refused(Refusal.CAP, reason, again)
    return Allowed()


def _check_reboots(request: Request, fleet: Fleet, now: datetime) -> Allowed | Refused:
    lately = [past for past in fleet.reboots if past.node == request.node and now - past.at < REBOOT_INTERVAL]
    if not lately:
        return Allowed()
    last = max(lately, key=lambda past: past.at)
    if any(past.fault_type == request.fault_type for past in lately):
        reason = (
            f"{request.node} was rebooted for {request.fault_type} at {last.at:%Y-%m-%d %H:%M %Z}, and the fault is"
            " back within 24 h: the hardware is suspect"
        )
        return Refused(Refusal.FAULT_RETURNED, reason)
    reason = f"{request.node} was rebooted at {last.at:%Y-%m-%d %H:%M %Z}; a node is rebooted once in 24 h"
    return Refused(Refusal.REBOOTED_LATELY, reason, last.at + REBOOT_INTERVAL)
