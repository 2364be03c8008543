"""What machines tell of their own parts and neighbours, as an inventory. Pure: the caller collects.

Over SSH, read-only: `nvidia-smi -q -x`, sysfs, `ip -j link`, `ethtool -i`, and `lldpctl`, which
alone needs root. Over SNMP the neighbours of IEEE 802.1AB's LLDP-MIB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from detectors import resources
from detectors.detector import Command, Output, SnmpValue, Target
from detectors.node.outputs import nic_outputs, nic_ports, nvidia_smi
from detectors.switch import ports as switch_ports
from detectors.switch import tables as switch_tables
from detectors.transports import files
from incidents.topology.topology import GpuPlace, NicPlace, NodePlace, NvSwitchPlace

# nvidia-smi takes seconds on a node without its persistence daemon (detectors/node/gpu.py).
_GPU_LIMIT = timedelta(seconds=30)
_LIMIT = timedelta(seconds=10)
# An NVSwitch is a PCI bridge device of NVIDIA's of class 0x0680
# (https://pci-ids.ucw.cz/read/PD/06/80).
_NVIDIA, _NVSWITCH_CLASS = "0x10de", "0x068000"
_WHOLE = ("nvidia-smi", "net", "infiniband", "ip-link", "lldp", "pci")


@dataclass(frozen=True)
class Neighbour:
    """What LLDP heard on one port: the machine's short name, and its names for the port at that
    end."""

    machine: str
    ports: tuple[str, ...]


@dataclass(frozen=True)
class DiscoveredMachine:
    """Of one machine. `neighbours` by own port (interface of a node); `failed` says which looks
    came to nothing."""

    place: NodePlace
    neighbours: Mapping[str, Neighbour] = field(default_factory=dict)
    failed: tuple[str, ...] = ()


def build_commands() -> tuple[Command, ...]:
    """The first round: everything that needs no name of an interface."""
    devices = "/sys/bus/pci/devices"
    gpus = Command("nvidia-smi", ("nvidia-smi", "-q", "-x"), _GPU_LIMIT)
    rdma = nic_ports.build_rdma_command("gid_attrs/ndevs/0", "link_layer")
    pci = files.build_read_command(
        "pci", devices, f"{devices}/*/vendor", f"{devices}/*/class", depth=2
    )
    links = Command("ip-link", ("ip", "-j", "-s", "link"), _LIMIT)
    # lldpd's socket is root's.
    lldp = Command("lldp", ("lldpctl", "-f", "json"), _LIMIT, as_root=True)
    return (
        gpus,
        nic_ports.build_net_command(),
        rdma,
        nic_ports.build_pci_command(),
        pci,
        links,
        lldp,
    )


def build_further_commands(outputs: Mapping[str, Output]) -> tuple[Command, ...]:
    """The second round: the driver of each interface that is a PCI device."""
    net = nic_outputs.parse_net_files(_get_contents(outputs, "net"))
    named = sorted(netdev for netdev, about in net.items() if about.get("pci"))
    return tuple(
        Command(f"ethtool-i.{netdev}", ("ethtool", "-i", netdev), _LIMIT) for netdev in named
    )


def parse_node(target: Target, outputs: Mapping[str, Output]) -> DiscoveredMachine:
    """The parts of one node, joined with what the inventory knows of them."""
    gpus = _parse_gpus(target, outputs)
    nics = _parse_nics(target, outputs)
    nvswitches = _parse_nvswitches(outputs)
    parts = {"gpus": gpus, "nics": nics, "nvswitches": nvswitches}
    given = frozenset(name for name, places in parts.items() if places)
    place = NodePlace(
        target.name, gpus=gpus, nics=nics, nvswitches=nvswitches, given=given, is_observed=True
    )
    return DiscoveredMachine(
        place, _parse_lldp_neighbours(outputs.get("lldp")), tuple(_list_failed(outputs))
    )


def _list_failed(outputs: Mapping[str, Output]) -> Iterator[str]:
    for name in _WHOLE:
        output = outputs.get(name)
        if output is None:
            yield f"{name}: it was not run"
        elif output.status != 0 and not output.stdout.strip():
            yield f"{name}: {'not installed' if output.is_missing else output.complaint}"


def _parse_gpus(target: Target, outputs: Mapping[str, Output]) -> tuple[GpuPlace, ...]:
    """A GPU keeps the index that the inventory has for its address; new ones count on in the
    driver's order."""
    output = outputs.get("nvidia-smi")
    if output is None:
        return ()
    cards = nvidia_smi.read(output.stdout, output.stderr).cards or ()
    known = {pci: int(index) for index, pci in target.expected.gpus}
    indexes = set(range(len(known) + len(cards)))
    free = iter(sorted(indexes - set(known.values())))
    places = []
    for card in cards:
        if card.pci:
            index = known[card.pci] if card.pci in known else next(free)
            places.append(GpuPlace(index, card.pci, card.get_text("uuid"), card.get_text("serial")))
    return tuple(places)


