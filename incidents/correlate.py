"""Decides which incident a new fault belongs to, by one table of rules. Pure: no clock, no database.

`RULES` is read from the top; the first rule that fits one of the open incidents decides. Rules that need a whole
topology (spine to leaf, rail against rail) join the table when they come; they see the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from detectors import resources
from detectors.faults import Action, Component, Role, Severity
from incidents.lifecycle import State
from incidents.topology import Topology

USER_REPORT = "report.user"

# Fault types by what they say about their cause. Patterns, so that a later type of the same sort takes part.
GPU_LOST = ("gpu.xid.79", "gpu.lost")
FOLLOWS_HARDWARE = ("gpu.xid.154", "gpu.count_mismatch", "gpu.unresponsive")
UNREACHABLE = ("target.unreachable", "detector.silent")
NVSWITCH = ("nvlink.sxid.*",)
LINK = ("nic.link.*", "nic.port_error", "nic.module.*", "nic.transceiver.*", "switch.port.*", "switch.transceiver.*")
# What a switch loses when its neighbour is gone, and what a node loses when its network is.
ROUTING = ("switch.bgp.*", "switch.routing.*")
NETWORK_CLIENT = ("storage.lustre.*", "storage.nfs.*")
_IN_THE_MACHINE = frozenset({Component.GPU, Component.NVLINK, Component.NODE, Component.NIC})


def is_networked(fault_type: str, resource: str) -> bool:
    """Whether a fault's cause may lie in another machine, so that cables are looked at."""
    return resource.startswith("switch/") or _is_one_of(fault_type, LINK) or _is_one_of(fault_type, NETWORK_CLIENT)


def _is_one_of(fault_type: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(fault_type, pattern) for pattern in patterns)


@dataclass(frozen=True)
class FaultView:
    """What correlation looks at in a fault. `occurred_at` is the device's clock, `observed_at` ours."""

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

    @property
    def owner(self) -> str:
        return resources.owner(self.resource)

    def is_one_of(self, patterns: Sequence[str]) -> bool:
        return _is_one_of(self.fault_type, patterns)

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
    def is_of_switch(self) -> bool:
        """Of a switch as a whole: not of one of its ports, and not what it says of its neighbours."""
        return self.resource.startswith("switch/") and not self.is_link and not self.is_one_of(ROUTING)


@dataclass(frozen=True)
class IncidentView:
    """An open incident as correlation sees it. `key` is the caller's own; `members` include the root."""

    key: int
    state: State
    root: FaultView
    members: tuple[FaultView, ...] = ()
    has_platform_signal: bool = True

    @property
    def owner(self) -> str:
        return self.root.owner


@dataclass(frozen=True)
class Opens:
    reason: str


@dataclass(frozen=True)
class Joins:
    """`role` ROOT: the fault takes the root's place, and the old root becomes a symptom."""

    incident: int
    role: Role
    rule: str
    reason: str


@dataclass(frozen=True)
class Keeps:
    """Recorded as a fault, without an incident of its own for now."""

    reason: str


Placement = Opens | Joins | Keeps


@dataclass(frozen=True)
class Setting:
    """What the rules may ask besides the two faults."""

    topology: Topology
    window: timedelta


@dataclass(frozen=True)
class Rule:
    """Joins a fault to an incident when `fits`. `because` ends the sentence that people read."""

    name: str
    because: str
    fits: Callable[[FaultView, IncidentView, Setting], bool]
    role: Callable[[FaultView, IncidentView], Role]


def place(fault: FaultView, incidents: Sequence[IncidentView], setting: Setting) -> Placement:
    """Where a new fault belongs among the open incidents of its neighbourhood.

    Of several incidents that fit one rule the one with the same resource, then the one nearest in time wins.
    """
    nearest = sorted(
        incidents, key=lambda incident: (incident.root.resource != fault.resource, _apart(fault, incident.root))
    )
    for rule in RULES:
        for incident in nearest:
            if rule.fits(fault, incident, setting):
                return Joins(incident.key, rule.role(fault, incident), rule.name, _reason(rule, fault, incident))
    if fault.opens_incident:
        return Opens("no open incident explains it")
    return Keeps("recorded: a fault of this type opens no incident by itself")


def _reason(rule: Rule, fault: FaultView, incident: IncidentView) -> str:
    root = incident.root
    seconds = (fault.occurred_at - root.occurred_at).total_seconds()
    when = f"{abs(seconds):.0f} s {'before' if seconds < 0 else 'after'}"
    return f"{when} {root.fault_type} on {root.resource}: {rule.because}"[:255]


def _apart(one: FaultView, other: FaultView) -> timedelta:
    """Time between two faults. Clocks of two machines differ, so there our own clock may speak too."""
    by_device = abs(one.occurred_at - other.occurred_at)
    if one.owner == other.owner and _has_device_clock(one) and _has_device_clock(other):
        return by_device
    return min(by_device, abs(one.observed_at - other.observed_at))


def _has_device_clock(fault: FaultView) -> bool:
    return fault.occurred_at != fault.observed_at


