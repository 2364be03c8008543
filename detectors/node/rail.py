"""Rails of a node against each other: how many bytes each carries, and which carries much less than
the median.

A slow rail alone is no fault: jobs may be laid out so. It becomes one with a cause beside it on the
node, or where several nodes and jobs agree (`agreed`). Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Optional

from detectors.detector import Reading, Samples, Target, TargetKind, Transports
from detectors.faults import Observation
from detectors.node.outputs.nic_ports import FABRIC, NicPort, pci_command, ports, rdma_command

_COUNTERS = ("port_rcv_data", "port_xmit_data")
# both count in words of four bytes:
# https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
_WORD = 4
_LOST = ("symbol_error", "port_rcv_errors", "local_link_integrity_errors", "rx_icrc_encapsulated")
_SENT_AGAIN = (
    *("out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err"),
    *("roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart"),
)
_PCIE = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
_GIGATRANSFERS = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ?GT/s")
# Rates over other spans are not comparable: the model site samples every 60 s (arXiv 2604.13600).
_SHORTEST, _LONGEST = timedelta(seconds=50), timedelta(seconds=70)
# Below this share of line rate a node is idle, or waits for another:
# docs/reference/detectors/nic.md.
_BUSY_SHARE = 0.05
# |z| of one in eight cannot pass 2.47, so that the median is what is compared with; of two it would
# be their mean.
_FEWEST_RAILS = 3
# Some packets are sent again on every rail, as flowlets are moved about: one more or less says
# nothing.
_CLEARLY_MORE = 2
# How many agree before a slow rail is more than one job's layout: docs/reference/detectors/nic.md.
NODES_THAT_AGREE, _JOBS_THAT_AGREE = 3, 2
SEVERAL_NODES = "several nodes"
"""The qualifier of `nic.rail.degraded` where nodes agree, as against a cause that one node shows by
itself."""


class RailDetector:
    """Observes `rail.*` of the ports that the inventory calls fabric."""

    name: ClassVar[str] = "rail"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(seconds=60)
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "rail.bytes_per_s",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset(
        {"rail.rx_bytes", "rail.tx_bytes", "rail.lost", "rail.sent_again", "rail.ratio"}
    )

    def wants(self, target: Target) -> bool:
        """Without an inventory nobody knows which ports are rails: their bytes are told all the
        same."""
        return not target.expected.nics or any(nic.role == FABRIC for nic in target.expected.nics)

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """Two searches of sysfs in one go; nothing that the cards' firmware has to answer."""
        counters = [f"counters/{name}" for name in (*_COUNTERS, *_LOST)] + [
            f"hw_counters/{name}" for name in _SENT_AGAIN
        ]
        wanted = (
            "rate",
            "link_layer",
            "state",
            "phys_state",
            "gid_attrs/ndevs/0",
            *counters,
            "hw_counters/rx_icrc*",
        )
        commands = [rdma_command(*wanted), pci_command(*_PCIE)]
        return Reading(self.name, target, now, via.shell.run_all(target, self.name, commands))

    def sniff(self, text: bytes) -> str:
        return "infiniband"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        rails = [port for port in ports(reading) if port.rdma is not None]
        for port in rails:
            yield from _told(reading, port)
        complaint = _complaint(reading, rails)
        yield reading.silent(complaint) if complaint else reading.answered()

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        rates = {rate.resource: rate for rate in _rates(now, before)}
        if len(rates) < _FEWEST_RAILS:
            return
        median = statistics.median(rate.bytes_per_s for rate in rates.values())
        for rate in rates.values():
            yield rate.observed("rail.bytes_per_s", round(rate.bytes_per_s), "")
        line_rate = statistics.median(rate.line_bytes_per_s for rate in rates.values())
        if median <= _BUSY_SHARE * line_rate:
            return
        for rate in rates.values():
            others = [
                other
                for other in rates.values()
                if other is not rate and other.bytes_per_s >= median
            ]
            text = (
                f"carries {rate.bytes_per_s / 1e9:.1f} GB/s, the median of the node's rails is"
                f" {median / 1e9:.1f}"
            )
            ratio = round(rate.bytes_per_s / median, 3)
            yield rate.observed("rail.ratio", ratio, text)
            cause = _cause(rate, others)
            told = f"{text}; {cause}" if cause else f"{text}; nothing beside it says why"
            yield rate.observed("rail.ratio_explained", ratio if cause else 1.0, told)


