"""What a node shows against the inventory and its peers: names, addresses, packet sizes, drivers,
neighbours.

Nothing is broken by itself here: a person changes a setting, a cable or the inventory. What the
outputs say is read in config_outputs.py. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Optional

from detectors import resources
from detectors.detector import (
    Command,
    NothingToCompare,
    Output,
    Reading,
    Samples,
    Target,
    TargetKind,
    Transports,
)
from detectors.expected import ExpectedNic
from detectors.faults import Observation
from detectors.node.outputs import config_outputs
from detectors.node.outputs.config_outputs import ConfiguredInterface, Driver, LldpNeighbour

HOSTNAME, ADDRESSES, NEIGHBOURS, LLDP, PROBE = (
    "hostname",
    "addresses",
    "neighbours",
    "lldp",
    "arping.",
)
_DRIVER, _LINK, _FEC = "ethtool-i.", "ethtool.", "ethtool-fec."
_LIMIT = timedelta(seconds=10)
_STORAGE_OR_FABRIC = ("fabric", "storage")
# Neighbours of a node: its subnets' machines. More than this is a routed table, of which the rest
# is not looked at.
_MOST_NEIGHBOURS = 2000
_MOST_MACS = 4


class ConfigDetector(NothingToCompare):
    """Observes `config.*` of a node, and `lldp.neighbour` of its network cards."""

    name: ClassVar[str] = "config"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(minutes=5)
    families: ClassVar[frozenset[str]] = frozenset({"lldp"})
    keeps: ClassVar[frozenset[str]] = frozenset({"config.neighbours", "config.neighbour_changes"})

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """One session. LLDP is asked where the inventory knows a cable, an address is probed where
        told to."""
        commands = [
            Command(HOSTNAME, ("hostname",), _LIMIT),
            Command(ADDRESSES, ("ip", "-j", "addr"), _LIMIT),
            Command(NEIGHBOURS, ("ip", "-j", "neigh"), _LIMIT),
        ]
        nics = [nic for nic in target.expected.nics if nic.netdev]
        commands += _list_ethtool_commands(nics)
        if any(nic.peer for nic in nics):
            # lldpd's socket belongs to root and its own group.
            commands.append(Command(LLDP, ("lldpctl", "-f", "json"), _LIMIT, as_root=True))
        if target.expected.settings.get("arping") == "yes":
            commands += [_get_probe_command(nic) for nic in nics if nic.address]
        return Reading(self.name, target, now, via.shell.run_all(target, self.name, commands))

    def sniff(self, text: bytes) -> str:
        head = text.lstrip()[:1]
        if head == b"{":
            return LLDP
        if head == b"[":
            return NEIGHBOURS if b'"dst"' in text and b'"lladdr"' in text else ADDRESSES
        if b"driver: " in text:
            return _DRIVER + "-"
        return ADDRESSES if b"mtu " in text else HOSTNAME

    def parse(self, reading: Reading) -> Iterator[Observation]:
        outputs = reading.outputs
        interfaces: Mapping[str, ConfiguredInterface] = {}
        if ADDRESSES in outputs:
            interfaces = config_outputs.parse_interfaces(outputs[ADDRESSES].stdout)
        complaint = _find_complaint(outputs, interfaces)
        yield reading.silent(complaint) if complaint else reading.answered()
        if HOSTNAME in outputs:
            yield from _observe_hostname(reading, outputs[HOSTNAME])
        if interfaces:
            yield from _observe_addresses(reading, interfaces)
            yield from _observe_sizes(reading, interfaces)
        drivers = _parse_drivers(outputs)
        yield from _observe_firmware(reading, drivers)
        yield from _observe_driver_versions(reading, drivers)
        yield from _link_settings(reading)
        if NEIGHBOURS in outputs:
            yield from _observe_neighbours(reading, outputs[NEIGHBOURS])
        yield from _observe_probes(reading)
        if LLDP in outputs:
            yield from _observe_far_ends(
                reading, config_outputs.parse_far_ends(outputs[LLDP].stdout)
            )

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        """An address whose hardware address goes from one to another and back again belongs to two
        machines.

        A single change is none: a machine was replaced, or an address moved to its standby.
        """
        for neighbours in now:
            table, resource = neighbours.value, neighbours.resource
            if neighbours.metric != "config.neighbours" or not isinstance(table, dict):
                continue
            last_table = _get_kept_table(before, resource, "config.neighbours")
            changes = dict(_get_kept_table(before, resource, "config.neighbour_changes"))
            for address, mac in table.items():
                if last_table.get(address, mac) != mac:
                    macs = changes.get(address, [last_table[address]])
                    changes[address] = [*macs, mac][-_MOST_MACS:]
            observed_at = neighbours.observed_at
            yield Observation(resource, "config.neighbour_changes", changes, observed_at)
            for address, macs in changes.items():
                if address in table and len(macs) > len(set(macs)):
                    text = f"{address} is answered by {' and '.join(sorted(set(macs)))} in turn"
                    yield _observe_conflict(neighbours, address, text)


def _get_kept_table(before: Samples, resource: str, metric: str) -> Mapping[str, Any]:
    sample = before.get((resource, metric))
    return sample.value if sample is not None and isinstance(sample.value, dict) else {}


def _observe_conflict(neighbours: Observation, address: str, text: str) -> Observation:
    resource, observed_at = neighbours.resource, neighbours.observed_at
    attributes = {"qualifier": address, "text": text}
    return Observation(resource, "config.neighbour_is_steady", False, observed_at, attributes)


def _list_ethtool_commands(nics: Sequence[ExpectedNic]) -> Iterator[Command]:
    for nic in nics:
        yield Command(_DRIVER + nic.netdev, ("ethtool", "-i", nic.netdev), _LIMIT)
    for nic in nics:
        if nic.role in _STORAGE_OR_FABRIC:
            yield Command(_LINK + nic.netdev, ("ethtool", nic.netdev), _LIMIT)
            yield Command(_FEC + nic.netdev, ("ethtool", "--show-fec", nic.netdev), _LIMIT)


def _get_probe_command(nic: ExpectedNic) -> Command:
    """iputils' arping: in duplicate address detection it sends as 0.0.0.0 and ends with 1 when
    somebody answers."""
    address = nic.address.partition("/")[0]
    options = ("-D", "-q", "-c", "2", "-w", "3", "-I", nic.netdev)
    return Command(PROBE + nic.netdev, ("arping", *options, address), _LIMIT, as_root=True)


def _find_complaint(
    outputs: Mapping[str, Output], interfaces: Mapping[str, ConfiguredInterface]
) -> str:
    """Of what must be there: `ip` and `hostname`. lldpd, ethtool and arping may not be
    installed."""
    for name in (HOSTNAME, ADDRESSES, NEIGHBOURS):
        if name in outputs and outputs[name].status != 0:
            return f"{name}: {outputs[name].complaint}"
    if ADDRESSES in outputs and not interfaces:
        return f"`ip -j addr` gave nothing that can be read: {outputs[ADDRESSES].complaint}"
    optional = [name for name, output in outputs.items() if output.status is None]
    return f"{optional[0]}: {outputs[optional[0]].complaint}" if optional else ""


def _observe_hostname(reading: Reading, output: Output) -> Iterator[Observation]:
    words = output.stdout.decode("utf-8", "replace").split()
    if output.status != 0 or not words:
        return
    name = resources.short_host(words[-1])  # a banner stands before it
    wanted = resources.short_host(reading.target.name)
    attributes = {"expected": wanted} if wanted != resources.UNKNOWN_HOST else {}
    text = f"it calls itself {name[:64]}; the inventory calls it {wanted}"
    yield reading.saw("config.hostname", name[:64], text=text, **attributes)


def _observe_addresses(
    reading: Reading, interfaces: Mapping[str, ConfiguredInterface]
) -> Iterator[Observation]:
    """Each address that the inventory gives: on the interface that it names, else anywhere on the
    node."""
    everywhere = {address for interface in interfaces.values() for address in interface.addresses}
    of_nics = set()
    for nic in reading.target.expected.nics:
        if not nic.address:
            continue
        address = nic.address.partition("/")[0]
        of_nics.add(address)
        own = set(interfaces[nic.netdev].addresses) if nic.netdev in interfaces else None
        own_text = ", ".join(sorted(own)) if own else "no address"
        text = f"{nic.netdev or nic.device} has {own_text}; the inventory gives it {address}"
        is_set = address in (everywhere if own is None else own)
        resource = resources.nic(reading.target.name, nic.device)
        yield reading.saw("config.address_is_set", is_set, resource, text=text)
    of_node = [address for address in reading.target.expected.addresses if _is_address(address)]
    wanted = [address for address in of_node if address not in of_nics]
    if wanted:
        missing = [address for address in wanted if address not in everywhere]
        text = f"no interface has {', '.join(missing)}" if missing else "every address is set"
        yield reading.saw("config.address_is_set", not missing, text=text)
    for interface in interfaces.values():
        for address in interface.refused:
            text = f"the kernel refused {address} on {interface.name}: another machine has it"
            yield reading.saw("config.address_is_free", False, qualifier=address, text=text)


def _is_address(text: str) -> bool:
    """A node's address in the inventory may be a name, or the loopback end of a tunnel to it."""
    if text.startswith("127.") or text == "::1":
        return False
    return text.replace(".", "").isdecimal() or ":" in text


