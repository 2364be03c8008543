"""Rails of a node against each other: how many bytes each carries, and which carries much less than
the median.

A slow rail alone is no fault: jobs may be laid out so. It becomes one with a cause beside it on the
node, or where several nodes and jobs agree (`find_agreements`). Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Optional

from detectors.detector import (
    NothingToCompare,
    Reading,
    Sample,
    Samples,
    Target,
    TargetKind,
    Transports,
)
from detectors.faults import Observation
from detectors.node.outputs.nic_ports import (
    FABRIC,
    NicPort,
    build_pci_command,
    build_rdma_command,
    list_ports,
)

_COUNTERS = ("port_rcv_data", "port_xmit_data")
_BYTES = ("rail.rx_bytes", "rail.tx_bytes")
# both count in words of four bytes:
# https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
_WORD = 4
_LOST = ("symbol_error", "port_rcv_errors", "local_link_integrity_errors", "rx_icrc_encapsulated")
_SENT_AGAIN = (
    *("out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err"),
    *("roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart"),
)
_FILES = ("rate", "link_layer", "state", "phys_state", "gid_attrs/ndevs/0")
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


class RailDetector(NothingToCompare):
    """Observes `rail.*` of the ports that the inventory calls fabric."""

    name: ClassVar[str] = "rail"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(seconds=60)
    families: ClassVar[frozenset[str]] = frozenset()
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
        counters = [f"counters/{name}" for name in (*_COUNTERS, *_LOST)]
        hw_counters = [f"hw_counters/{name}" for name in (*_SENT_AGAIN, "rx_icrc*")]
        commands = [build_rdma_command(*_FILES, *counters, *hw_counters), build_pci_command(*_PCIE)]
        return Reading(self.name, target, now, via.shell.run_all(target, self.name, commands))

    def sniff(self, text: bytes) -> str:
        return "infiniband"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        rails = [port for port in list_ports(reading) if port.rdma is not None]
        for port in rails:
            yield from _observe_port(reading, port)
        complaint = _find_complaint(reading, rails)
        yield reading.silent(complaint) if complaint else reading.answered()

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        rates = {rate.resource: rate for rate in _compute_rates(now, before)}
        if len(rates) < _FEWEST_RAILS:
            return
        median = statistics.median(rate.bytes_per_s for rate in rates.values())
        for rate in rates.values():
            yield rate.observe("rail.bytes_per_s", round(rate.bytes_per_s), "")
        line_rate = statistics.median(rate.line_bytes_per_s for rate in rates.values())
        if median <= _BUSY_SHARE * line_rate:
            return
        for rate in rates.values():
            faster = [peer for peer in rates.values() if peer.bytes_per_s >= median]
            cause = _find_cause(rate, [peer for peer in faster if peer is not rate])
            own_gb_per_s, median_gb_per_s = rate.bytes_per_s / 1e9, median / 1e9
            text = (
                f"carries {own_gb_per_s:.1f} GB/s, the median of the node's rails is"
                f" {median_gb_per_s:.1f}"
            )
            ratio = round(rate.bytes_per_s / median, 3)
            yield rate.observe("rail.ratio", ratio, text)
            explanation = cause or "nothing beside it says why"
            explained = ratio if cause else 1.0
            yield rate.observe("rail.ratio_explained", explained, f"{text}; {explanation}")


def _observe_port(reading: Reading, port: NicPort) -> Iterator[Observation]:
    resource = port.get_resource(reading.target)
    rdma = port.rdma
    if rdma is None:
        return
    nic = port.expected
    speed = float(nic.speed_gbps) if nic is not None and nic.speed_gbps else rdma.rate_gbps
    facts = {"role": port.role, "rail": ""}
    if nic is not None and nic.rail is not None:
        facts["rail"] = str(nic.rail)
    facts["line_gbps"] = f"{speed:g}" if speed else ""
    facts["pcie"] = _compute_pcie_share(rdma.files)
    attributes = {name: value for name, value in facts.items() if value}
    for metric, name in (("rail.rx_bytes", "port_rcv_data"), ("rail.tx_bytes", "port_xmit_data")):
        if name in rdma.counters:
            yield reading.saw(metric, rdma.counters[name] * _WORD, resource, **attributes)
    for metric, names in (("rail.lost", _LOST), ("rail.sent_again", _SENT_AGAIN)):
        counts = [rdma.counters[name] for name in names if name in rdma.counters]
        if counts:
            yield reading.saw(metric, sum(counts), resource)


def _compute_pcie_share(files: Mapping[str, str]) -> str:
    """`0.5` where the card's PCI Express link has half the width or speed that it could have;
    empty: not known."""
    texts = [files.get(f"device/{name}", "") for name in _PCIE]
    speed, best_speed = (_GIGATRANSFERS.match(text) for text in texts[:2])
    width, best_width = (int(text[:3]) if text.isdecimal() else 0 for text in texts[2:])
    if speed is None or best_speed is None or not best_width:
        return ""
    best = float(best_speed[1]) * best_width
    return f"{float(speed[1]) * width / best:g}" if best else ""


def _find_complaint(reading: Reading, rails: Sequence[NicPort]) -> str:
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

    def observe(self, metric: str, value: float, text: str) -> Observation:
        fields = {"rail": self.rail, "text": text}
        attributes = {name: word for name, word in fields.items() if word}
        return Observation(self.resource, metric, value, self.at, attributes)


def _compute_rates(now: Sequence[Observation], before: Samples) -> Iterator[_Rate]:
    """Of fabric ports whose counters were read 50 to 70 s apart. The busier direction counts."""
    growth: dict[str, dict[str, float]] = {}
    fabric: dict[str, Observation] = {}
    for observation in now:
        last = before.get((observation.resource, observation.metric))
        increase = _compute_increase(observation, last) if last is not None else None
        if increase is None:
            continue
        growth.setdefault(observation.resource, {})[observation.metric] = increase
        attributes = observation.attributes
        if attributes.get("role") == FABRIC and attributes.get("line_gbps"):
            fabric[observation.resource] = observation
    for resource, observation in fabric.items():
        yield _make_rate(observation, growth[resource])


def _compute_increase(observation: Observation, last: Sample) -> Optional[float]:
    """Bytes per second, all else as counted; None where the two cannot be compared."""
    value = observation.value
    if not isinstance(value, int) or not isinstance(last.value, (int, float)):
        return None
    span = observation.observed_at - last.at
    if not _SHORTEST <= span <= _LONGEST or value < last.value:
        return None
    increase = float(value - last.value)
    return increase / span.total_seconds() if observation.metric in _BYTES else increase


def _make_rate(observation: Observation, growth: Mapping[str, float]) -> _Rate:
    attributes = observation.attributes
    busier_direction = max(growth.get(metric, 0.0) for metric in _BYTES)
    line_rate = float(attributes["line_gbps"]) * 1e9 / 8
    rail, pcie = attributes.get("rail", ""), attributes.get("pcie", "")
    lost, sent_again = int(growth.get("rail.lost", 0)), int(growth.get("rail.sent_again", 0))
    return _Rate(
        observation.resource,
        observation.observed_at,
        rail,
        busier_direction,
        line_rate,
        lost,
        sent_again,
        pcie,
    )


def _find_cause(rate: _Rate, faster: Sequence[_Rate]) -> str:
    """What beside a slow rail explains it. Retransmissions count where the rails that keep up have
    fewer."""
    if rate.lost:
        return f"it lost {rate.lost} packets or symbols meanwhile"
    if rate.pcie and float(rate.pcie) < 1:
        return f"its PCI Express link runs at {float(rate.pcie):.0%} of what it could"
    most = max((peer.sent_again for peer in faster), default=0)
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


def find_agreements(slow: Sequence[SlowRail]) -> list[RailAgreement]:
    """By place. Nodes of one job prove nothing, its layout may be the cause; a node without a job
    nothing at all.

    The same place slow on at least 3 nodes in at least 2 jobs is a fault, and most likely the
    place's.
    """
    by_place: dict[str, list[SlowRail]] = {}
    for rail in slow:
        if rail.jobs:
            by_place.setdefault(rail.place, []).append(rail)
    agreements = []
    for place, rails in sorted(by_place.items()):
        nodes = {rail.node for rail in rails}
        jobs = frozenset().union(*(rail.jobs for rail in rails))
        is_fault = len(nodes) >= NODES_THAT_AGREE and len(jobs) >= _JOBS_THAT_AGREE
        counts = f"{_format_count(len(nodes), 'node')} in {_format_count(len(jobs), 'job')}"
        advice = (
            ": look at it first"
            if is_fault
            else ", too few to tell a fault from how a job is laid out"
        )
        reason = f"{place} is slow on {counts}{advice}"
        agreements.append(RailAgreement(place, tuple(rails), is_fault, reason))
    return agreements


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def evaluate_slow_rails(slow: Sequence[SlowRail], now: datetime) -> Iterator[Observation]:
    """The observations by which an agreement raises `nic.rail.degraded` on its rails, and the lack
    of one clears it."""
    for agreement in find_agreements(slow):
        for rail in agreement.rails:
            value = rail.ratio if agreement.is_fault else 1.0
            attributes = {"text": agreement.reason, "qualifier": SEVERAL_NODES}
            yield Observation(rail.resource, "rail.ratio_explained", value, now, attributes)


def find_slow_rail(
    observation: Observation, *, place: Optional[str], jobs: frozenset[str]
) -> Optional[SlowRail]:
    """Of a `rail.ratio` that stands; None for another observation."""
    resource, ratio = observation.resource, observation.value
    parts = resource.split("/")
    if observation.metric != "rail.ratio" or len(parts) < 2:
        return None
    if not isinstance(ratio, (int, float)):
        return None
    rail = observation.attributes.get("rail") or parts[-1]
    return SlowRail(parts[1], resource, place or f"rail {rail}", float(ratio), jobs)
