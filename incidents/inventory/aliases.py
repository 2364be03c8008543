"""Resolves the many names of one thing to its resource path before anything is counted. Reads only.

Host names and addresses, GPU index, UUID and serial, a NIC's PCI address: aliases of the inventory.
What the inventory does not hold keeps the name that was reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from detectors import resources
from incidents.db.prepared import Given, Prepared
from incidents.models import Alias, Gpu, Node, Switch

_NODES = Prepared(lambda: Node.objects.filter(name__among=Given("names")))
_SWITCHES = Prepared(lambda: Switch.objects.filter(name__among=Given("names")))
_NODES_AT = Prepared(lambda: Node.objects.filter(address__among=Given("names")))
_SWITCHES_AT = Prepared(lambda: Switch.objects.filter(address__among=Given("names")))
_ALIASES = Prepared(
    lambda: Alias.objects.filter(name__among=Given("names")).values_list("name", "resource")
)
_GPUS = Prepared(
    lambda: Gpu.objects.filter(node__name__among=Given("hosts")).values_list(
        "node__name", "pci_address", "index", "uuid", "serial"
    )
)


def get_gpu_indexes(hosts: Iterable[str]) -> dict[str, int]:
    """The index of each GPU of these nodes, by resource path."""
    indexes = {}
    for host, pci, index, *_ in _GPUS.rows(hosts=list(hosts)):
        indexes[resources.gpu(host, pci)] = index
    return indexes


@dataclass
class Names:
    """What the inventory says about the machines of one batch."""

    nodes: dict[str, Node] = field(default_factory=dict)
    switches: dict[str, Switch] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    resolved: dict[str, str] = field(default_factory=dict)

    def add_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.owners[node.name] = f"node/{node.name}"

    def add_switch(self, switch: Switch) -> None:
        self.switches[switch.name] = switch
        self.owners[switch.name] = f"switch/{switch.name}"

    def resolve(self, path: str) -> str:
        """The canonical path of what was reported as `path`, one of those that were loaded."""
        return self.resolved.get(path, path)

    def find_node(self, owner: str) -> Node | None:
        return self.nodes.get(owner.partition("/")[2]) if owner.startswith("node/") else None

    def find_switch(self, owner: str) -> Switch | None:
        return self.switches.get(owner.partition("/")[2]) if owner.startswith("switch/") else None


def load(paths: Iterable[str]) -> Names:
    """The names that these paths may need. One query when all are names of nodes. Raises
    ValueError."""
    split = {path: _split(path) for path in paths}
    names = Names()
    unknown = {host for _, host, _ in split.values()}
    for node in _NODES.objects(names=unknown):
        names.add_node(node)
    unknown -= names.owners.keys()
    if unknown:
        _load_others(names, unknown)
    wholes = {path: _get_whole(names, *parts) for path, parts in split.items()}
    _load_parts(names, {whole for whole in wholes.values() if not _is_canonical(whole)})
    names.resolved = {path: names.parts.get(whole, whole) for path, whole in wholes.items()}
    return names


def _get_whole(names: Names, kind: str, host: str, rest: str) -> str:
    owner = names.owners.get(host, f"{kind}/{host}")
    return f"{owner}/{rest}" if rest else owner


def _load_others(names: Names, unknown: set[str]) -> None:
    """Switches, addresses, and other names of machines."""
    for switch in _SWITCHES.objects(names=unknown):
        names.add_switch(switch)
    unknown = unknown - names.owners.keys()
    if not unknown:
        return
    _load_addresses(names, unknown)
    aliases = dict(_ALIASES.rows(names=unknown - names.owners.keys()))
    if not aliases:
        return
    machines = {resource.partition("/")[2] for resource in aliases.values()}
    for node in _NODES.objects(names=machines):
        names.add_node(node)
    for switch in _SWITCHES.objects(names=machines):
        names.add_switch(switch)
    names.owners.update(aliases)


def _load_addresses(names: Names, unknown: set[str]) -> None:
    """An address that several machines share, told apart by their ports, names none of them."""
    nodes = _NODES_AT.objects(names=unknown)
    switches = _SWITCHES_AT.objects(names=unknown)
    shared = Counter(node.address for node in nodes)
    shared.update(switch.address for switch in switches)
    for node in nodes:
        if shared[node.address] == 1:
            names.add_node(node)
            names.owners[node.address] = f"node/{node.name}"
    for switch in switches:
        if shared[switch.address] == 1:
            names.add_switch(switch)
            names.owners[switch.address] = f"switch/{switch.name}"


def _load_parts(names: Names, wholes: set[str]) -> None:
    """Parts by another name: a GPU by index, UUID, serial or as a PCI device, a NIC by its PCI
    address."""
    if not wholes:
        return
    names.parts.update(_ALIASES.rows(names=wholes))
    hosts = {whole.split("/", 2)[1] for whole in wholes if "/gpu/" in whole or "/pci/" in whole}
    for host, pci, index, uuid, serial in _GPUS.rows(hosts=hosts) if hosts else ():
        canonical = resources.gpu(host, pci)
        for other in filter(None, (f"index:{index}", str(index), uuid, serial)):
            names.parts[f"node/{host}/gpu/{other}"] = canonical
        names.parts.setdefault(resources.pci_device(host, pci), canonical)


def _is_canonical(whole: str) -> bool:
    """A whole machine, a GPU by PCI address, a NIC by its device name."""
    parts = whole.split("/", 3)
    if len(parts) < 4:
        return True
    if parts[2] == "gpu":
        return resources.pci_address(parts[3]) is not None
    return parts[2] not in ("nic", "pci") or resources.pci_address(parts[3]) is None


def _split(path: str) -> tuple[str, str, str]:
    """(kind, host, rest) of a path; the rest is empty for a whole machine. Raises ValueError."""
    parts = path.split("/", 2)
    if len(parts) < 2 or not parts[0] or not parts[1]:
        raise ValueError(f"{path!r} is no resource path such as node/gn001/gpu/0000:19:00.0")
    host = parts[1]
    if parts[0] == "node":
        host = resources.short_host(host)
    rest = parts[2] if len(parts) == 3 else ""
    kind, _, name = rest.partition("/")
    pci = resources.pci_address(name) if kind in ("gpu", "nvswitch", "pci", "nic") else None
    return parts[0], host, f"{kind}/{pci}" if pci else rest
