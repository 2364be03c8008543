"""The site as wired: which machine hangs on which switch, module, rack, feed and storage path.
Pure.

Built once per revision of the inventory; every question is a look into a dictionary, whatever the
number of nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from detectors import resources
from incidents.topology.topology import NodePlace, RackPlace, StoragePlace, SwitchPlace, Topology

LEAF, SPINE, STORAGE, MANAGEMENT = "leaf", "spine", "storage", "management"
ALL_NODES = "site/nodes"
"""Every node of the inventory, as one place."""
ALL_SWITCHES = "site/switches"
"""Every switch of the inventory but those of the management network, as one place."""
ALL_SPINES = "site/spines"
ALL_STORAGE_SWITCHES = "site/storage-switches"
_ROLES_OF_ALL: Mapping[str, frozenset[str]] = {
    ALL_SWITCHES: frozenset({LEAF, SPINE, STORAGE}),
    ALL_SPINES: frozenset({SPINE}),
    ALL_STORAGE_SWITCHES: frozenset({STORAGE}),
}
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Graph:
    """Answers about resource paths; what the inventory does not hold gives None or nothing.

    A *place* is what effects can have in common: a switch, a module, a rack, a feed, a file system,
    all nodes, all switches or those of one role.
    """

    topology: Topology = field(default_factory=Topology)

    # Cables
    # ---------------------------------------------------------------------------

    def find_peer(self, resource: str) -> str | None:
        """The resource at the other end of this one's cable."""
        return self.topology.find_peer(resource)

    def ends(self, resource: str) -> frozenset[str]:
        """The machines at both ends of this resource's cable; only its own where no cable is
        known."""
        return frozenset(self.topology.ends(resource))

    def get_neighbours(self, machine: str) -> frozenset[str]:
        """The machines that are cabled to this one."""
        return self.topology.get_neighbours(machine)

    def get_far_ends(self, machine: str) -> Mapping[str, str]:
        """The machine's own cabled ports or NICs, each with what it is cabled to."""
        return self._far_ends.get(machine, {})

    @cached_property
    def _far_ends(self) -> dict[str, dict[str, str]]:
        far_ends: dict[str, dict[str, str]] = defaultdict(dict)
        for cable in self.topology.cables:
            far_ends[resources.owner(cable.a)][cable.a] = cable.b
            far_ends[resources.owner(cable.b)][cable.b] = cable.a
        return dict(far_ends)

    # Switches
    # ---------------------------------------------------------------------------

    def find_switch(self, machine: str) -> SwitchPlace | None:
        return self._switches.get(machine)

    @cached_property
    def _switches(self) -> dict[str, SwitchPlace]:
        return {resources.switch(place.name): place for place in self.topology.switches}

    def get_role(self, machine: str) -> str:
        """leaf, spine, storage or management; empty for what is no switch of the inventory."""
        place = self._switches.get(machine)
        return place.role if place is not None else ""

    def get_kinds_of_switch(self, machine: str) -> frozenset[str]:
        """The places that hold all switches of the machine's sort: `site/switches` and, of a spine,
        `site/spines`. Nothing for what is no switch of the fabric or of the storage network."""
        role = self.get_role(machine)
        return frozenset(place for place, roles in _ROLES_OF_ALL.items() if role in roles)

    @cached_property
    def _switches_by_kind(self) -> dict[str, frozenset[str]]:
        kinds = {place: self.get_kinds_of_switch(place) for place in self._switches}
        return _group_by_second((switch, kind) for switch in kinds for kind in kinds[switch])

    def get_switches(self, machine: str, role: str = "") -> frozenset[str]:
        """The switches that the machine is cabled to; of one role when it is given."""
        near = self.get_neighbours(machine)
        switches = frozenset(path for path in near if path.startswith("switch/"))
        if not role:
            return switches
        return frozenset(switch for switch in switches if self.get_role(switch) == role)

    def get_siblings(self, place: str) -> frozenset[str]:
        """What does for others what this place does: the leafs of the other rails of a pod, the
        other spines, the other storage switches of a path, the other racks of a pod, the other
        feeds, the modules of one switch that hold as many ports. Of a pod none: what takes
        all of its leafs (power, settings) may take those of another too."""
        if "/module/" in place:
            return self._get_modules_beside(place)
        return self._siblings.get(place, NOTHING) - {place}

    def _get_modules_beside(self, module: str) -> frozenset[str]:
        ports = len(self.get_ports(module))
        modules = self._modules_by_switch.get(resources.owner(module), NOTHING)
        alike = {sibling for sibling in modules if len(self.get_ports(sibling)) == ports}
        return frozenset(alike - {module})

    @cached_property
    def _modules_by_switch(self) -> dict[str, frozenset[str]]:
        return _group_by_second((module, resources.owner(module)) for module in self._ports)

    @cached_property
    def _siblings(self) -> dict[str, frozenset[str]]:
        groups: dict[tuple[str, str], set[str]] = defaultdict(set)
        for machine, place in self._switches.items():
            groups[place.role, place.pod].add(machine)
        for rack in self.topology.racks:
            groups["rack", rack.pod].add(resources.rack(rack.name))
        for feed in self.topology.feeds:
            groups["feed", ""].add(resources.feed(feed.name))
        return {place: frozenset(group) for group in groups.values() for place in group}

    # Modules
    # ---------------------------------------------------------------------------

    def find_module(self, resource: str) -> str | None:
        """The switch's module that a port is in, or the module itself."""
        return resource if "/module/" in resource else self._modules.get(resource)

    def get_ports(self, module: str) -> frozenset[str]:
        return self._ports.get(module, NOTHING)

    @cached_property
    def _ports(self) -> dict[str, frozenset[str]]:
        ports_by_module = {}
        for place in self.topology.modules:
            ports = frozenset(resources.port(place.switch, port) for port in place.ports)
            ports_by_module[resources.module(place.switch, place.name)] = ports
        return ports_by_module

    @cached_property
    def _modules(self) -> dict[str, str]:
        return {port: module for module, ports in self._ports.items() for port in ports}

    # Racks and feeds
    # ---------------------------------------------------------------------------

    def find_rack(self, machine: str) -> str | None:
        """`rack/r01`, or the rack itself."""
        return machine if machine.startswith("rack/") else self._racks_by_machine.get(machine)

    @cached_property
    def _racks_by_machine(self) -> dict[str, str]:
        racks = {resources.node(node.name): node.rack for node in self.topology.nodes}
        racks.update({path: switch.rack for path, switch in self._switches.items()})
        return {machine: resources.rack(rack) for machine, rack in racks.items() if rack}

    def get_machines_in(self, rack: str) -> frozenset[str]:
        return self._machines_by_rack.get(rack, NOTHING)

    @cached_property
    def _machines_by_rack(self) -> dict[str, frozenset[str]]:
        return _group_by_second((machine, rack) for machine, rack in self._racks_by_machine.items())

    def get_feeds(self, machine: str) -> frozenset[str]:
        """The feeds of its rack."""
        rack = self._racks.get(self.find_rack(machine) or "")
        if rack is None:
            return NOTHING
        return frozenset(resources.feed(name) for name in rack.feeds)

    @cached_property
    def _racks(self) -> dict[str, RackPlace]:
        return {resources.rack(rack.name): rack for rack in self.topology.racks}

    def get_racks_on(self, feed: str) -> frozenset[str]:
        return self._racks_by_feed.get(feed, NOTHING)

    @cached_property
    def _racks_by_feed(self) -> dict[str, frozenset[str]]:
        racks_and_feeds = []
        for rack, place in self._racks.items():
            for name in place.feeds:
                racks_and_feeds.append((rack, resources.feed(name)))
        return _group_by_second(racks_and_feeds)

    def get_management_switches(self, machine: str) -> frozenset[str]:
        """That of its rack, and any that it is cabled to."""
        cabled = self.get_switches(machine, MANAGEMENT)
        rack = self._racks.get(self.find_rack(machine) or "")
        if rack is None or not rack.management_switch:
            return cabled
        return cabled | {resources.switch(rack.management_switch)}

    @cached_property
    def _managed_by(self) -> dict[str, frozenset[str]]:
        machines_and_switches = []
        for rack, place in self._racks.items():
            if not place.management_switch:
                continue
            switch = resources.switch(place.management_switch)
            for machine in self.get_machines_in(rack):
                machines_and_switches.append((machine, switch))
        return _group_by_second(machines_and_switches)

    # Pods, nodes and file systems
    # ---------------------------------------------------------------------------

    def get_pod(self, machine: str) -> str:
        """The pod of a node, leaf or rack, or the pod itself; empty for what serves several pods
        (spines, file systems and their servers), and for what no inventory gives a pod."""
        return self._pods.get(machine, "")

    @cached_property
    def _pods(self) -> dict[str, str]:
        pods = {resources.rack(rack.name): rack.pod for rack in self.topology.racks}
        for machine, node in self._nodes.items():
            if not self.is_server(machine):
                pods[machine] = node.pod
        for machine, switch in self._switches.items():
            if switch.role == LEAF:
                pods[machine] = switch.pod
                pods[resources.pod(switch.pod)] = switch.pod
        return pods

    @cached_property
    def _leafs_by_pod(self) -> dict[str, frozenset[str]]:
        leafs = ((path, place) for path, place in self._switches.items() if place.role == LEAF)
        return _group_by_second(
            (path, resources.pod(place.pod)) for path, place in leafs if place.pod
        )

    def find_node(self, machine: str) -> NodePlace | None:
        return self._nodes.get(machine)

    @cached_property
    def _nodes(self) -> dict[str, NodePlace]:
        return {resources.node(node.name): node for node in self.topology.nodes}

    def get_file_systems(self, machine: str) -> frozenset[str]:
        """Those that a node of its role mounts, or that a server serves."""
        served = self._served_by.get(machine, NOTHING)
        place = self._nodes.get(machine)
        if place is None:
            return served
        return served | self._file_systems_by_role.get(place.role, NOTHING)

    def is_server(self, machine: str) -> bool:
        return machine in self._served_by

    @cached_property
    def _file_systems_by_role(self) -> dict[str, frozenset[str]]:
        file_systems_and_roles = []
        for path in self.topology.storage:
            for role in path.roles:
                file_systems_and_roles.append((resources.file_system(path.mount), role))
        return _group_by_second(file_systems_and_roles)

    @cached_property
    def _served_by(self) -> dict[str, frozenset[str]]:
        file_systems_and_servers = []
        for path in self.topology.storage:
            file_system = resources.file_system(path.mount)
            for server in path.servers:
                file_systems_and_servers.append((file_system, resources.node(server)))
        return _group_by_second(file_systems_and_servers)

    @cached_property
    def _paths(self) -> dict[str, StoragePlace]:
        return {resources.file_system(path.mount): path for path in self.topology.storage}

    def get_storage_switches(self, machine: str) -> frozenset[str]:
        """The storage switches on the node's own path: cabled to it, or, where no cable is known,
        named by the path."""
        cabled = self.get_switches(machine, STORAGE)
        if cabled:
            return cabled
        return NOTHING.union(*map(self.get_path, self.get_file_systems(machine)))

    def get_path(self, file_system: str) -> frozenset[str]:
        """The switches between a file system and its clients."""
        path = self._paths.get(file_system)
        if path is None:
            return NOTHING
        return frozenset(resources.switch(name) for name in path.switches)

    def get_file_systems_over(self, switch: str) -> frozenset[str]:
        return frozenset(path for path in self._paths if switch in self.get_path(path))

    def get_servers(self, file_system: str) -> frozenset[str]:
        path = self._paths.get(file_system)
        if path is None:
            return NOTHING
        return frozenset(resources.node(name) for name in path.servers)

    # What hangs on a place
    # ---------------------------------------------------------------------------

    def get_children(self, place: str) -> frozenset[str]:
        """What hangs on it: NICs on a leaf or storage switch, leafs' uplink ports on a spine, the
        leafs of a pod, the switches of a sort, ports on a module, the cabled NICs of a node,
        machines elsewhere."""
        known = self._children.get(place)
        if known is None:
            known = self._children[place] = self._get_hanging_on(place)
        return known

    @cached_property
    def _children(self) -> dict[str, frozenset[str]]:
        return {}

    def _get_hanging_on(self, place: str) -> frozenset[str]:
        if "/module/" in place:
            return self.get_ports(place)
        if place.startswith("switch/"):
            return self._get_below_switch(place)
        if place.startswith("node/"):
            return frozenset(self.get_far_ends(place))
        if place.startswith("rack/"):
            return self.get_machines_in(place)
        if place.startswith("feed/"):
            return NOTHING.union(*map(self.get_machines_in, self.get_racks_on(place)))
        if place.startswith("pod/"):
            return self._leafs_by_pod.get(place, NOTHING)
        if place == ALL_NODES:
            return frozenset(self._nodes)
        if place in _ROLES_OF_ALL:
            return self._switches_by_kind.get(place, NOTHING)
        if place not in self._paths:
            return NOTHING
        roles = self._paths[place].roles
        return frozenset(machine for machine, node in self._nodes.items() if node.role in roles)

    def _get_below_switch(self, switch: str) -> frozenset[str]:
        far = frozenset(self.get_far_ends(switch).values())
        role = self.get_role(switch)
        if role == MANAGEMENT:
            return self._managed_by.get(switch, NOTHING) | {resources.owner(end) for end in far}
        if role == SPINE:
            return frozenset(end for end in far if end.startswith("switch/"))
        return frozenset(end for end in far if end.startswith("node/"))

    def get_machines_behind(self, place: str) -> frozenset[str]:
        """The machines of its children; for a port of a module, and for a node, those at both ends
        of its cables."""
        known = self._behind.get(place)
        if known is None:
            known = self._behind[place] = self._get_machines(place)
        return known

    @cached_property
    def _behind(self) -> dict[str, frozenset[str]]:
        return {}

    def _get_machines(self, place: str) -> frozenset[str]:
        if place.startswith("node/"):
            return self.get_switches(place) | {place}
        if "/module/" in place:
            return NOTHING.union(*map(self.ends, self.get_ports(place)))
        return frozenset(resources.owner(child) for child in self.get_children(place))

    def find_child(self, place: str, resource: str) -> str | None:
        """Which child of the place a resource speaks of: itself, the far end of its cable, or its
        machine."""
        children = self.get_children(place)
        machine = resources.owner(resource)
        for candidate in (resource, self.find_peer(resource), machine):
            if candidate in children:
                return candidate
        if resource != machine:
            return None
        for end, far_end in self.get_far_ends(machine).items():
            if end in children and resources.owner(far_end) == place:
                return end
        return None


def _group_by_second(pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """(value, key) pairs as key to its values."""
    values_by_key: dict[str, set[str]] = defaultdict(set)
    for value, key in pairs:
        values_by_key[key].add(value)
    return {key: frozenset(values) for key, values in values_by_key.items()}
