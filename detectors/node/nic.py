"""Network cards of a node: links, speed, errors, retransmissions, congestion marks and pauses.

What a port's state means is `nic_link`'s, which port is which `nic_ports`'. Python 3.9, standard
library alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Optional

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
from detectors.evaluation.cable_ends import OF_NODE_LINK, LinkState
from detectors.faults import Observation
from detectors.node.outputs import nic_outputs
from detectors.node.outputs.nic_counters import (
    CARRIER_FILES,
    RATES,
    compute_bit_error_rates,
    compute_rates,
    list_counters,
)
from detectors.node.outputs.nic_link import Link, is_link_up, link
from detectors.node.outputs.nic_outputs import NAME, Settings
from detectors.node.outputs.nic_ports import (
    RESERVED,
    NicPort,
    build_net_command,
    build_pci_command,
    build_rdma_command,
    find_peers,
    is_all_known,
    list_interfaces,
    list_ports,
)

_LIMIT = timedelta(seconds=10)
_UNNAMED = "-"
# Of types that something else raises too, which must not clear them: another counter, or the
# kernel's log.
_APART = {
    "nic.ib.out_of_spec": "out of specification",
    "nic.fec_uncorrectable_blocks": "uncorrectable blocks",
    "nic.module_errors": "by counters",
}
_SETTINGS, _STATISTICS, _FEC, _DRIVER = "ethtool.", "ethtool-S.", "ethtool-fec.", "ethtool-i."
# A ConnectX-7 prints some 4,000 counters, nearly all of single queues: the node picks the lines,
# 150 kB less to carry. The pattern and the interface are arguments of a fixed text, never part of
# it.
_PICK = 'ethtool -S "$1" | grep -E "$2"'
_LINES = (
    "^ *(NIC statistics|rx_.*_phy|link_down|[rt]x_prio[0-7]_pause|tx_pause_storm"
    "|module_|.*_pci_|.*out_of_buffer)"
)
_NOT_INSTALLED = "it is not installed"
_NO_STATISTICS = (b"no stats available", b"Operation not supported")
# gpud counts an outage of an InfiniBand port from 25 s on:
# components/accelerator/nvidia/infiniband/store/scan_flaps.go of https://github.com/leptonai/gpud.
# How many make a fault is the catalogue's.
_OUTAGE_FROM = timedelta(seconds=25)


class NicDetector(NothingToCompare):
    """Observes `nic.*` of every port of a network card."""

    name: ClassVar[str] = "nic"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(seconds=60)
    families: ClassVar[frozenset[str]] = frozenset()
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "nic.fec_corrected_blocks_per_s",
            "nic.fec_uncorrectable_blocks_per_s",
            "nic.firmware",
            "nic.guid",
            "nic.interface",
            "nic.local_ack_timeout_err_per_s",
            "nic.mac",
            "nic.mtu",
            "nic.np_cnp_sent_per_s",
            "nic.np_ecn_marked_roce_packets_per_s",
            "nic.out_of_sequence_per_s",
            "nic.packet_seq_err_per_s",
            "nic.pci",
            "nic.roce_slow_restart_per_s",
            "nic.rp_cnp_handled_per_s",
            "nic.rx_bits_phy_per_s",
            "nic.rx_corrected_bits_phy_per_s",
            "nic.rx_prio3_pause_duration_per_s",
            "nic.rx_prio3_pause_per_s",
            "nic.tx_pause_storm_error_events_per_s",
            "nic.tx_pause_storm_warning_events_per_s",
            "nic.tx_prio3_pause_duration_per_s",
            "nic.tx_prio3_pause_per_s",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset(
        {"nic.link.was_up", "nic.ib.down_since", "nic.ib.outages", *RATES, *OF_NODE_LINK}
    )

    def wants(self, target: Target) -> bool:
        return True

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """One round where the inventory names every interface, otherwise a second for those that
        the first lists."""
        ip = Command("ip", ("ip", "-j", "link"), _LIMIT)
        rdma = Command("rdma", ("rdma", "-j", "link"), _LIMIT)
        ibstat = Command("ibstat", ("ibstat",), _LIMIT)
        first = [ip, build_net_command(), rdma, build_rdma_command(), build_pci_command(), ibstat]
        if is_all_known(target):
            first += _list_ethtool_commands(list_interfaces({}, target))
            outputs = via.shell.run_all(target, self.name, first)
            return Reading(self.name, target, now, outputs)
        outputs = via.shell.run_all(target, self.name, first)
        second = _list_ethtool_commands(list_interfaces(outputs, target))
        more = via.shell.run_all(target, self.name, second) if second else {}
        return Reading(self.name, target, now, {**outputs, **more})

    def sniff(self, text: bytes) -> str:
        head = text[:4000].lstrip()
        if head.startswith((b"CA '", b"Infiniband device '")) or b"\nCA '" in head:
            return "ibstat"
        if head.startswith(b"["):
            return "ip" if b'"flags"' in text else "rdma"
        if head.startswith(b"link "):
            return "rdma"
        if b"/sys/class/" in head:
            return "net" if b"/sys/class/net/" in head else "infiniband"
        if b"FEC encoding" in head:
            return _FEC + _UNNAMED
        if head.startswith(b"driver: "):
            return _DRIVER + _UNNAMED
        if b"Link detected:" in text or head.startswith(b"Settings for "):
            found = nic_outputs.parse_settings(text)
            named = found.netdev if found is not None and NAME.fullmatch(found.netdev) else _UNNAMED
            return _SETTINGS + named
        return _STATISTICS + _UNNAMED

    def parse(self, reading: Reading) -> Iterator[Observation]:
        settings = _get_settings(reading)
        found = list_ports(reading, extra=_list_named_interfaces(reading))
        for port in found:
            peers = find_peers(port, found)
            about = link(port, settings.get(port.netdev), peers)
            yield from _link(reading, port, about)
            yield from _observe_speed(reading, port, settings, found)
            yield from _observe_counters(reading, port)
            yield from _observe_identity(reading, port)
        complaints = list(_list_complaints(reading))
        if not complaints:
            yield from _observe_missing(reading, found)
        if complaints:
            yield reading.silent("; ".join(complaints)[:500])
        else:
            yield reading.answered()

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        for seen in now:
            if seen.metric != "nic.link.state" or seen.value != LinkState.UNCABLED.value:
                continue
            if (seen.resource, "nic.link.was_up") in before:
                metric = _get_working_metric(seen.attributes.get("layer") == "infiniband")
                text = "link is down; it was up before"
                attributes = {**seen.attributes, "text": text}
                yield Observation(seen.resource, metric, False, seen.observed_at, attributes)
        yield from _observe_outages(now, before)
        speeds = list(compute_rates(now, before))
        yield from speeds
        yield from compute_bit_error_rates(speeds)


def _list_ethtool_commands(netdevs: Sequence[str]) -> list[Command]:
    commands = []
    for netdev in netdevs:
        commands.append(Command(_SETTINGS + netdev, ("ethtool", netdev), _LIMIT))
        pick = ("sh", "-c", _PICK, "sh", netdev, _LINES)
        commands.append(Command(_STATISTICS + netdev, pick, _LIMIT))
        commands.append(Command(_FEC + netdev, ("ethtool", "-I", "--show-fec", netdev), _LIMIT))
    return commands


def _list_named_interfaces(reading: Reading) -> list[str]:
    """Interfaces of which single outputs were handed in, without a list of what there is."""
    names = [] if "ip" in reading.outputs else list(reading.outputs)
    prefixes = (_SETTINGS, _STATISTICS, _FEC, _DRIVER)
    return [name.partition(".")[2] for name in names if name.startswith(prefixes)]


def _get_settings(reading: Reading) -> Mapping[str, Settings]:
    by_netdev: dict[str, Settings] = {}
    for name, output in reading.outputs.items():
        if not name.startswith(_SETTINGS):
            continue
        settings = nic_outputs.parse_settings(output.stdout)
        if settings is not None:
            by_netdev[name[len(_SETTINGS) :]] = settings
    return by_netdev


def _get_working_metric(is_infiniband: bool) -> str:
    return "nic.ib.link.working" if is_infiniband else "nic.link.working"


def _link(reading: Reading, port: NicPort, about: Link) -> Iterator[Observation]:
    """The state as a fact, and a judgement only where there is one: of an uncabled port nothing is
    claimed."""
    at = port.get_resource(reading.target)
    layer = "infiniband" if port.is_infiniband else "ethernet"
    attributes = {"text": about.text, "layer": layer, **_names(port)}
    yield reading.saw("nic.link.state", about.state.value, at, **attributes)
    if about.state is LinkState.UP:
        yield reading.saw("nic.link.was_up", True, at)
    if port.role != RESERVED and about.state in (LinkState.UP, LinkState.FAILED):
        metric = _get_working_metric(port.is_infiniband)
        yield reading.saw(metric, about.state is LinkState.UP, at, **attributes)


def _names(port: NicPort) -> dict[str, str]:
    rail = port.expected.rail if port.expected is not None else None
    named = {"interface": port.netdev, "role": port.role, "rail": "" if rail is None else str(rail)}
    return {name: value for name, value in named.items() if value not in ("", _UNNAMED)}


def _observe_speed(
    reading: Reading, port: NicPort, settings: Mapping[str, Settings], found: Sequence[NicPort]
) -> Iterator[Observation]:
    speed = _get_gbps(port, settings)
    if speed is None or not is_link_up(port, settings.get(port.netdev)):
        return
    wanted = _get_wanted_gbps(port, settings, found)
    attributes = _names(port)
    if wanted is not None and port.role != RESERVED:
        attributes["raise_at"] = f"{wanted:g}"
        attributes["text"] = f"runs at {speed:g} Gb/s of {wanted:g}"
    yield reading.saw("nic.speed_gbps", speed, port.get_resource(reading.target), **attributes)


def _get_wanted_gbps(
    port: NicPort, settings: Mapping[str, Settings], found: Sequence[NicPort]
) -> Optional[float]:
    """Without the inventory's word, no more is wanted of a port than one of its kind on this node
    runs at."""
    if port.expected is not None and port.expected.speed_gbps:
        return float(port.expected.speed_gbps)
    about = settings.get(port.netdev)
    if about is None or about.supported_gbps is None:
        return None
    speeds = []
    for other in found:
        other_settings = settings.get(other.netdev)
        if other_settings is None or other_settings.supported_gbps != about.supported_gbps:
            continue
        speed = _get_gbps(other, settings)
        if speed is not None:
            speeds.append(speed)
    return max(speeds, default=None)


def _get_gbps(port: NicPort, settings: Mapping[str, Settings]) -> Optional[float]:
    about = settings.get(port.netdev)
    if about is not None and about.speed_gbps is not None:
        return about.speed_gbps
    return port.rdma.rate_gbps if port.rdma is not None and port.is_infiniband else None


def _observe_counters(reading: Reading, port: NicPort) -> Iterator[Observation]:
    output = reading.outputs.get(_STATISTICS + port.netdev)
    statistics = nic_outputs.parse_statistics(output.stdout) if output is not None else {}
    blocks = reading.outputs.get(_FEC + port.netdev)
    correction = nic_outputs.parse_correction(blocks.stdout) if blocks is not None else {}
    carrier: dict[str, int] = {}
    for name, text in port.files.items():
        if name in CARRIER_FILES and text.isdecimal():
            carrier[name] = int(text[:18])
    rdma = port.rdma.counters if port.rdma is not None else {}
    counters = {**carrier, **rdma, **statistics, **correction}
    for metric, value, text in list_counters(counters, is_infiniband=port.is_infiniband):
        attributes = {"text": text, **_names(port)}
        if metric in _APART:
            attributes["qualifier"] = _APART[metric]
        yield reading.saw(metric, value, port.get_resource(reading.target), **attributes)


def _observe_identity(reading: Reading, port: NicPort) -> Iterator[Observation]:
    resource = port.get_resource(reading.target)
    output = reading.outputs.get(_DRIVER + port.netdev)
    driver = nic_outputs.parse_driver(output.stdout) if output is not None else {}
    firmware, guid = "", ""
    if port.rdma is not None:
        firmware, guid = port.rdma.firmware, port.rdma.guid
    pci = resources.pci_address(port.pci or driver.get("bus-info", ""))
    mac = port.interface.mac if port.interface is not None else ""
    facts = {
        "nic.interface": port.netdev,
        "nic.pci": pci,
        "nic.mac": mac,
        "nic.firmware": firmware or driver.get("firmware-version", ""),
        "nic.guid": guid,
        "nic.driver": driver.get("driver", ""),
    }
    for metric, value in facts.items():
        if value and value != _UNNAMED:
            yield reading.saw(metric, value, resource)
    if port.interface is not None and port.interface.mtu:
        yield reading.saw("nic.mtu", port.interface.mtu, resource)


def _observe_missing(reading: Reading, found: Sequence[NicPort]) -> Iterator[Observation]:
    """Cards of the inventory that neither the kernel's interfaces nor its RDMA devices hold."""
    if "ip" not in reading.outputs:
        return
    seen = {port.device for port in found}
    for row in reading.target.expected.nics:
        text = (
            "the node shows it"
            if row.device in seen
            else "neither its interface nor its RDMA device is there"
        )
        at = resources.nic(reading.target.name, row.device)
        yield reading.saw("nic.present", row.device in seen, at, text=text, role=row.role)