def _observe_sizes(
    reading: Reading, interfaces: Mapping[str, ConfiguredInterface]
) -> Iterator[Observation]:
    """MTU against the inventory; where that is silent, against what most NICs of the role have on
    this node."""
    nics = [nic for nic in reading.target.expected.nics if nic.netdev in interfaces]
    for nic in nics:
        mtu = interfaces[nic.netdev].mtu
        if mtu is None:
            continue
        peers = [peer for peer in nics if peer.role == nic.role]
        if nic.mtu:
            wanted, source = str(nic.mtu), "the inventory says"
        elif nic.role in _STORAGE_OR_FABRIC:
            wanted = _find_majority([str(interfaces[peer.netdev].mtu) for peer in peers])
            source = f"the other {nic.role} cards have"
        else:
            wanted = source = ""
        text = f"MTU of {nic.netdev} is {mtu}; {source} {wanted}"
        attributes = {"expected": wanted, "text": text} if wanted else {}
        resource = resources.nic(reading.target.name, nic.device)
        yield reading.saw("config.nic_mtu", str(mtu), resource, **attributes)


def _link_settings(reading: Reading) -> Iterator[Observation]:
    """Error correction and negotiation of links that are up, against most cards of the same role on
    this node."""
    outputs, nics = reading.outputs, reading.target.expected.nics
    modes, fecs = {}, {}
    for nic in nics:
        link, fec = (_get_output(outputs, prefix + nic.netdev) for prefix in (_LINK, _FEC))
        modes[nic.netdev] = config_outputs.parse_autonegotiation(link)
        fecs[nic.netdev] = config_outputs.parse_active_fec(fec)
    up = [nic for nic in nics if modes[nic.netdev]]
    for metric, what, values in (
        ("config.nic_fec", "error correction", fecs),
        ("config.nic_autonegotiation", "negotiation", modes),
    ):
        for nic in up:
            value = values[nic.netdev]
            if not value:
                continue
            of_role = [values[peer.netdev] for peer in up if peer.role == nic.role]
            wanted = _find_majority([peer_value for peer_value in of_role if peer_value])
            text = f"{what} of {nic.netdev} is {value}; the other {nic.role} cards have {wanted}"
            attributes = {"expected": wanted, "text": text} if wanted else {}
            resource = resources.nic(reading.target.name, nic.device)
            yield reading.saw(metric, value, resource, **attributes)


