"""Faults and incidents as correlation looks at them, and what their types say about their cause.
Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import Protocol

from detectors import resources
from detectors.faults import Action, Component, Severity
from detectors.provenance import BELIEVED, Forger
from incidents.vocabulary.lifecycle import State

USER_REPORT = "report.user"

# Fault types by what they say about their cause. Patterns, so that a later type of the same sort
# takes part.
GPU_LOST = ("gpu.xid.79", "gpu.lost")
FOLLOWS_HARDWARE = ("gpu.xid.154", "gpu.count_mismatch", "gpu.unresponsive")
SILENT_TARGET = "target.unreachable"
SILENT_DETECTOR = "detector.silent"
UNREACHABLE = (SILENT_TARGET, SILENT_DETECTOR)
# What a detector is that gives no usable answer on one machine or on all of them.
BLIND_DETECTOR = "detector.blind"
# What many silent targets are when Slurm hears them still, and what it is a fault of.
MANAGEMENT_NETWORK = "network.management_unreachable"
MANAGEMENT = "site/management"
# What only says that somebody was not answered: a dead management switch silences a hundred healthy
# nodes. What is concluded from it says no more, and Slurm's daemon may be behind the same switch.
SILENCES = frozenset(
    {*UNREACHABLE, BLIND_DETECTOR, MANAGEMENT_NETWORK, "slurm.node_not_responding"}
)
NVSWITCH = ("nvlink.sxid.*",)
LINK = (
    *("nic.link.*", "nic.port_error", "nic.module.*", "nic.transceiver.*", "nic.rail.degraded"),
    *("switch.port.*", "switch.transceiver.*"),
)
# What is concluded of a switch of which many links are lost together.
PORTS_LOST = "switch.ports_lost"
# What a switch loses when its neighbour is gone, and what a node loses when its network is.
ROUTING = ("switch.bgp.*", "switch.routing.*")
NETWORK_CLIENT = ("storage.lustre.*", "storage.nfs.*")
# What a driver prints beside a line that says what is wrong: evidence, and nothing to tell anybody
# of.
DETAIL = ("*.detail",)
_IN_THE_MACHINE = frozenset({Component.GPU, Component.NVLINK, Component.NODE, Component.NIC})


@lru_cache(maxsize=8192)
def is_one_of(fault_type: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(fault_type, pattern) for pattern in patterns)


@dataclass(frozen=True)
class FaultView:
    """What correlation looks at in a fault. `occurred_at` is the device's clock, `observed_at`
    ours; `is_believed`: no user of its machine can have written what tells of it; `is_measured`:
    its machine itself was looked at, which a person's report and Slurm's word are not; `is_proved`:
    nobody outside of its machine can have written it."""

    fault_type: str
    resource: str
    component: Component
    severity: Severity
    action: Action
    occurred_at: datetime
    observed_at: datetime
    opens_incident: bool = True
    is_sympathetic: bool = False
    is_active: bool = True
    is_believed: bool = False
    is_measured: bool = False
    is_proved: bool = False

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Worked out once: views are keys of what rules ask again and again."""
        return hash((self.fault_type, self.resource, self.occurred_at))

    @property
    def key(self) -> int:
        return id(self)

    def view(self) -> FaultView:
        return self

    @cached_property
    def owner(self) -> str:
        return resources.owner(self.resource)

    def is_one_of(self, patterns: tuple[str, ...]) -> bool:
        return is_one_of(self.fault_type, patterns)

    @property
    def is_link(self) -> bool:
        return self.is_one_of(LINK)

    @property
    def is_hardware(self) -> bool:
        """A fault inside a machine that can be the cause of others."""
        return (
            self.component in _IN_THE_MACHINE
            and self.opens_incident
            and not (self.is_sympathetic or self.is_link or self.is_one_of(UNREACHABLE))
        )

    @property
    def calls_for_repair(self) -> bool:
        return (
            self.opens_incident
            and not self.is_sympathetic
            and self.action.at_least(Action.RESET_GPU)
        )

    @property
    def is_believed_repair(self) -> bool:
        return self.is_believed and self.calls_for_repair

    @property
    def is_detail(self) -> bool:
        return self.is_one_of(DETAIL)

    @property
    def is_of_switch(self) -> bool:
        """Of a switch as a whole: not of one of its ports, and not what it says of its
        neighbours."""
        return (
            self.resource.startswith("switch/") and not self.is_link and not self.is_one_of(ROUTING)
        )


class StoredFault(Protocol):
    """The columns of a fault that correlation looks at, in whatever form they were read."""

    @property
    def fault_type(self) -> str: ...

    @property
    def resource(self) -> str: ...

    @property
    def component(self) -> str: ...

    @property
    def severity(self) -> str: ...

    @property
    def action(self) -> str: ...

    @property
    def raised_at(self) -> datetime: ...

    @property
    def observed_at(self) -> datetime: ...

    @property
    def is_active(self) -> bool: ...

    @property
    def forger(self) -> str: ...


def view_stored(row: StoredFault, *, opens_incident: bool, is_sympathetic: bool) -> FaultView:
    """A row as correlation looks at it; what its type says of it is given besides."""
    component = Component(row.component)
    severity = Severity(row.severity)
    action = Action(row.action)
    raised_at, observed_at, is_active = row.raised_at, row.observed_at, row.is_active
    is_believed = row.forger in BELIEVED
    is_measured = row.forger == Forger.ROOT.value
    is_proved = row.forger not in ("", Forger.ANYONE.value)
    return FaultView(
        row.fault_type,
        row.resource,
        component,
        severity,
        action,
        raised_at,
        observed_at,
        opens_incident=opens_incident,
        is_sympathetic=is_sympathetic,
        is_active=is_active,
        is_believed=is_believed,
        is_measured=is_measured,
        is_proved=is_proved,
    )


class Seen(Protocol):
    """A fault as correlation may ask for it: the view of one, or what has one. `key` is its own
    among the faults of one transaction; `owner` is its machine."""

    @property
    def key(self) -> int: ...

    @property
    def fault_type(self) -> str: ...

    @property
    def owner(self) -> str: ...

    def view(self) -> FaultView: ...


@dataclass(frozen=True)
class IncidentView:
    """An open incident as correlation sees it. `key` is the caller's own; `members` include the
    root.

    `is_fixed`: a person chose its root, so that no rule takes it away. `machines` are those of its
    members; empty: to be asked of them. The incident that people were told of first is the one that
    stays when two become one.
    """

    key: int
    state: State
    root: FaultView
    members: Sequence[Seen] = ()
    has_platform_signal: bool = True
    is_fixed: bool = False
    is_told: bool = True
    is_written: bool = True
    opened_at: datetime | None = None
    machines: Collection[str] = ()

    def view(self) -> IncidentView:
        return self

    @property
    def owner(self) -> str:
        return self.root.owner

    @property
    def is_on_one_machine(self) -> bool:
        return len(self.machines or {member.view().owner for member in self.members}) < 2

    @property
    def age(self) -> tuple[bool, bool, bool, datetime, str, str]:
        """What people know longest comes first; what seems over and what they cannot know yet come
        last."""
        since = self.opened_at or self.root.observed_at
        is_over = self.state is State.MONITORING
        return (
            not self.is_written,
            is_over,
            not self.is_told,
            since,
            self.root.resource,
            self.root.fault_type,
        )