def _told(reading: Reading, port: NicPort) -> Iterator[Observation]:
    at = port.resource(reading.target)
    rdma = port.rdma
    if rdma is None:
        return
    row = port.expected
    speed = float(row.speed_gbps) if row is not None and row.speed_gbps else rdma.rate_gbps
    said = {"role": port.role, "rail": "" if row is None or row.rail is None else str(row.rail)}
    said["line_gbps"] = f"{speed:g}" if speed else ""
    said["pcie"] = _pcie_share(rdma.files)
    said = {name: value for name, value in said.items() if value}
    for metric, name in (("rail.rx_bytes", "port_rcv_data"), ("rail.tx_bytes", "port_xmit_data")):
        if name in rdma.counters:
            yield reading.saw(metric, rdma.counters[name] * _WORD, at, **said)
    for metric, names in (("rail.lost", _LOST), ("rail.sent_again", _SENT_AGAIN)):
        if any(name in rdma.counters for name in names):
            yield reading.saw(metric, sum(rdma.counters.get(name, 0) for name in names), at)


def _pcie_share(files: Mapping[str, str]) -> str:
    """`0.5` where the card's PCI Express link has half the width or speed that it could have;
    empty: not known."""
    found = [files.get(f"device/{name}", "") for name in _PCIE]
    speeds = [_GIGATRANSFERS.match(text) for text in found[:2]]
    widths = [int(text[:3]) if text.isdecimal() else 0 for text in found[2:]]
    if speeds[0] is None or speeds[1] is None or not widths[1]:
        return ""
    most = float(speeds[1][1]) * widths[1]
    return f"{float(speeds[0][1]) * widths[0] / most:g}" if most else ""


def _complaint(reading: Reading, rails: Sequence[NicPort]) -> str:
    output = reading.outputs.get("infiniband")
    if output is None or output.status is None or output.is_missing:
        return f"sysfs: {output.complaint}" if output is not None else "nothing was read"
    is_without = b"/sys/class/infiniband" in output.stderr and b"No such file" in output.stderr
    if rails or (not reading.target.expected.nics and (output.status == 0 or is_without)):
        return ""
    return f"sysfs shows no RDMA device: {output.complaint}"


@dataclass(frozen=True)
class _Rate:
    """One rail over the last span."""

    resource: str
    at: datetime
    rail: str
    bytes_per_s: float
    line_bytes_per_s: float
    lost: int
    sent_again: int
    pcie: str

    def observed(self, metric: str, value: float, text: str) -> Observation:
        said = {name: word for name, word in (("rail", self.rail), ("text", text)) if word}
        return Observation(self.resource, metric, value, self.at, said)


def _rates(now: Sequence[Observation], before: Samples) -> Iterator[_Rate]:
    """Of fabric ports whose counters were read 50 to 70 s apart. The busier direction counts."""
    grown: dict[str, dict[str, float]] = {}
    about: dict[str, Observation] = {}
    for seen in now:
        last = before.get((seen.resource, seen.metric))
        if (
            last is None
            or not isinstance(seen.value, int)
            or not isinstance(last.value, (int, float))
        ):
            continue
        span = seen.observed_at - last.at
        if not _SHORTEST <= span <= _LONGEST or seen.value < last.value:
            continue
        per = span.total_seconds() if seen.metric in ("rail.rx_bytes", "rail.tx_bytes") else 1.0
        grown.setdefault(seen.resource, {})[seen.metric] = (seen.value - last.value) / per
        if seen.attributes.get("role") == FABRIC and seen.attributes.get("line_gbps"):
            about[seen.resource] = seen
    for resource, seen in about.items():
        values = grown[resource]
        busier = max(values.get("rail.rx_bytes", 0.0), values.get("rail.tx_bytes", 0.0))
        line = float(seen.attributes["line_gbps"]) * 1e9 / 8
        lost, sent_again = int(values.get("rail.lost", 0)), int(values.get("rail.sent_again", 0))
        rail, pcie = seen.attributes.get("rail", ""), seen.attributes.get("pcie", "")
        yield _Rate(resource, seen.observed_at, rail, busier, line, lost, sent_again, pcie)