def _parse_nvswitches(outputs: Mapping[str, Output]) -> tuple[NvSwitchPlace, ...]:
    devices: dict[str, dict[str, str]] = {}
    for path, text in _get_contents(outputs, "pci").items():
        *_, device, name = path.split("/")
        devices.setdefault(device, {})[name] = text.strip()
    addresses = []
    for device, values in devices.items():
        pci = resources.pci_address(device)
        kind = (values.get("vendor"), values.get("class"))
        if pci and kind == (_NVIDIA, _NVSWITCH_CLASS):
            addresses.append(pci)
    return tuple(NvSwitchPlace(pci) for pci in sorted(addresses))


def _get_contents(outputs: Mapping[str, Output], name: str) -> Mapping[str, str]:
    """The files that a command printed, by path; none where it was not run."""
    return files.parse_contents(outputs[name]) if name in outputs else {}


def _parse_nics(target: Target, outputs: Mapping[str, Output]) -> tuple[NicPlace, ...]:
    """RDMA devices with their interfaces, then interfaces of PCI devices without one; as the
    inventory names them."""
    net = nic_outputs.parse_net_files(_get_contents(outputs, "net"))
    rdma_contents = {
        **_get_contents(outputs, "infiniband"),
        **_get_contents(outputs, "infiniband-device"),
    }
    by_pci = {}
    for netdev, about in net.items():
        if about.get("pci"):
            by_pci[about["pci"]] = netdev
    nics: dict[str, NicPlace] = {}
    rdma_netdevs: set[str] = set()
    for rdma in nic_outputs.parse_rdma_files(rdma_contents):
        netdev = rdma.netdev or by_pci.get(rdma.pci, "")
        rdma_netdevs.add(netdev)
        nics.setdefault(rdma.device, NicPlace(rdma.device, rdma.pci, netdev))
    for netdev, about in sorted(net.items()):
        if about.get("pci") and netdev not in rdma_netdevs:
            nics[netdev] = NicPlace(netdev, about["pci"], netdev)

    macs, versions = _parse_macs(outputs), _parse_firmware(outputs)
    places = []
    for nic in nics.values():
        mac = macs.get(nic.netdev, "")
        firmware = versions.get(nic.netdev, "")
        places.append(_keep_declared(target, replace(nic, mac=mac, firmware=firmware)))
    return tuple(places)


def _parse_macs(outputs: Mapping[str, Output]) -> dict[str, str]:
    """Hardware addresses by interface, of `ip link`."""
    if "ip-link" not in outputs:
        return {}
    links = nic_outputs.parse_interfaces(outputs["ip-link"].stdout) or {}
    return {netdev: link.mac for netdev, link in links.items()}


def _keep_declared(target: Target, nic: NicPlace) -> NicPlace:
    """What is declared of the NIC stays: the machine tells names and addresses, the site what they
    are for."""
    expected = target.expected
    row = expected.nic(nic.device) or expected.nic(nic.pci) or expected.nic(nic.netdev)
    return nic if row is None else replace(nic, device=row.device)


def _parse_firmware(outputs: Mapping[str, Output]) -> dict[str, str]:
    """Firmware by interface, of `ethtool -i`."""
    prefix = "ethtool-i."
    versions = {}
    for name, output in outputs.items():
        if not name.startswith(prefix):
            continue
        text = nic_outputs.parse_driver(output.stdout).get("firmware-version", "")
        version, _, _ = text.partition(" (")
        if version and version != "N/A":
            versions[name.removeprefix(prefix)] = version
    return versions


