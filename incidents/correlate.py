"""Decides which incident a new fault belongs to, by one table of rules. Pure: no clock, no database.

`RULES` is read from the top; the first rule that fits one of the open incidents decides. Rules that need a whole
topology (spine to leaf, rail against rail) join the table when they come; they see the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from detectors import resources
from detectors.faults import Action, Component, Role
from incidents import wording
from incidents.lifecycle import State
from incidents.topology import Topology
from incidents.views import (
    FOLLOWS_HARDWARE,
    GPU_LOST,
    MANAGEMENT_NETWORK,
    NETWORK_CLIENT,
    NVSWITCH,
    ROUTING,
    SILENT_TARGET,
    UNREACHABLE,
    USER_REPORT,
    FaultView,
    IncidentView,
)

_GPUS = frozenset({Component.GPU, Component.NVLINK})
# What no GPU breaks, and what breaks no GPU: cards and cables, file systems, settings, the room.
_BESIDE_GPUS = frozenset(Component) - _GPUS - {Component.NODE, Component.UNKNOWN}


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
    said: Callable[[str], str] = wording.resource
    """A resource path as people say it."""


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
            if takes(incident, fault) and rule.fits(fault, incident, setting):
                reason = _reason(rule, fault, incident, setting)
                return Joins(incident.key, rule.role(fault, incident), rule.name, reason)
    if fault.opens_incident:
        return Opens("no open incident explains it")
    return Keeps("recorded: a fault of this type opens no incident by itself")


def takes(incident: IncidentView, fault: FaultView) -> bool:
    """Whether the incident is open to this fault at all.

    One that is watched after its repair is not, for a fault that calls for a repair of its own: hidden there, the
    fault would start none, and the repaired part did nothing to be repaired again.
    """
    return incident.state is not State.MONITORING or not fault.calls_for_repair or is_back(fault, incident)


def is_back(fault: FaultView, incident: IncidentView) -> bool:
    """Whether this is what the incident was about, come again: its root's own fault, or what called for its repair.

    The latter is a hardware fault that asks for as much as the incident did, on the root's part, or one that was
    there before. A symptom, or a fault of another part, is not.
    """
    root = incident.root
    if _identity(fault) == _identity(root):
        return True
    asked = max(member.action.rank for member in (root, *incident.members) if member.is_hardware or member is root)
    if not fault.is_hardware or fault.action.rank < asked:
        return False
    is_known = any(_identity(fault) == _identity(member) for member in incident.members)
    return is_known or (fault.resource == root.resource and fault.resource != fault.owner)


def _identity(fault: FaultView) -> tuple[str, str]:
    return fault.fault_type, fault.resource


def _reason(rule: Rule, fault: FaultView, incident: IncidentView, setting: Setting) -> str:
    root = incident.root
    seconds = (fault.occurred_at - root.occurred_at).total_seconds()
    when = f"{wording.duration(timedelta(seconds=abs(seconds)))} {'before' if seconds < 0 else 'after'}"
    if abs(seconds) < 1:
        when = "at the same moment as"
    return f"{when} {root.fault_type} on {setting.said(root.resource)}: {rule.because}"[:255]


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
    """A link that ends at the switch; a neighbour's routing or a node's network file system that needs it.

    A person may tell of a node's link without knowing which: then any of its cables counts.
    """
    if fault.is_link and fault.resource != fault.owner:
        return switch in setting.topology.ends(fault.resource)
    if fault.is_link or fault.is_one_of(ROUTING) or fault.is_one_of(NETWORK_CLIENT):
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


def _is_behind_management(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    """As long as that network is down, whatever falls silent later is taken to be behind it."""
    return (
        fault.fault_type == SILENT_TARGET
        and incident.root.fault_type == MANAGEMENT_NETWORK
        and (incident.root.is_active or _is_near(fault, incident, setting))
    )


def _is_same_switch(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    return (
        fault.owner.startswith("switch/") and _is_same_machine(fault, incident) and _is_near(fault, incident, setting)
    )


def _is_same_node(fault: FaultView, incident: IncidentView, setting: Setting) -> bool:
    """Not when the incident spans machines: then its cause lies outside of this node. Nor do a GPU and a network
    card, a file system or a setting explain each other, for being in one node."""
    return (
        fault.owner.startswith("node/")
        and not _are_strangers(fault, incident.root)
        and _is_same_machine(fault, incident)
        and all(member.owner == incident.owner for member in incident.members)
        and _is_near(fault, incident, setting)
    )


def _are_strangers(one: FaultView, other: FaultView) -> bool:
    pair = {one.component, other.component}
    return not (pair.isdisjoint(_GPUS) or pair.isdisjoint(_BESIDE_GPUS))


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
    Rule("behind_management", "it is reached over that network", _is_behind_management, _symptom),
    Rule("same_switch", "the same switch within the join window", _is_same_switch, _by_strength),
    Rule("same_node", "the same node within the join window", _is_same_node, _by_strength),
)
