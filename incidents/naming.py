"""Resolves the many names of one thing to its resource path before anything is counted. Reads only.

Host names and addresses, GPU index, UUID and serial, a NIC's PCI address: aliases of the inventory. What the
inventory does not hold keeps the name that was reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from django.db.models import Q

from detectors import resources
from incidents.models import Alias, Gpu, Node, Switch


@dataclass
class Names:
    """What the inventory says about the machines of one batch."""

    nodes: dict[str, Node] = field(default_factory=dict)
    switches: dict[str, Switch] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)

    def resolve(self, path: str) -> str:
        """The canonical path of what was reported as `path`."""
        kind, host, rest = _split(path)
        owner = self.owners.get(host, f"{kind}/{host}")
        whole = f"{owner}/{rest}" if rest else owner
        return self.parts.get(whole, whole)

    def node_of(self, owner: str) -> Node | None:
        return self.nodes.get(owner.partition("/")[2]) if owner.startswith("node/") else None

    def switch_of(self, owner: str) -> Switch | None:
        return self.switches.get(owner.partition("/")[2]) if owner.startswith("switch/") else None


def load(paths: Iterable[str]) -> Names:
    """The names that these paths may need: three queries, five when parts have other names. Raises ValueError."""
    split = {path: _split(path) for path in paths}
    hosts = {host for _, host, _ in split.values()}
    names = Names()
    aliases = dict(Alias.objects.filter(name__in=hosts).values_list("name", "resource"))
    machines = {*hosts, *(resource.partition("/")[2] for resource in aliases.values())}
    for node in Node.objects.filter(Q(name__in=machines) | Q(address__in=machines)):
        names.nodes[node.name] = node
        names.owners.update(dict.fromkeys((node.address, node.name), f"node/{node.name}"))
    for switch in Switch.objects.filter(Q(name__in=machines) | Q(address__in=machines)):
        names.switches[switch.name] = switch
        names.owners.update(dict.fromkeys((switch.address, switch.name), f"switch/{switch.name}"))
    names.owners.pop("", None)
    names.owners.update({host: resource for host, resource in aliases.items() if host not in names.nodes})
    _load_parts(names, split.values())
    return names


def _load_parts(names: Names, split: Iterable[tuple[str, str, str]]) -> None:
    wholes = set()
    for kind, host, rest in split:
        # A GPU by PCI address and a NIC by device name are canonical already.
        if rest and not _is_canonical(rest):
            wholes.add(f"{names.owners.get(host, f'{kind}/{host}')}/{rest}")
    if not wholes:
        return
    names.parts.update(Alias.objects.filter(name__in=wholes).values_list("name", "resource"))
    hosts = {whole.split("/", 2)[1] for whole in wholes if "/gpu/" in whole}
    for gpu in Gpu.objects.filter(node__name__in=hosts).select_related("node") if hosts else ():
        canonical = resources.gpu(gpu.node.name, gpu.pci_address)
        for other in filter(None, (f"index:{gpu.index}", str(gpu.index), gpu.uuid, gpu.serial)):
            names.parts[f"node/{gpu.node.name}/gpu/{other}"] = canonical


def _is_canonical(rest: str) -> bool:
    kind, _, name = rest.partition("/")
    if kind == "gpu":
        return resources.pci_address(name) is not None
    return kind not in ("nic", "pci") or resources.pci_address(name) is None


def _split(path: str) -> tuple[str, str, str]:
    """(kind, host, rest) of a path; the rest is empty for a whole machine. Raises ValueError."""
    parts = path.split("/", 2)
    if len(parts) < 2 or not parts[0] or not parts[1]:
        raise ValueError(f"{path!r} is no resource path such as node/gn001/gpu/0000:19:00.0")
    host = parts[1]
    if parts[0] == "node":
        host = resources.short_host(host)
    kind, _, name = parts[2].partition("/") if len(parts) == 3 else ("", "", "")
    rest = parts[2] if len(parts) == 3 else ""
    pci = resources.pci_address(name) if kind in ("gpu", "nvswitch", "pci", "nic") else None
    return parts[0], host, f"{kind}/{pci}" if pci else rest
