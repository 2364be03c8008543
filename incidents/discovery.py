"""What machines tell of their own parts and neighbours, as an inventory. Pure: the caller collects.

Over SSH, read-only: `nvidia-smi -q -x`, sysfs, `ip -j link`, `ethtool -i`, and `lldpctl`, which alone needs root. Over
SNMP the neighbours of IEEE 802.1AB's LLDP-MIB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from detectors import files, gpu_forms, nic_outputs, nic_ports, resources, switch_ports, switch_tables
from detectors.detector import Command, Output, SnmpValue, Target
from incidents.topology import GpuPlace, NicPlace, NodePlace, NvSwitchPlace

# nvidia-smi takes seconds on a node without its persistence daemon (detectors/gpu.py).
_GPU_LIMIT = timedelta(seconds=30)
_LIMIT = timedelta(seconds=10)
# An NVSwitch is a PCI bridge device of NVIDIA's of class 0x0680 (https://pci-ids.ucw.cz/read/PD/06/80).
_NVIDIA, _NVSWITCH_CLASS = "0x10de", "0x068000"
_WHOLE = ("nvidia-smi", "net", "infiniband", "ip-link", "lldp", "pci")


@dataclass(frozen=True)
class Neighbour:
    """What LLDP heard on one port: the machine's short name, and its names for the port at that end."""

    machine: str
    ports: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """Of one machine. `neighbours` by own port (interface of a node); `failed` says which looks came to nothing."""

    place: NodePlace
    neighbours: Mapping[str, Neighbour] = field(default_factory=dict)
    failed: tuple[str, ...] = ()


def commands() -> tuple[Command, ...]:
    """The first round: everything that needs no name of an interface."""
    pci = "/sys/bus/pci/devices"
    return (
        Command("nvidia-smi", ("nvidia-smi", "-q", "-x"), _GPU_LIMIT),
        nic_ports.net_command(),
        nic_ports.rdma_command("gid_attrs/ndevs/0", "link_layer"),
        nic_ports.pci_command(),
        files.reading("pci", pci, f"{pci}/*/vendor", f"{pci}/*/class", depth=2),
        Command("ip-link", ("ip", "-j", "-s", "link"), _LIMIT),
        Command("lldp", ("lldpctl", "-f", "json"), _LIMIT, as_root=True),  # its socket is root's
    )


def further_commands(outputs: Mapping[str, Output]) -> tuple[Command, ...]:
    """The second round: the driver of each interface that is a PCI device."""
    net = nic_outputs.net_files(files.contents(outputs["net"])) if "net" in outputs else {}
    named = sorted(netdev for netdev, about in net.items() if about.get("pci"))
    return tuple(Command(f"ethtool-i.{netdev}", ("ethtool", "-i", netdev), _LIMIT) for netdev in named)


def node(target: Target, outputs: Mapping[str, Output]) -> Found:
    """The parts of one node, joined with what the inventory knows of them."""
    gpus, nics = _gpus(target, outputs), _nics(target, outputs)
    nvswitches = _nvswitches(outputs)
    given = {name for name, found in (("gpus", gpus), ("nics", nics), ("nvswitches", nvswitches)) if found}
    place = NodePlace(
        target.name, gpus=gpus, nics=nics, nvswitches=nvswitches, given=frozenset(given), is_observed=True
    )
    return Found(place, _lldp_neighbours(outputs.get("lldp")), tuple(_failed(outputs)))


def _failed(outputs: Mapping[str, Output]) -> Iterator[str]:
    for name in _WHOLE:
        output = outputs.get(name)
        if output is None or (output.status != 0 and not output.stdout.strip()):
            words = "it was not run" if output is None else output.complaint
            yield f"{name}: {'not installed' if output is not None and output.is_missing else words}"