def _parse_lldp_neighbours(output: Output | None) -> dict[str, Neighbour]:
    """`lldpctl -f json`: one interface is a table, several are a list of tables; a name is text or
    {"value": text}."""
    try:
        document = json.loads(output.stdout) if output is not None else {}
    except (ValueError, RecursionError):
        return {}
    interfaces = _get_nested(document, "lldp", "interface")
    tables = interfaces if isinstance(interfaces, list) else [interfaces]
    neighbours: dict[str, Neighbour] = {}
    for table in tables:
        if not isinstance(table, dict):
            continue
        for netdev, about in table.items():
            machine = _parse_chassis_name(_get_nested(about, "chassis"))
            names = (
                _parse_text(_get_nested(about, "port", "id")),
                _parse_text(_get_nested(about, "port", "descr")),
            )
            if machine:
                neighbours[str(netdev)] = _parse_neighbour(machine, names)
    return neighbours


def _parse_neighbour(machine: str, port_names: Iterable[str]) -> Neighbour:
    return Neighbour(resources.short_host(machine), tuple(filter(None, port_names)))


def _parse_chassis_name(chassis: Any) -> str:
    """`{"leaf-01": {"id": ...}}`, or `{"id": ..., "name": ...}` in other versions."""
    chassis = chassis[0] if isinstance(chassis, list) and chassis else chassis
    if not isinstance(chassis, dict):
        return ""
    own_id = chassis.get("id")
    if isinstance(own_id, dict) and ("type" in own_id or "value" in own_id):
        return _parse_text(chassis.get("name"))
    for name, about in chassis.items():
        if isinstance(about, dict):
            return str(name)
    return ""


def _get_nested(table: Any, *keys: str) -> Any:
    for key in keys:
        if isinstance(table, list):
            table = table[0] if table else None
        table = table.get(key) if isinstance(table, dict) else None
    return table


def _parse_text(value: Any) -> str:
    if isinstance(value, list):
        value = value[0] if value else ""
    if isinstance(value, dict):
        value = value.get("value", "")
    return value.strip()[:64] if isinstance(value, str) else ""


def parse_switch_neighbours(
    target: Target, values: Mapping[str, SnmpValue]
) -> dict[str, Neighbour]:
    """LLDP-MIB: own port, as the inventory names it, to neighbour. Rows are
    timeMark.localPort.index (802.1AB).

    A local port is told by its number or by one of its names: SONiC's agent gives the alias that is
    on the front.
    """
    tables = switch_tables.Tables(values, (*switch_tables.NEIGHBOURS, *switch_tables.NAMES))
    named = switch_ports.list_port_names(tables, target.expected)
    by_text = {}
    for column in switch_tables.NAMES[:2]:
        for index in named:
            by_text[tables.get_text(column, index)] = index
    neighbours: dict[str, Neighbour] = {}
    for row in tables.get_column(switch_tables.LLDP_REMOTE_NAME):
        parts = row.split(".")
        machine = tables.get_text(switch_tables.LLDP_REMOTE_NAME, row)
        if len(parts) != 3 or not machine:
            continue
        own = tables.get_text(switch_tables.LLDP_LOCAL_PORT, parts[1])
        port = named.get(by_text.get(own, parts[1]), own)
        port_id = _parse_port_id(tables.get_column(switch_tables.LLDP_REMOTE_PORT).get(row))
        description = tables.get_text(switch_tables.LLDP_REMOTE_PORT_DESCR, row)
        if port:
            neighbours[port] = _parse_neighbour(machine, (port_id, description))
    return neighbours


def _parse_port_id(value: SnmpValue) -> str:
    """A hardware address comes as six bytes, a name as text."""
    if isinstance(value, bytes) and len(value) == 6:
        is_text = all(32 <= byte < 127 for byte in value)
        if not is_text:
            return ":".join(f"{byte:02x}" for byte in value)
    return switch_tables.format_value(value)


def find_far_end(
    neighbour: Neighbour,
    *,
    switches: Mapping[str, Sequence[str]],
    nodes: Mapping[str, Iterable[NicPlace]],
) -> str:
    """The neighbour's end of the cable as a resource path; empty when the machine is none of the
    inventory's.

    A switch tells its port by name, a node by interface, RDMA device or hardware address.
    """
    if neighbour.machine in switches:
        ports = switches[neighbour.machine]
        known = [name for name in neighbour.ports if name in ports]
        sonic = [name for name in neighbour.ports if name.startswith("Ethernet")]  # not its alias
        names = [*known, *sonic, *neighbour.ports]
        return resources.port(neighbour.machine, names[0]) if names else ""
    heard = set()
    for name in neighbour.ports:
        heard.add(name.lower() if ":" in name else name)
    heard.discard("")
    for nic in nodes.get(neighbour.machine, ()):
        if heard & {nic.netdev, nic.device, nic.mac}:
            return resources.nic(neighbour.machine, nic.device)
    return ""
