"""Where a fault is, as relations see it: the machine, part or place at which it can meet others.
Pure.

Each function gives the places of one fault; `incidents.correlation.relations` says which of them
belong to which relation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from detectors import resources
from detectors.faults import Component
from incidents.faults.fault_views import MANAGEMENT as MANAGEMENT_NETWORK
from incidents.faults.fault_views import FaultView
from incidents.topology.graph import ALL_NODES, LEAF, MANAGEMENT, NOTHING, SPINE, STORAGE, Graph


@dataclass(frozen=True)
class Surroundings:
    """What relations look at besides the fault. Jobs are resource paths; both maps hold only what
    the batch needs."""

    graph: Graph = field(default_factory=Graph)
    jobs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Machine (`node/gn001`) to the jobs that ran there around the batch's time."""
    machines: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Job to its machines."""
    windows: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Machine to the maintenance windows in force there."""


_FUNCTION = re.compile(r"\.[0-7]$")
Keys = Callable[[FaultView, Surroundings], frozenset[str]]


def some(*values: str | None) -> frozenset[str]:
    return frozenset(value for value in values if value)


def part(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A part, not a whole machine."""
    return NOTHING if fault.resource == fault.owner else some(fault.resource)


def gpu(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The GPU, also where it is told as a PCI device, by whichever of its functions."""
    machine, _, address = fault.resource.partition("/gpu/")
    if not address:
        machine, _, address = fault.resource.partition("/pci/")
    return some(f"{machine}/gpu/{_FUNCTION.sub('.0', address)}") if address else NOTHING


def node_of_gpu(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The node of a GPU that has an address."""
    return some(fault.owner) if "/gpu/" in fault.resource and not _is_unnamed(fault) else NOTHING


def node_of_unnamed_gpu(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The node of a GPU that its line did not name."""
    return some(fault.owner) if _is_unnamed(fault) else NOTHING


def _is_unnamed(fault: FaultView) -> bool:
    return fault.resource == f"{fault.owner}/gpu/{resources.UNKNOWN_HOST}"


def machine(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """What speaks for many machines (`site/...`) is itself alone."""
    return some(fault.resource if fault.owner.startswith("site/") else fault.owner)


def fabric(fault: FaultView, around: Surroundings) -> frozenset[str]:
    is_of_fabric = fault.component in (Component.GPU, Component.NVLINK) and fault.owner.startswith(
        "node/"
    )
    return some(fault.owner) if is_of_fabric else NOTHING


def cable(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """One name for both ends."""
    if not is_link(fault):
        return NOTHING
    far = around.graph.peer(fault.resource)
    return some(min(fault.resource, far) if far else fault.resource)


def module(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The modules at both ends of the cable; a module told as a whole is itself, and those its
    ports are cabled to."""
    graph = around.graph
    ports = graph.ports_of(fault.resource) or some(fault.resource)
    far = {graph.peer(port) or "" for port in ports}
    return some(*(graph.module_of(path) for path in (fault.resource, *ports, *far)))


def link_ends(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The machines at both ends of a link; of all its links where a module is meant."""
    ports = around.graph.ports_of(fault.resource) or some(fault.resource)
    return frozenset(machine for port in ports for machine in around.graph.ends(port))


def is_link(fault: FaultView) -> bool:
    return any(part in fault.resource for part in ("/nic/", "/port/", "/module/"))


def whole_switch(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A fault of one port is none of the switch as a whole."""
    is_whole = fault.owner.startswith("switch/") and not is_link(fault)
    return some(fault.owner) if is_whole else NOTHING


def switches_of_link(fault: FaultView, around: Surroundings) -> frozenset[str]:
    if not is_link(fault):
        return NOTHING
    return frozenset(
        machine for machine in link_ends(fault, around) if machine.startswith("switch/")
    )


def neighbouring_switches(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return around.graph.switches_of(fault.owner)


def of_role(role: str) -> Keys:
    """Cause: a switch as a whole, if it has this role."""

    def place(fault: FaultView, around: Surroundings) -> frozenset[str]:
        return _filter_by_role(whole_switch(fault, around), role, around)

    return place


def _filter_by_role(machines: frozenset[str], role: str, around: Surroundings) -> frozenset[str]:
    return frozenset(machine for machine in machines if around.graph.role(machine) == role)


def leafs(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The leaf of a NIC; of a spine, a whole node or a job all that they hang on."""
    graph = around.graph
    if is_link(fault):
        return _filter_by_role(link_ends(fault, around), LEAF, around)
    machines = around.machines.get(fault.resource, some(fault.owner))
    return frozenset(leaf for machine in machines for leaf in graph.switches_of(machine, LEAF))


def spines(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The spine of an uplink, the spines of a leaf. No host link hangs on one."""
    graph = around.graph
    if is_link(fault):
        return _filter_by_role(link_ends(fault, around), SPINE, around)
    return graph.switches_of(fault.owner, SPINE) if graph.role(fault.owner) == LEAF else NOTHING


def storage_cause(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A storage switch, a server with what it serves, or the file system as a whole."""
    if fault.owner.startswith("storage/"):
        return some(fault.owner)
    if around.graph.is_server(fault.owner):
        return around.graph.file_systems_of(fault.owner)
    return of_role(STORAGE)(fault, around)


def storage_effect(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A storage link: its switch. A node as a client: the switches of its own path, and its file
    systems. A file system as a whole: itself, and the switches between."""
    graph = around.graph
    if fault.owner.startswith("storage/"):
        return graph.path_of(fault.owner) | {fault.owner}
    if is_link(fault):
        return _filter_by_role(link_ends(fault, around), STORAGE, around)
    return graph.storage_switches_of(fault.owner) | graph.file_systems_of(fault.owner)


def rack(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Of the machine; of both machines of a link."""
    return some(*(around.graph.rack_of(machine) for machine in link_ends(fault, around)))


def feed_cause(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return some(fault.owner) if fault.owner.startswith("feed/") else NOTHING


def feeds(fault: FaultView, around: Surroundings) -> frozenset[str]:
    fed = (around.graph.feeds_of(machine) for machine in link_ends(fault, around))
    return feed_cause(fault, around) or NOTHING.union(*fed)


def pod_cause(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return some(fault.owner) if fault.owner.startswith("pod/") else NOTHING


def pods(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Those of the leaf that failed as a whole, or of the leafs at the ends of a link."""
    switches = whole_switch(fault, around) | switches_of_link(fault, around)
    names = {around.graph.pod_of(leaf) for leaf in _filter_by_role(switches, LEAF, around)}
    return pod_cause(fault, around) or frozenset(resources.pod(name) for name in names if name)


def site(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return some(ALL_NODES) if fault.resource == ALL_NODES else NOTHING


def on_site(fault: FaultView, around: Surroundings) -> frozenset[str]:
    is_there = fault.owner.startswith(("node/", "rack/", "feed/"))
    return some(ALL_NODES) if is_there else site(fault, around)


def management_switches(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return around.graph.management_switches_of(fault.owner) | of_role(MANAGEMENT)(fault, around)


def management_cause(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return some(MANAGEMENT_NETWORK) if fault.resource == MANAGEMENT_NETWORK else NOTHING


def management_effect(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return some(MANAGEMENT_NETWORK)


def pause_cause(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A NIC that pauses its leaf's port, the leaf that then pauses its spines, the spines that
    pause other leafs."""
    near = leafs(fault, around) if "/nic/" in fault.resource else NOTHING
    return near.union(
        some(fault.resource), *(around.graph.switches_of(leaf, SPINE) for leaf in near)
    )


def pause_effect(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A port stands still because of what is at the far end of its cable; a NIC because of its
    leaf."""
    if "/nic/" in fault.resource:
        return leafs(fault, around) | some(fault.resource)
    far = around.graph.peer(fault.resource) or ""
    return some(far if far.startswith("node/") else resources.owner(far))


def jobs(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return (
        some(fault.resource) if "/job/" in fault.resource else around.jobs.get(fault.owner, NOTHING)
    )


def windows(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return around.windows.get(fault.owner, NOTHING)
