"""What the guards are asked, what they are told of the fleet, and what they answer. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from detectors.slurm.output import NodeState
from runbooks.slurm.demands import Demand

_SHOWN = 5


class Act(StrEnum):
    DRAIN = "drain"
    REQUEUE = "requeue"
    REBOOT = "reboot"
    RESTART_UNITS = "restart_units"
    RESET_GPU = "reset_gpu"
    POWER_CYCLE = "power_cycle"
    SWAP_SPARE = "swap_spare"
    LEND = "lend"


class Refusal(StrEnum):
    STOPPED = "stopped"
    MODE = "mode"
    BREAKER = "breaker"
    HELD = "held"
    WIDER_CAUSE = "wider_cause"
    UNREACHABLE_ALONE = "unreachable_alone"
    MAINTENANCE = "maintenance"
    DECOMMISSIONED = "decommissioned"
    RATE = "rate"
    CAP = "cap"
    POD_FLOOR = "pod_floor"
    JOB_FLOOR = "job_floor"
    REBOOTED_LATELY = "rebooted_lately"
    FAULT_RETURNED = "fault_returned"


ROOM = frozenset({Refusal.RATE, Refusal.CAP, Refusal.POD_FLOOR, Refusal.JOB_FLOOR})
"""What passes when nodes come back, or with time."""


@dataclass(frozen=True)
class Bounds:
    """How far Kintsugi may go at this site; the settings' values. Shares are of 1.

    `cap_nodes`, `cap_share`: the smaller of both is how many nodes of a partition are out at most.
    All are our choice, each with its reason in docs/guards.md.
    """

    cap_nodes: int = 5
    cap_share: float = 0.05
    pod_floor: float = 0.9
    per_hour: int = 10
    breaker_share: float = 0.1
    breaker_window: timedelta = timedelta(minutes=10)
    approval_above: int = 5
    approval_time: timedelta = timedelta(hours=1)


DEFAULT_BOUNDS = Bounds()


@dataclass(frozen=True)
class Request:
    """What a run asks for: an act on a node, because of a fault type.

    `is_unusable`: the fault is critical, so that the node serves no job as it is.
    """

    act: Act
    node: str
    fault_type: str
    is_unusable: bool = False


@dataclass(frozen=True)
class PastReboot:
    """A reboot or a power cycle that a run asked for, whether or not its outcome is known."""

    node: str
    fault_type: str
    at: datetime
    act: Act = Act.REBOOT


@dataclass(frozen=True)
class WiderCause:
    """An incident of something that the node hangs on: it is not restored, and may bring about such
    a fault."""

    text: str


@dataclass(frozen=True)
class Fleet:
    """`nodes` as Slurm shows them; `claimed` are nodes that other unfinished runs have taken out or
    are about to, and `just_ended` those whose run has ended a moment ago, since Slurm may have been
    read before; `is_claimed` says whether this run has been let take its node out already.

    `stopped` says who engaged the stop switch and why, empty when nobody did; `mode` is the
    runbook's there now, and `mode_why` names the arming that says so, by its number `arming`;
    `breaker` says since when and why the breaker is open, and `turned_bad` are the nodes that
    turned bad within its window. `maintained`: nodes that people work on as planned, each with a
    sentence that says until when and why. `decommissioned`: nodes that are being taken away for
    good, each with a sentence that says by whom and why. `held_until`: no act for this run's
    incident before, as `held_reason` says; `causes`: what may lie behind its fault.
    `active_faults`: types of faults that stand on the node. `begun`: when other runs for this fault
    type took nodes out, within the hour. `pods`: the pod of each node. `demands`: jobs that run and
    wait.

    `unusable` names the fault of the request's node that a witness has seen and that leaves it of
    no use to any job; empty where there is none. `ahead`: nodes of graver runs that wait for room.
    `yielding`: nodes of lesser runs that only wait for their jobs' end. `booted_at`: when the
    request's node began to run, as it was last seen.
    """

    nodes: Mapping[str, NodeState]
    claimed: frozenset[str] = frozenset()
    just_ended: frozenset[str] = frozenset()
    is_claimed: bool = True
    reboots: tuple[PastReboot, ...] = ()
    stopped: str = ""
    mode: str = "armed"
    mode_why: str = ""
    arming: int | None = None
    breaker: str = ""
    turned_bad: frozenset[str] = frozenset()
    maintained: Mapping[str, str] = field(default_factory=dict)
    decommissioned: Mapping[str, str] = field(default_factory=dict)
    held_until: datetime | None = None
    held_reason: str = ""
    causes: tuple[WiderCause, ...] = ()
    active_faults: frozenset[str] = frozenset()
    begun: tuple[datetime, ...] = ()
    per_hour: int | None = None
    pods: Mapping[str, str] = field(default_factory=dict)
    demands: tuple[Demand, ...] = ()
    unusable: str = ""
    ahead: frozenset[str] = frozenset()
    yielding: frozenset[str] = frozenset()
    booted_at: datetime | None = None
    bounds: Bounds = DEFAULT_BOUNDS

    def is_out(self, node: str) -> bool:
        """Takes no jobs by Slurm's word, whoever decided so; what Slurm does not know is not in."""
        state = self.nodes.get(node)
        return state is None or state.is_out


@dataclass(frozen=True)
class Allowed:
    """Go on."""


@dataclass(frozen=True)
class GuardRefused:
    """Not now, and why. `ask_again_at` None: never by itself; a person is asked."""

    kind: Refusal
    reason: str
    ask_again_at: datetime | None = field(default=None)


def format_node_names(nodes: Collection[str]) -> str:
    """The first five, for a sentence."""
    return ", ".join(sorted(nodes)[:_SHOWN]) + (" ..." if len(nodes) > _SHOWN else "")