def _gpus(target: Target, outputs: Mapping[str, Output]) -> tuple[GpuPlace, ...]:
    """A GPU keeps the index that the inventory has for its address; new ones count on in the driver's order."""
    output = outputs.get("nvidia-smi")
    cards = gpu_forms.read(output.stdout, output.stderr).cards if output is not None else None
    known = {pci: int(index) for index, pci in target.expected.gpus}
    free = iter(sorted(set(range(len(known) + len(cards or ()))) - set(known.values())))
    return tuple(
        GpuPlace(known[card.pci] if card.pci in known else next(free), card.pci, card.text("uuid"), card.text("serial"))
        for card in cards or ()
        if card.pci
    )


def _nvswitches(outputs: Mapping[str, Output]) -> tuple[NvSwitchPlace, ...]:
    about: dict[str, dict[str, str]] = {}
    for path, text in (files.contents(outputs["pci"]) if "pci" in outputs else {}).items():
        *_, device, name = path.split("/")
        about.setdefault(device, {})[name] = text.strip()
    found = (
        pci for pci, said in about.items() if (said.get("vendor"), said.get("class")) == (_NVIDIA, _NVSWITCH_CLASS)
    )
    return tuple(NvSwitchPlace(pci) for pci in sorted(filter(None, map(resources.pci_address, found))))


def _nics(target: Target, outputs: Mapping[str, Output]) -> tuple[NicPlace, ...]:
    """RDMA devices with their interfaces, then interfaces of PCI devices without one; as the inventory names them."""
    net = nic_outputs.net_files(files.contents(outputs["net"])) if "net" in outputs else {}
    contents = {
        path: text
        for name in ("infiniband", "infiniband-device")
        if name in outputs
        for path, text in files.contents(outputs[name]).items()
    }
    links = (nic_outputs.interfaces(outputs["ip-link"].stdout) if "ip-link" in outputs else None) or {}
    by_pci = {about["pci"]: netdev for netdev, about in net.items() if about.get("pci")}
    found: dict[str, NicPlace] = {}
    taken: set[str] = set()
    for rdma in nic_outputs.rdma_files(contents):
        netdev = rdma.netdev or by_pci.get(rdma.pci, "")
        taken.add(netdev)
        found.setdefault(rdma.device, NicPlace(rdma.device, rdma.pci, netdev))
    for netdev, about in sorted(net.items()):
        if about.get("pci") and netdev not in taken:
            found[netdev] = NicPlace(netdev, about["pci"], netdev)
    macs, versions = {name: link.mac for name, link in links.items()}, _firmware(outputs)
    told = (replace(n, mac=macs.get(n.netdev, ""), firmware=versions.get(n.netdev, "")) for n in found.values())
    return tuple(_known(target, nic) for nic in told)


def _known(target: Target, nic: NicPlace) -> NicPlace:
    """What is declared of the NIC stays: the machine tells names and addresses, the site what they are for."""
    row = target.expected.nic(nic.device) or target.expected.nic(nic.pci) or target.expected.nic(nic.netdev)
    return nic if row is None else replace(nic, device=row.device)


def _firmware(outputs: Mapping[str, Output]) -> dict[str, str]:
    """Firmware by interface, of `ethtool -i`."""
    prefix = "ethtool-i."
    found = {
        name[len(prefix) :]: nic_outputs.driver(output.stdout).get("firmware-version", "").partition(" (")[0]
        for name, output in outputs.items()
        if name.startswith(prefix)
    }
    return {netdev: text for netdev, text in found.items() if text and text != "N/A"}


def _lldp_neighbours(output: Output | None) -> dict[str, Neighbour]:
    """`lldpctl -f json`: one interface is a table, several are a list of tables; a name is text or {"value": text}."""
    try:
        told = json.loads(output.stdout) if output is not None else {}
    except (ValueError, RecursionError):
        return {}
    rows = _at(told, "lldp", "interface")
    found: dict[str, Neighbour] = {}
    for row in rows if isinstance(rows, list) else [rows]:
        for netdev, about in (row if isinstance(row, dict) else {}).items():
            machine = _chassis_name(_at(about, "chassis"))
            names = (_text(_at(about, "port", "id")), _text(_at(about, "port", "descr")))
            if machine:
                found[str(netdev)] = Neighbour(resources.short_host(machine), tuple(filter(None, names)))
    return found


