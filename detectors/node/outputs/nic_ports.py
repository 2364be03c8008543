"""The ports of a node's network cards: which interface, RDMA device, PCI function and inventory row
are one.

Pure. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Optional

from detectors import resources
from detectors.detector import Command, Output, Reading, Target
from detectors.expected import ExpectedNic
from detectors.node.outputs.nic_outputs import (
    NAME,
    Interface,
    Rdma,
    parse_ibstat,
    parse_interfaces,
    parse_net_files,
    parse_rdma_files,
    parse_rdma_links,
)
from detectors.transports import files

RESERVED = "reserved"
FABRIC = "fabric"
_LISTING_LIMIT = timedelta(seconds=10)
# Below a device lie whole trees of the PCI bus; the tables of addresses have hundreds of files for
# each port.
_NOT_INTO = ("device", "subsystem", "gids", "pkeys", "types", "virtfn*", "physfn")
_NET_FILES = (
    "carrier",
    "carrier_changes",
    "carrier_up_count",
    "carrier_down_count",
    "operstate",
    "device/uevent",
)
_PORT_FILES = (
    "state",
    "phys_state",
    "rate",
    "link_layer",
    "gid_attrs/ndevs/0",
    "counters/*",
    "hw_counters/*",
)


@dataclass(frozen=True)
class NicPort:
    """One port. `device` is its name in resource paths: the inventory's, else the RDMA device, else
    the interface."""

    device: str
    netdev: str = ""
    pci: str = ""
    expected: Optional[ExpectedNic] = None
    interface: Optional[Interface] = None
    rdma: Optional[Rdma] = None
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def role(self) -> str:
        """Empty where the inventory does not tell."""
        return self.expected.role if self.expected is not None else ""

    @property
    def is_infiniband(self) -> bool:
        if self.rdma is not None and self.rdma.layer:
            return self.rdma.layer.lower() == "infiniband"
        return self.interface is not None and self.interface.kind == "infiniband"

    def get_resource(self, target: Target) -> str:
        return resources.nic(target.name, self.device)


def build_net_command() -> Command:
    """State and address of every interface, from sysfs."""
    return files.build_read_command(
        "net", "/sys/class/net", *(f"/sys/class/net/*/{name}" for name in _NET_FILES), depth=3
    )


def build_rdma_command(*wanted: str) -> Command:
    """Ports of RDMA devices, from sysfs; `wanted` (paths below `ports/N/`) narrows it down."""
    return _find(
        "infiniband",
        *(f"/sys/class/infiniband/*/ports/*/{name}" for name in wanted or _PORT_FILES),
        "/sys/class/infiniband/*/fw_ver",
        "/sys/class/infiniband/*/node_guid",
    )


def build_pci_command(*wanted: str) -> Command:
    """PCI address (and `wanted` files) of every RDMA device, from sysfs."""
    paths = [f"/sys/class/infiniband/*/device/{name}" for name in ("uevent", *wanted)]
    return files.build_read_command("infiniband-device", "/sys/class/infiniband", *paths, depth=3)


def _find(name: str, *paths: str) -> Command:
    """Like `files.build_read_command`, without going into what would only be searched in vain."""
    pruned = [word for folder in _NOT_INTO for word in ("-name", folder, "-o")][:-1]
    wanted = [word for path in paths for word in ("-path", path, "-o")][:-1]
    argv = (
        "find",
        "-L",
        "/sys/class/infiniband",
        "-maxdepth",
        "7",
        "(",
        *pruned,
        ")",
        "-prune",
        "-o",
    )
    argv = (*argv, "(", *wanted, ")", "-type", "f", "-exec", "grep", "-sHZ", "", "{}", "+")
    return Command(name, argv, timeout=_LISTING_LIMIT)


def list_interfaces(outputs: Mapping[str, Output], target: Target) -> list[str]:
    """Interfaces to ask about: those of the inventory, or else the ones with a PCI device of their
    own."""
    known = [nic.netdev for nic in target.expected.nics if NAME.fullmatch(nic.netdev)]
    if known and len(known) == len(target.expected.nics):
        return known
    output = outputs.get("net")
    found = parse_net_files(files.parse_contents(output)) if output is not None else {}
    return sorted({*known, *(netdev for netdev, about in found.items() if about.get("pci"))})


def is_all_known(target: Target) -> bool:
    """Whether the inventory names every interface, so that nothing needs to be listed first."""
    return bool(target.expected.nics) and all(
        NAME.fullmatch(nic.netdev) for nic in target.expected.nics
    )


def list_ports(reading: Reading, extra: Iterable[str] = ()) -> list[NicPort]:
    """The ports that the reading's outputs speak of, then those the inventory names and nobody saw.

    `extra`: interfaces that only a command of their own speaks of, such as a single `ethtool -S`
    handed in.
    """
    seen = _Seen.from_reading(reading)
    made: dict[str, NicPort] = {}
    for rdma in seen.rdma.values():
        port = _make_rdma_port(reading.target, rdma, seen)
        made.setdefault(port.device, port)
    taken = {port.netdev for port in made.values() if port.netdev}
    physical = {name for name, about in seen.net.items() if about.get("pci")}
    alone = physical if seen.net else set(seen.links) - {"lo"}
    for netdev in sorted({*alone, *extra} - taken):
        port = _make_interface_port(reading.target, netdev, seen)
        made.setdefault(port.device, port)
    return list(made.values())


def find_peers(port: NicPort, ports_of_node: Sequence[NicPort]) -> list[NicPort]:
    """The node's other ports of the same role."""
    if not port.role:
        return []
    return [peer for peer in ports_of_node if peer is not port and peer.role == port.role]


