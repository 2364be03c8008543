"""What joins two rows of an inventory: each end is there, no address or serial belongs to two.
Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import chain

from detectors import resources
from incidents.topology.topology import Topology

_SNMP = 161
# One wrong name in a row that stands for many cables is one mistake, not a thousand.
_MOST_ALIKE = 3


def list_problems(
    topology: Topology, where: Mapping[str, str], unread: Container[str]
) -> list[str]:
    """One line each, behind the place that `where` has of the resource. `unread`: names of rows
    that were wrong."""
    missing = list(_ends(topology, where, unread))
    missing += _check_modules(topology, where, unread)
    missing += _check_racks(topology, where)
    found = list(_fold_problems(missing))
    found += _check_shared(topology, where)
    found += _check_both(topology, where)
    return found


def _ends(
    topology: Topology, where: Mapping[str, str], unread: Container[str]
) -> Iterator[tuple[str, str]]:
    """(place, text) of cables to what is not there."""
    switches = {switch.name for switch in topology.switches}
    nics = {}
    for node in topology.nodes:
        nics[node.name] = {nic.device for nic in node.nics}
    ends = chain.from_iterable((cable.a, cable.b) for cable in topology.cables)
    for end in ends:
        kind, _, name = resources.owner(end).partition("/")
        if name in unread:
            continue
        if kind == "switch" and name not in switches:
            yield where[end], f"{end}: no switch {name} in [[switches]]"
        if kind != "node":
            continue
        if name not in nics:
            yield where[end], f"{end}: no node {name} in [[nodes]]"
        elif "/nic/" in end and nics[name] and end.rpartition("/")[2] not in nics[name]:
            yield where[end], f"{end}: {name} has no such NIC in its row"


def _check_modules(
    topology: Topology, where: Mapping[str, str], unread: Container[str]
) -> Iterator[tuple[str, str]]:
    switches = {switch.name for switch in topology.switches}
    paths = []
    for module in topology.modules:
        paths.append((resources.module(module.switch, module.name), module.switch))
    for port in topology.ports:
        paths.append((resources.port(port.switch, port.name), port.switch))
    for path, switch in paths:
        if switch not in switches and switch not in unread:
            yield where[path], f"{path}: no switch {switch} in [[switches]]"
    modules_by_port: dict[tuple[str, str], str] = {}
    for module in topology.modules:
        for port_name in module.ports:
            key = (module.switch, port_name)
            first_module = modules_by_port.setdefault(key, module.name)
            if first_module != module.name:
                path = resources.module(module.switch, module.name)
                yield where[path], f"{path}: {port_name} is in module {first_module} already"


def _check_racks(topology: Topology, where: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    feeds = {feed.name for feed in topology.feeds}
    switches = {switch.name for switch in topology.switches}
    for rack in topology.racks:
        place = where[f"rack/{rack.name}"]
        for feed in rack.feeds:
            if feed not in feeds:
                yield place, f"{rack.name}: no feed {feed} in [[feeds]]"
        if rack.management_switch and rack.management_switch not in switches:
            yield place, f"{rack.name}: no switch {rack.management_switch} in [[switches]]"
    for path in topology.storage:
        place = where[f"mount/{path.mount}"]
        for switch in path.switches:
            if switch not in switches:
                yield place, f"{path.mount}: no switch {switch} in [[switches]]"


def _fold_problems(found: Iterable[tuple[str, str]]) -> Iterator[str]:
    """At most a few lines of one place, then how many more there are."""
    by_place: dict[str, list[str]] = {}
    for place, text in found:
        by_place.setdefault(place, []).append(text)
    for place, texts in by_place.items():
        yield from (f"{place}: {text}" for text in texts[:_MOST_ALIKE])
        if len(texts) > _MOST_ALIKE:
            yield f"{place}: and {len(texts) - _MOST_ALIKE} more of this row"


def _check_shared(topology: Topology, where: Mapping[str, str]) -> Iterator[str]:
    """Addresses and serials that stand in two places."""
    seen: dict[tuple[str, str, int], str] = {}
    for resource, what, value, port in _list_values_told_once(topology):
        other = seen.setdefault((what, value, port), resource)
        if value and other != resource:
            place = where.get(resources.owner(resource), "")
            owner = _format_short(other)
            yield f"{place}: {_format_short(resource)}: the {what} {value} belongs to {owner} too"


def _list_values_told_once(topology: Topology) -> Iterator[tuple[str, str, str, int]]:
    """(resource, what, value, port): no two resources may have the same value and port."""
    for node in topology.nodes:
        own = resources.node(node.name)
        yield own, "address", node.address, node.ssh_port
        yield own, "serial", node.serial, 0
        for gpu in node.gpus:
            yield resources.gpu(node.name, gpu.pci), "GPU serial", gpu.serial, 0
            yield resources.gpu(node.name, gpu.pci), "GPU UUID", gpu.uuid, 0
        for item in node.nvswitches:
            yield resources.nvswitch(node.name, item.pci), "NVSwitch serial", item.serial, 0
        for nic in node.nics:
            yield resources.nic(node.name, nic.device), "NIC address", nic.address, 0
            yield resources.nic(node.name, nic.device), "NIC serial", nic.serial, 0
    for switch in topology.switches:
        own = resources.switch(switch.name)
        # Several agents of one address are told apart by their ports.
        port = switch.ssh_port if switch.snmp_port == _SNMP else switch.snmp_port
        yield own, "address", switch.address, port
        yield own, "serial", switch.serial, 0


def _check_both(topology: Topology, where: Mapping[str, str]) -> Iterator[str]:
    nodes = {node.name for node in topology.nodes}
    switches = {switch.name for switch in topology.switches}
    for name in sorted(nodes & switches):
        yield f"{where[resources.switch(name)]}: {name} is a node and a switch"


def _format_short(resource: str) -> str:
    """A whole machine by its name, a part by its path."""
    return resource.partition("/")[2] if resource.count("/") == 1 else resource