def _cause(rate: _Rate, others: Sequence[_Rate]) -> str:
    """What beside a slow rail explains it. Retransmissions count where the rails that keep up have
    fewer."""
    if rate.lost:
        return f"it lost {rate.lost} packets or symbols meanwhile"
    if rate.pcie and float(rate.pcie) < 1:
        return f"its PCI Express link runs at {float(rate.pcie):.0%} of what it could"
    most = max((other.sent_again for other in others), default=0)
    if rate.sent_again > _CLEARLY_MORE * most:
        return (
            f"{rate.sent_again} retransmissions meanwhile, at most {most} on the rails that keep up"
        )
    return ""


@dataclass(frozen=True)
class SlowRail:
    """One rail that is slow on one node. `place` is its leaf switch where that is known, else `rail
    3`."""

    node: str
    resource: str
    place: str
    ratio: float
    jobs: frozenset[str]


@dataclass(frozen=True)
class RailAgreement:
    """Whether a slow rail is a fault, with the sentence that says why or why not."""

    place: str
    rails: tuple[SlowRail, ...]
    is_fault: bool
    reason: str


def agreed(slow: Sequence[SlowRail]) -> list[RailAgreement]:
    """By place. Nodes of one job prove nothing, its layout may be the cause; a node without a job
    nothing at all.

    The same place slow on at least 3 nodes in at least 2 jobs is a fault, and most likely the
    place's.
    """
    by_place: dict[str, list[SlowRail]] = {}
    for each in slow:
        if each.jobs:
            by_place.setdefault(each.place, []).append(each)
    found = []
    for place, rails in sorted(by_place.items()):
        nodes = sorted({each.node for each in rails})
        jobs = sorted(frozenset().union(*(each.jobs for each in rails)))
        is_fault = len(nodes) >= NODES_THAT_AGREE and len(jobs) >= _JOBS_THAT_AGREE
        reason = (
            f"{place} is slow on {_counted(len(nodes), 'node')} in {_counted(len(jobs), 'job')}"
        )
        reason += (
            ": look at it first"
            if is_fault
            else ", too few to tell a fault from how a job is laid out"
        )
        found.append(RailAgreement(place, tuple(rails), is_fault, reason))
    return found


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def confirmed(slow: Sequence[SlowRail], at: datetime) -> Iterator[Observation]:
    """The observations by which an agreement raises `nic.rail.degraded` on its rails, and the lack
    of one clears it."""
    for agreement in agreed(slow):
        for rail in agreement.rails:
            value = rail.ratio if agreement.is_fault else 1.0
            said = {"text": agreement.reason, "qualifier": SEVERAL_NODES}
            yield Observation(rail.resource, "rail.ratio_explained", value, at, said)


def slow_rail(
    seen: Observation, *, place: Optional[str], jobs: frozenset[str]
) -> Optional[SlowRail]:
    """Of a `rail.ratio` that stands; None for another observation."""
    parts = seen.resource.split("/")
    if seen.metric != "rail.ratio" or len(parts) < 2 or not isinstance(seen.value, (int, float)):
        return None
    where = place or f"rail {seen.attributes.get('rail') or seen.resource.rpartition('/')[2]}"
    return SlowRail(parts[1], seen.resource, where, float(seen.value), jobs)