def _get_output(outputs: Mapping[str, Output], name: str) -> bytes:
    output = outputs.get(name)
    return output.stdout if output is not None and output.status == 0 else b""


def _find_majority(values: Sequence[str]) -> str:
    """What more than half of at least three show; empty where there is no such value."""
    if len(values) < 3:
        return ""
    value, count = Counter(values).most_common(1)[0]
    return value if 2 * count > len(values) else ""


def _parse_drivers(outputs: Mapping[str, Output]) -> dict[str, Driver]:
    """By interface."""
    found = {}
    for name, output in outputs.items():
        if name.startswith(_DRIVER) and output.status == 0:
            driver = config_outputs.parse_driver(output.stdout)
            if driver is not None:
                found[name[len(_DRIVER) :]] = driver
    return found


def _observe_firmware(reading: Reading, drivers: Mapping[str, Driver]) -> Iterator[Observation]:
    """Firmware by board: cards of another model rightly have another. Peers on other nodes go
    before those here."""
    target = reading.target
    for netdev, driver in drivers.items():
        nic = target.expected.nic(netdev)
        if not driver.firmware:
            continue
        key = f"nic_firmware.{driver.board or driver.name}"
        alike = []
        for name, peer_driver in drivers.items():
            if _is_alike(target.expected.nic(name), peer_driver, nic, driver):
                alike.append(peer_driver.firmware)
        wanted = target.expected.peers.get(key, "") or _find_majority(alike)
        text = f"firmware of {netdev} is {driver.firmware}; its peers have {wanted}"
        attributes = {"expected": wanted, "text": text} if wanted else {}
        resource = resources.nic(target.name, nic.device if nic is not None else netdev)
        yield reading.saw("config.nic_firmware", driver.firmware, resource, key=key, **attributes)