def _chassis_name(chassis: Any) -> str:
    """`{"leaf-01": {"id": ...}}`, or `{"id": ..., "name": ...}` in other versions."""
    chassis = chassis[0] if isinstance(chassis, list) and chassis else chassis
    if not isinstance(chassis, dict):
        return ""
    if isinstance(chassis.get("id"), dict) and ("type" in chassis["id"] or "value" in chassis["id"]):
        return _text(chassis.get("name"))
    return next((str(name) for name, about in chassis.items() if isinstance(about, dict)), "")


def _at(table: Any, *keys: str) -> Any:
    for key in keys:
        if isinstance(table, list):
            table = table[0] if table else None
        table = table.get(key) if isinstance(table, dict) else None
    return table


def _text(value: Any) -> str:
    if isinstance(value, list):
        value = value[0] if value else ""
    if isinstance(value, dict):
        value = value.get("value", "")
    return value.strip()[:64] if isinstance(value, str) else ""


def switch_neighbours(target: Target, values: Mapping[str, SnmpValue]) -> dict[str, Neighbour]:
    """LLDP-MIB: own port, as the inventory names it, to neighbour. Rows are timeMark.localPort.index (802.1AB).

    A local port is told by its number or by one of its names: SONiC's agent gives the alias that is on the front.
    """
    tables = switch_tables.Tables(values, (*switch_tables.NEIGHBOURS, *switch_tables.NAMES))
    named = switch_ports.names(tables, target.expected)
    by_text = {tables.text(column, index): index for column in switch_tables.NAMES[:2] for index in named}
    found: dict[str, Neighbour] = {}
    for row in tables.column(switch_tables.LLDP_REMOTE_NAME):
        parts = row.split(".")
        machine = tables.text(switch_tables.LLDP_REMOTE_NAME, row)
        if len(parts) != 3 or not machine:
            continue
        own = tables.text(switch_tables.LLDP_LOCAL_PORT, parts[1])
        port = named.get(by_text.get(own, parts[1]), own)
        told = _port_id(tables.column(switch_tables.LLDP_REMOTE_PORT).get(row))
        names = (told, tables.text(switch_tables.LLDP_REMOTE_PORT_DESCR, row))
        if port:
            found[port] = Neighbour(resources.short_host(machine), tuple(filter(None, names)))
    return found


def _port_id(value: SnmpValue) -> str:
    """A hardware address comes as six bytes, a name as text."""
    if isinstance(value, bytes) and len(value) == 6 and not all(32 <= byte < 127 for byte in value):
        return ":".join(f"{byte:02x}" for byte in value)
    return switch_tables.shown(value)


def far_end(
    neighbour: Neighbour, *, switches: Mapping[str, Sequence[str]], nodes: Mapping[str, Iterable[NicPlace]]
) -> str:
    """The neighbour's end of the cable as a resource path; empty when the machine is none of the inventory's.

    A switch tells its port by name, a node by interface, RDMA device or hardware address.
    """
    if neighbour.machine in switches:
        ports = switches[neighbour.machine]
        known = next((name for name in neighbour.ports if name in ports), "")
        own = next((name for name in neighbour.ports if name.startswith("Ethernet")), "")  # SONiC's, not its alias
        name = known or own or next(iter(neighbour.ports), "")
        return resources.port(neighbour.machine, name) if name else ""
    for nic in nodes.get(neighbour.machine, ()):
        if {nic.netdev, nic.device, nic.mac} & {name.lower() if ":" in name else name for name in neighbour.ports} - {
            ""
        }:
            return resources.nic(neighbour.machine, nic.device)
    return ""