def _is_near(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    return _apart(fault, incident.root) <= setting.window


def _is_same_machine(fault: FaultView, incident: IncidentView) -> bool:
    return fault.owner == incident.owner


# Who is root ---------------------------------------------------------------------------------------------------


def _symptom(fault: FaultView, incident: IncidentView) -> Role:
    return Role.SYMPTOM


def _root(fault: FaultView, incident: IncidentView) -> Role:
    return Role.ROOT


def _by_strength(fault: FaultView, incident: IncidentView) -> Role:
    return Role.ROOT if takes_root(fault, incident.root) else Role.SYMPTOM


def takes_root(fault: FaultView, root: FaultView) -> bool:
    """The first hardware fault stays the root; what only follows, echoes or was merely told gives way to it."""
    if not fault.opens_incident or fault.is_sympathetic or fault.fault_type == USER_REPORT:
        return False
    if root.fault_type == USER_REPORT or root.is_sympathetic or not root.opens_incident:
        return True
    if fault.is_one_of(FOLLOWS_HARDWARE) or fault.is_one_of(UNREACHABLE):
        return False
    if root.is_one_of(FOLLOWS_HARDWARE) or root.is_one_of(UNREACHABLE):
        return fault.is_hardware
    if root.is_one_of(NVSWITCH):
        return fault.is_one_of(GPU_LOST)
    if root.is_one_of(NETWORK_CLIENT) or root.is_one_of(ROUTING):
        return fault.is_hardware or fault.is_link or fault.is_of_switch
    if root.is_link:
        return fault.is_hardware or fault.is_of_switch
    return root.action.rank <= Action.WATCH.rank < fault.action.rank


# When a rule fits ----------------------------------------------------------------------------------------------


def _confirms_report(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    return (
        not incident.has_platform_signal
        and fault.fault_type != USER_REPORT
        and _is_same_machine(fault, incident)
        and _is_near(fault, incident, setting)
    )


def _is_reported(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    """People tell late: what still stands on their node is taken to be what they mean."""
    return (
        fault.fault_type == USER_REPORT
        and _is_same_machine(fault, incident)
        and (incident.root.is_active or _is_near(fault, incident, setting))
    )


def _is_switch_behind(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    return (
        fault.is_of_switch and _depends_on(incident.root, fault.owner, setting) and _is_near(fault, incident, setting)
    )


def _is_behind_switch(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    return (
        incident.root.is_of_switch
        and _depends_on(fault, incident.owner, setting)
        and _is_near(fault, incident, setting)
    )


def _depends_on(fault: FaultView, switch: str, setting: Setting) -> bool:
    """A link that ends at the switch; a neighbour's routing or a node's network file system that needs it."""
    if fault.is_link:
        return switch in setting.topology.ends(fault.resource)
    if fault.is_one_of(ROUTING) or fault.is_one_of(NETWORK_CLIENT):
        return switch in setting.topology.neighbours(fault.owner)
    return False


def _is_link_beside_link(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    """Two links that share a machine: both ends of one cable, the links of one switch, the links of one node."""
    return (
        fault.is_link
        and incident.root.is_link
        and not setting.topology.ends(fault.resource).isdisjoint(setting.topology.ends(incident.root.resource))
        and _is_near(fault, incident, setting)
    )


def _is_far_end_of_repair(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    far = setting.topology.peer(fault.resource)
    return (
        fault.is_link
        and incident.state is State.REPAIRING
        and far is not None
        and resources.owner(far) == incident.owner
    )


def _is_same_part(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    """A part, not a whole machine: `node/gn001` alone says too little to ignore the window."""
    return fault.resource == incident.root.resource and fault.resource != fault.owner


def _is_count_after_loss(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    return (
        fault.fault_type == "gpu.count_mismatch"
        and _is_same_machine(fault, incident)
        and any(member.is_one_of(GPU_LOST) for member in incident.members)
    )


def _follows(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    return (
        (fault.is_one_of(FOLLOWS_HARDWARE) or fault.is_sympathetic)
        and _is_same_machine(fault, incident)
        and incident.root.component in (Component.GPU, Component.NVLINK, Component.NODE)
        and _is_near(fault, incident, setting)
    )


def _is_nvswitch_and_lost_gpu(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    pair = (fault, incident.root)
    return (
        _is_same_machine(fault, incident)
        and any(one.is_one_of(NVSWITCH) for one in pair)
        and any(one.is_one_of(GPU_LOST) for one in pair)
        and _is_near(fault, incident, setting)
    )


def _is_transient_of_repair(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    return (
        incident.state is State.REPAIRING
        and _is_same_machine(fault, incident)
        and (fault.is_link or fault.is_one_of(UNREACHABLE) or not fault.opens_incident)
    )


def _is_same_switch(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    return (
        fault.owner.startswith("switch/") and _is_same_machine(fault, incident) and _is_near(fault, incident, setting)
    )


def _is_same_node(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    """Not when the incident spans machines: then its cause lies outside of this node."""
    return (
        fault.owner.startswith("node/")
        and _is_same_machine(fault, incident)
        and all(member.owner == incident.owner for member in incident.members)
        and _is_near(fault, incident, setting)
    )


RULES: tuple[Rule, ...] = (
    Rule("confirms_report", "the platform sees what a user reported on this machine", _confirms_report, _by_strength),
    Rule("user_report", "a user reported trouble on this machine", _is_reported, _symptom),
    Rule("switch_behind", "it ran over this switch", _is_switch_behind, _root),
    Rule("behind_switch", "it runs over that switch", _is_behind_switch, _symptom),
    Rule("link_beside_link", "both links end at one machine", _is_link_beside_link, _symptom),
    Rule("far_end_of_repair", "the machine at the other end is being repaired", _is_far_end_of_repair, _symptom),
    Rule("same_part", "the same part, whose incident is still open", _is_same_part, _by_strength),
    Rule("count_after_loss", "the count is short by the GPU that was lost", _is_count_after_loss, _symptom),
    Rule("nvswitch_and_lost_gpu", "NVSwitches see the links of the lost GPU", _is_nvswitch_and_lost_gpu, _by_strength),
    Rule("follows_hardware", "a consequence or an echo of the hardware fault on this node", _follows, _symptom),
    Rule("during_repair", "the machine is being repaired", _is_transient_of_repair, _symptom),
    Rule("same_switch", "the same switch within the join window", _is_same_switch, _by_strength),
    Rule("same_node", "the same node within the join window", _is_same_node, _by_strength),
)