def _is_alike(
    peer: Optional[ExpectedNic], other: Driver, nic: Optional[ExpectedNic], driver: Driver
) -> bool:
    """Same board and same role."""
    is_same_role = (peer.role if peer is not None else "") == (nic.role if nic is not None else "")
    return is_same_role and other.name == driver.name and other.board == driver.board


def _observe_driver_versions(
    reading: Reading, drivers: Mapping[str, Driver]
) -> Iterator[Observation]:
    """One version for each driver, as all cards of a node share it."""
    versions = {driver.name: driver.version for driver in drivers.values() if driver.version}
    for name, version in sorted(versions.items()):
        key = f"nic_driver.{name}"
        wanted = reading.target.expected.peers.get(key, "")
        text = f"{name} is version {version}; nodes of the same role have {wanted}"
        attributes = {"expected": wanted, "text": text} if wanted else {}
        yield reading.saw("config.nic_driver", version, qualifier=name, key=key, **attributes)


def _observe_neighbours(reading: Reading, output: Output) -> Iterator[Observation]:
    """The table for comparing with the next round, and addresses that two machines answer for right
    now."""
    rows = config_outputs.parse_neighbours(output.stdout)[:_MOST_NEIGHBOURS]
    if not rows:
        return
    by_link: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        by_link.setdefault((row.netdev, row.address), set()).add(row.mac)
    yield reading.saw(
        "config.neighbours", {row.address: row.mac for row in rows if _is_lasting(row)}
    )
    for (netdev, address), macs in sorted(by_link.items()):
        if len(macs) > 1:
            text = f"{address} is answered on {netdev} by {' and '.join(sorted(macs))}"
            yield reading.saw("config.neighbour_is_steady", False, qualifier=address, text=text)


def _is_lasting(row: LldpNeighbour) -> bool:
    """Link-local addresses are each link's own: the same one on two interfaces is no conflict."""
    return not row.address.startswith(("fe80:", "169.254."))


def _observe_probes(reading: Reading) -> Iterator[Observation]:
    for name, output in reading.outputs.items():
        if not name.startswith(PROBE) or output.is_missing or output.status not in (0, 1):
            continue
        nic = reading.target.expected.nic(name[len(PROBE) :])
        # sudo and arping itself end with 1 for their own troubles too, and say so on stderr.
        if nic is not None and not (output.status == 1 and output.stderr.strip()):
            text = f"another machine answers for {nic.address} on {nic.netdev}"
            yield reading.saw(
                "config.address_is_free", output.status == 0, qualifier=nic.address, text=text
            )


def _observe_far_ends(
    reading: Reading, found: Mapping[str, config_outputs.FarEnd]
) -> Iterator[Observation]:
    """`lldp.neighbour`: the far end as a resource path, exactly the expected one where it is as far
    as can be told."""
    for netdev, end in sorted(found.items()):
        nic = reading.target.expected.nic(netdev)
        wanted = nic.peer if nic is not None else ""
        path = _get_path(end, wanted)
        text = (
            f"the far end of {netdev} is {end.name}, port"
            f" {end.port or end.description or 'unknown'}"
        )
        if wanted:
            text += f"; the inventory has {wanted}"
        attributes = {"expected": wanted} if wanted else {}
        device = nic.device if nic is not None else netdev
        yield reading.saw(
            "lldp.neighbour",
            path,
            resources.nic(reading.target.name, device),
            text=text,
            **attributes,
        )


def _get_path(end: config_outputs.FarEnd, wanted: str) -> str:
    """SONiC tells a port's alias as its id and its name as its description; a hardware address
    tells no port at all."""
    kind, _, rest = wanted.partition("/")
    host = resources.short_host(end.name)
    if wanted and host == rest.partition("/")[0]:
        port = wanted.rpartition("/port/")[2] if "/port/" in wanted else ""
        if not port or port in (end.port, end.description) or not (end.port or end.description):
            return wanted
    named = (
        end.description if end.description.startswith("Ethernet") else end.port or end.description
    )
    return f"{kind or 'switch'}/{host}" + (f"/port/{named}" if named else "")
