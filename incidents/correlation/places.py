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
from incidents.topology.graph import (
    ALL_NODES,
    ALL_SPINES,
    ALL_STORAGE_SWITCHES,
    ALL_SWITCHES,
    LEAF,
    MANAGEMENT,
    NOTHING,
    SPINE,
    STORAGE,
    Graph,
)


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


def keep_known(*values: str | None) -> frozenset[str]:
    return frozenset(value for value in values if value)


def get_part(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A part, not a whole machine."""
    return NOTHING if fault.resource == fault.owner else keep_known(fault.resource)


def get_gpu(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The GPU, also where it is told as a PCI device, by whichever of its functions."""
    machine, _, address = fault.resource.partition("/gpu/")
    if not address:
        machine, _, address = fault.resource.partition("/pci/")
    return keep_known(f"{machine}/gpu/{_FUNCTION.sub('.0', address)}") if address else NOTHING


def get_node_of_gpu(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The node of a GPU that has an address."""
    return (
        keep_known(fault.owner) if "/gpu/" in fault.resource and not _is_unnamed(fault) else NOTHING
    )


def get_node_of_unnamed_gpu(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The node of a GPU that its line did not name."""
    return keep_known(fault.owner) if _is_unnamed(fault) else NOTHING


def _is_unnamed(fault: FaultView) -> bool:
    return fault.resource == f"{fault.owner}/gpu/{resources.UNKNOWN_HOST}"


def get_machine(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """What speaks for many machines (`site/...`) is itself alone."""
    return keep_known(fault.resource if fault.owner.startswith("site/") else fault.owner)


def get_fabric(fault: FaultView, around: Surroundings) -> frozenset[str]:
    is_of_fabric = fault.component in (Component.GPU, Component.NVLINK) and fault.owner.startswith(
        "node/"
    )
    return keep_known(fault.owner) if is_of_fabric else NOTHING


def get_cable(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """One name for both ends."""
    if not is_link(fault):
        return NOTHING
    far = around.graph.find_peer(fault.resource)
    return keep_known(min(fault.resource, far) if far else fault.resource)


def get_modules(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The modules at both ends of the cable; a module told as a whole is itself, and those its
    ports are cabled to."""
    graph = around.graph
    ports = graph.get_ports(fault.resource) or keep_known(fault.resource)
    far = {graph.find_peer(port) or "" for port in ports}
    return keep_known(*(graph.find_module(path) for path in (fault.resource, *ports, *far)))


def get_link_ends(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The machines at both ends of a link; of all its links where a module is meant."""
    ports = around.graph.get_ports(fault.resource) or keep_known(fault.resource)
    return frozenset(machine for port in ports for machine in around.graph.ends(port))


def is_link(fault: FaultView) -> bool:
    return any(part in fault.resource for part in ("/nic/", "/port/", "/module/"))


def get_whole_switch(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A fault of one port is none of the switch as a whole."""
    is_whole = fault.owner.startswith("switch/") and not is_link(fault)
    return keep_known(fault.owner) if is_whole else NOTHING


def get_switches_of_link(fault: FaultView, around: Surroundings) -> frozenset[str]:
    if not is_link(fault):
        return NOTHING
    return frozenset(
        machine for machine in get_link_ends(fault, around) if machine.startswith("switch/")
    )


def get_neighbouring_switches(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return around.graph.get_switches(fault.owner)


def build_role_keys(role: str) -> Keys:
    """Cause: a switch as a whole, if it has this role."""

    def place(fault: FaultView, around: Surroundings) -> frozenset[str]:
        return _filter_by_role(get_whole_switch(fault, around), role, around)

    return place


def _filter_by_role(machines: frozenset[str], role: str, around: Surroundings) -> frozenset[str]:
    return frozenset(machine for machine in machines if around.graph.get_role(machine) == role)


def get_leafs(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The leaf of a NIC; of a spine, a whole node or a job all that they hang on."""
    graph = around.graph
    if is_link(fault):
        return _filter_by_role(get_link_ends(fault, around), LEAF, around)
    machines = around.machines.get(fault.resource, keep_known(fault.owner))
    return frozenset(leaf for machine in machines for leaf in graph.get_switches(machine, LEAF))


def get_spines(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """The spine of an uplink, the spines of a leaf. No host link hangs on one."""
    graph = around.graph
    if is_link(fault):
        return _filter_by_role(get_link_ends(fault, around), SPINE, around)
    return (
        graph.get_switches(fault.owner, SPINE) if graph.get_role(fault.owner) == LEAF else NOTHING
    )


def get_storage_cause(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A storage switch, a server with what it serves, or the file system as a whole."""
    if fault.owner.startswith("storage/"):
        return keep_known(fault.owner)
    if around.graph.is_server(fault.owner):
        return around.graph.get_file_systems(fault.owner)
    return build_role_keys(STORAGE)(fault, around)


def get_storage_effect(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A storage link: its switch. A node as a client: the switches of its own path, and its file
    systems. A file system as a whole: itself, and the switches between."""
    graph = around.graph
    if fault.owner.startswith("storage/"):
        return graph.get_path(fault.owner) | {fault.owner}
    if is_link(fault):
        return _filter_by_role(get_link_ends(fault, around), STORAGE, around)
    return graph.get_storage_switches(fault.owner) | graph.get_file_systems(fault.owner)


def get_racks(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Of the machine; of both machines of a link."""
    return keep_known(
        *(around.graph.find_rack(machine) for machine in get_link_ends(fault, around))
    )


def get_feed_cause(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return keep_known(fault.owner) if fault.owner.startswith("feed/") else NOTHING


def get_feeds(fault: FaultView, around: Surroundings) -> frozenset[str]:
    fed = (around.graph.get_feeds(machine) for machine in get_link_ends(fault, around))
    return get_feed_cause(fault, around) or NOTHING.union(*fed)


def get_pod_cause(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return keep_known(fault.owner) if fault.owner.startswith("pod/") else NOTHING


def get_pods(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Those of the leaf that failed as a whole, or of the leafs at the ends of a link."""
    switches = get_whole_switch(fault, around) | get_switches_of_link(fault, around)
    names = {around.graph.get_pod(leaf) for leaf in _filter_by_role(switches, LEAF, around)}
    return get_pod_cause(fault, around) or frozenset(resources.pod(name) for name in names if name)


def get_site(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """What was concluded of all nodes, or of all switches."""
    return keep_known(ALL_NODES) if fault.resource in (ALL_NODES, ALL_SWITCHES) else NOTHING


def get_site_of_node(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """Of a node, what many of them share, and a link that ends at one, whichever end tells it."""
    machines = get_link_ends(fault, around) | {fault.owner}
    is_there = any(machine.startswith(("node/", "rack/", "feed/")) for machine in machines)
    return keep_known(ALL_NODES) if is_there else get_site(fault, around)


def get_switches_cause(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """All switches, or those of a role, as wholes. What all nodes share is shared by switches too:
    servers of time."""
    if fault.resource == ALL_NODES:
        return keep_known(ALL_SWITCHES)
    is_of_switches = fault.resource in (ALL_SWITCHES, ALL_SPINES, ALL_STORAGE_SWITCHES)
    return keep_known(fault.resource) if is_of_switches else NOTHING


def get_switches_effect(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A switch or a part of one; what was concluded of the leafs of a pod."""
    if fault.owner.startswith("pod/"):
        return keep_known(ALL_SWITCHES)
    return around.graph.get_kinds_of_switch(fault.owner)


def get_management_switches(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return around.graph.get_management_switches(fault.owner) | build_role_keys(MANAGEMENT)(
        fault, around
    )


def get_management_cause(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return keep_known(MANAGEMENT_NETWORK) if fault.resource == MANAGEMENT_NETWORK else NOTHING


def get_management_effect(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return keep_known(MANAGEMENT_NETWORK)


def get_pause_cause(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A NIC that pauses its leaf's port, the leaf that then pauses its spines, the spines that
    pause other leafs."""
    near = get_leafs(fault, around) if "/nic/" in fault.resource else NOTHING
    return near.union(
        keep_known(fault.resource), *(around.graph.get_switches(leaf, SPINE) for leaf in near)
    )


def get_pause_effect(fault: FaultView, around: Surroundings) -> frozenset[str]:
    """A port stands still because of what is at the far end of its cable; a NIC because of its
    leaf."""
    if "/nic/" in fault.resource:
        return get_leafs(fault, around) | keep_known(fault.resource)
    far = around.graph.find_peer(fault.resource) or ""
    return keep_known(far if far.startswith("node/") else resources.owner(far))


def get_jobs(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return (
        keep_known(fault.resource)
        if "/job/" in fault.resource
        else around.jobs.get(fault.owner, NOTHING)
    )


def get_windows(fault: FaultView, around: Surroundings) -> frozenset[str]:
    return around.windows.get(fault.owner, NOTHING)