def _list_complaints(reading: Reading) -> Iterator[str]:
    """What should have come and did not, or could not be read. RDMA's programs are optional, ip and
    ethtool are not."""
    known, reported = 0, set()
    for name, output in reading.outputs.items():
        program, _, netdev = name.partition(".")
        if _is_needed(program, output):
            trouble, is_read = _NOT_INSTALLED, False
        else:
            trouble, is_read = _evaluate_output(name, output)
        known += is_read
        if trouble and (program, trouble) not in reported:
            reported.add((program, trouble))
            netdev = "" if trouble == _NOT_INSTALLED else netdev
            asked = program if netdev in ("", _UNNAMED) else f"{program} of {netdev}"
            yield f"{asked}: {trouble}"
    if not known and not reported:
        yield "nothing that speaks of network cards"


def _is_needed(program: str, output: Output) -> bool:
    return program in ("ip", "ethtool") and output.is_missing


def _evaluate_output(name: str, output: Output) -> tuple[str, bool]:
    """What is wrong with one output, and whether it tells anything."""
    program = name.partition(".")[0]
    if name == "ip":
        is_read = output.status == 0 and nic_outputs.parse_interfaces(output.stdout) is not None
        return ("" if is_read else output.complaint), is_read
    if program == "ethtool":
        is_read = nic_outputs.parse_settings(output.stdout) is not None
        return ("" if is_read or _is_gone(output) else output.complaint), is_read
    if program == "ethtool-S":
        is_read = bool(nic_outputs.parse_statistics(output.stdout))
        has_none = any(words in output.stderr for words in _NO_STATISTICS)
        is_fine = is_read or output.status == 1 or has_none
        return ("" if is_fine or _is_gone(output) else output.complaint), is_read
    if name == "ibstat":
        has_panicked = b"ibpanic" in output.stdout + output.stderr
        complaint = output.complaint if has_panicked or output.status is None else ""
        return complaint, bool(nic_outputs.parse_ibstat(output.stdout))
    if output.status is None:
        return output.complaint, False
    is_read = bool(output.stdout.strip())
    if name == "rdma" and nic_outputs.parse_rdma_links(output.stdout) is None:
        is_read = False
    return "", is_read


def _is_gone(output: Output) -> bool:
    """That a card is not there is a fault of its own."""
    return b"No such device" in output.stderr


def _observe_outages(now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
    """How often each InfiniBand port came back after being seen down for so long: counted up from
    round to round."""
    for seen in now:
        if seen.metric != "nic.ib.link.working" or not isinstance(seen.value, bool):
            continue
        since = before.get((seen.resource, "nic.ib.down_since"))
        count = before.get((seen.resource, "nic.ib.outages"))
        total = count.value if count is not None and isinstance(count.value, int) else 0
        began = since.value if since is not None and isinstance(since.value, (int, float)) else 0
        moment = seen.observed_at.timestamp()
        if not seen.value:
            yield Observation(seen.resource, "nic.ib.down_since", began or moment, seen.observed_at)
        elif began:
            yield Observation(seen.resource, "nic.ib.down_since", 0, seen.observed_at)
            total += moment - began >= _OUTAGE_FROM.total_seconds()
        text = f"came back {total} times after an outage"
        yield Observation(seen.resource, "nic.ib.outages", total, seen.observed_at, {"text": text})