@dataclass(frozen=True)
class _Seen:
    links: Mapping[str, Interface]
    net: Mapping[str, Mapping[str, str]]
    rdma: Mapping[str, Rdma]

    @staticmethod
    def from_reading(reading: Reading) -> _Seen:
        outputs = reading.outputs
        links = parse_interfaces(outputs["ip"].stdout) if "ip" in outputs else None
        net = parse_net_files(files.parse_contents(outputs["net"])) if "net" in outputs else {}
        by_name: dict[str, Rdma] = {}
        for source in _list_rdma_sources(outputs):
            for port in source:
                _merge(by_name, port)
        return _Seen(links or {}, net, by_name)


def _list_rdma_sources(outputs: Mapping[str, Output]) -> list[Sequence[Rdma]]:
    merged: dict[str, str] = {}
    for name in ("infiniband", "infiniband-device"):
        if name in outputs:
            merged.update(files.parse_contents(outputs[name]))
    links = parse_rdma_links(outputs["rdma"].stdout) if "rdma" in outputs else None
    stat = parse_ibstat(outputs["ibstat"].stdout) if "ibstat" in outputs else []
    return [parse_rdma_files(merged), links or [], stat]


def _merge(known: dict[str, Rdma], port: Rdma) -> None:
    """The kernel's own files first; what they leave open is filled from the programs."""
    name = port.device if port.port == 1 else f"{port.device}-{port.port}"
    first = known.setdefault(name, port)
    for field_name in ("state", "physical", "layer", "netdev", "firmware", "guid"):
        setattr(first, field_name, getattr(first, field_name) or getattr(port, field_name))
    first.rate_gbps = port.rate_gbps if first.rate_gbps is None else first.rate_gbps


def _make_rdma_port(target: Target, rdma: Rdma, seen: _Seen) -> NicPort:
    name = rdma.device if rdma.port == 1 else f"{rdma.device}-{rdma.port}"
    netdev = rdma.netdev or _find_netdev(rdma.pci, seen)
    row = target.expected.nic(name) or target.expected.nic(netdev) or target.expected.nic(rdma.pci)
    device = row.device if row is not None else name
    return NicPort(
        device, netdev, rdma.pci, row, seen.links.get(netdev), rdma, seen.net.get(netdev, {})
    )


def _find_netdev(pci: str, seen: _Seen) -> str:
    if not pci:
        return ""
    return next((netdev for netdev, about in seen.net.items() if about.get("pci") == pci), "")


def _make_interface_port(target: Target, netdev: str, seen: _Seen) -> NicPort:
    about = seen.net.get(netdev, {})
    by_address = target.expected.nic(about.get("pci", ""))
    if by_address is not None and by_address.netdev not in ("", netdev):
        by_address = (
            None  # a bond's row has the address of its first member, which is a port of its own
        )
    row = target.expected.nic(netdev) or by_address
    device = row.device if row is not None else netdev
    return NicPort(device, netdev, about.get("pci", ""), row, seen.links.get(netdev), None, about)
