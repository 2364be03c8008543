"""PCI Express of a node by sysfs: error counters, and each link against what both of its ends can
do.

Python 3.9, standard library alone. Facts only; thresholds and severities are the catalogue's
(polled_gpu.toml).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from detectors.faults import Observation
from detectors.transports import files

_ROOT = "/sys/bus/pci/devices"
_LINKS = files.build_read_command(
    "links",
    _ROOT,
    *("*/class", "*/vendor", "*/secondary_bus_number"),
    *("*/current_link_speed", "*/current_link_width", "*/max_link_speed", "*/max_link_width"),
    depth=2,
)
# Of each file of some twenty counters only the sum and what is not zero: a node has up to 300
# devices.
_AER = Command(
    "aer",
    (
        *("find", "-L", _ROOT, "-maxdepth", "2", "-path", "*/aer_dev_*", "-type", "f"),
        *("-exec", "grep", "-sHZ", "-e", "^TOTAL_ERR_", "-e", " [1-9]", "{}", "+"),
    ),
    timeout=timedelta(seconds=10),
)
_LSPCI = "lspci"
# PCI classes (https://pci-ids.ucw.cz/read/PD): what a job needs. Other devices, such as the BMC's
# screen, are left out.
_BRIDGE, _NVSWITCH = "0604", "0680"
_GPUS = ("0300", "0302")
_GPU_VENDORS = ("10de", "1002")
_WANTED = (_BRIDGE, _NVSWITCH, "0200", "0207", "0108")
# 0, 63 and 255 lanes are what sysfs shows of a device without a link.
_LANES = range(1, 33)
_KINDS = {
    "aer_dev_correctable": "corrected",
    "aer_dev_nonfatal": "nonfatal",
    "aer_dev_fatal": "fatal",
}
_HEADER = re.compile(
    r"^(?P<pci>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<name>[^:\[]{1,60}?)"
    r"(?: \[(?P<class>[0-9a-f]{4})\])?:"
)
_ABILITY = re.compile(
    r"^\s+LnkCap:.{0,40}?Speed (?P<speed>[\d.]{1,6})GT/s.{0,20}?Width x(?P<width>\d{1,2})"
)
_STATE = re.compile(
    r"^\s+LnkSta:\s+Speed (?P<speed>[\d.]{1,6})GT/s.{0,20}?Width x(?P<width>\d{1,2})"
)
_BUS = re.compile(r"^\s+Bus: primary=[0-9a-f]{2}, secondary=(?P<bus>[0-9a-f]{2})\b")
# lspci without -nn prints names alone.
_CLASS_NAMES = {
    "3D controller": "0302",
    "VGA compatible controller": "0300",
    "PCI bridge": _BRIDGE,
    "Bridge": _NVSWITCH,
    "Ethernet controller": "0200",
    "Infiniband controller": "0207",
    "Non-Volatile memory controller": "0108",
}


@dataclass(frozen=True)
class PcieLink:
    """One end's word on its link, in GT/s and lanes; None where it does not say."""

    speed: Optional[float] = None
    width: Optional[int] = None


@dataclass(frozen=True)
class Device:
    """One PCI function. `below` is the bus behind a bridge, as `dddd:bb`."""

    pci: str
    kind: str
    vendor: str = ""
    below: str = ""
    now: PcieLink = field(default_factory=PcieLink)
    best: PcieLink = field(default_factory=PcieLink)

    @property
    def bus(self) -> str:
        return self.pci[:7]

    @property
    def is_gpu(self) -> bool:
        return self.kind in _GPUS and self.vendor in _GPU_VENDORS


class PcieDetector(NothingToCompare):
    """Links below their best, errors that rise. Metrics: docs/reference/detectors/gpu.md."""

    name: ClassVar[str] = "pcie"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(seconds=120)
    families: ClassVar[frozenset[str]] = frozenset()
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "pcie.gpus_on_bus",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset({"pcie.aer_counts"})

    def wants(self, target: Target) -> bool:
        return True

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """Two finds in one go, for any user. Raises DetectorError when the node cannot be
        reached."""
        outputs = via.shell.run_all(target, self.name, (_LINKS, _AER))
        return Reading(detector=self.name, target=target, taken_at=now, outputs=outputs)

    def sniff(self, text: bytes) -> str:
        head = text[:100_000]
        if b"\0" not in head:
            return _LSPCI
        return _AER.name if b"/aer_dev_" in head else _LINKS.name

    def parse(self, reading: Reading) -> Iterator[Observation]:
        found = _parse_devices(reading)
        counts = _parse_errors(reading)
        cut = next((output for output in reading.outputs.values() if output.status is None), None)
        if cut is not None or (not found and counts is None):
            first = cut or next(iter(reading.outputs.values()), None)
            yield reading.silent(f"{_ROOT}: {first.complaint if first else 'nothing was read'}")
            return
        yield reading.answered()
        watched = [device for device in found if device.is_gpu or device.kind in _WANTED]
        devices = {device.pci: device for device in watched}
        if found:
            gpu_count = sum(1 for device in found if device.is_gpu)
            yield reading.saw("pcie.gpus_on_bus", gpu_count)
        yield from _observe_links(reading, devices)
        if counts is not None:
            wanted = {pci: kinds for pci, kinds in counts.items() if not found or pci in devices}
            yield reading.saw("pcie.aer_counts", _pack(wanted))

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        """Errors since the last look, by device and kind; the first sight is the baseline."""
        for seen in now:
            if seen.metric == "pcie.aer_counts":
                yield from _observe_increases(seen, before)


def _parse_devices(reading: Reading) -> list[Device]:
    lspci = reading.outputs.get(_LSPCI)
    if lspci is not None:
        return list(_parse_lspci(lspci))
    return list(_parse_sysfs(reading.outputs.get(_LINKS.name)))


def _parse_sysfs(output: Optional[Output]) -> Iterator[Device]:
    if output is None:
        return
    texts: dict[str, dict[str, str]] = {}
    for path, text in files.parse_contents(output).items():
        parts = path.split("/")
        pci = resources.pci_address(parts[-2]) if len(parts) > 2 else None
        if pci is not None:
            texts.setdefault(pci, {})[parts[-1]] = text.strip()
    for pci, values in texts.items():
        if "class" not in values:
            continue
        bus = values.get("secondary_bus_number", "")
        below = f"{pci[:4]}:{int(bus):02x}" if bus.isdecimal() and len(bus) < 4 else ""
        vendor = values.get("vendor", "")[2:]
        now = _link(values.get("current_link_speed", ""), values.get("current_link_width", ""))
        best = _link(values.get("max_link_speed", ""), values.get("max_link_width", ""))
        yield Device(pci, values["class"][2:6], vendor, below, now, best)


def _parse_lspci(output: Output) -> Iterator[Device]:
    """`lspci`, of which -vvv as root tells of links."""
    device: Optional[Device] = None
    for line in output.stdout.decode("utf-8", "replace").splitlines():
        line = line[:400]
        head = _HEADER.match(line)
        if head is not None:
            if device is not None:
                yield device
            kind = head["class"] or _CLASS_NAMES.get(head["name"].strip(), "")
            pci = resources.pci_address(head["pci"]) or head["pci"]
            device = Device(pci, kind, _parse_vendor(line))
        elif device is not None:
            device = _add_line(device, line)
    if device is not None:
        yield device


def _parse_vendor(line: str) -> str:
    if "NVIDIA" in line:
        return "10de"
    return "1002" if "[AMD/ATI]" in line else ""


def _add_line(device: Device, line: str) -> Device:
    best = _ABILITY.match(line)
    if best is not None:
        return replace(device, best=_link(best["speed"], best["width"]))
    now = _STATE.match(line)
    if now is not None:
        return replace(device, now=_link(now["speed"], now["width"]))
    bus = _BUS.match(line)
    if bus is not None:
        return replace(device, below=f"{device.pci[:4]}:{bus['bus']}")
    return device


def _link(speed: str, width: str) -> PcieLink:
    """`32.0 GT/s PCIe`, `8 GT/s`, `Unknown`; `16`."""
    gts = re.match(r"\d{1,3}(?:\.\d{1,3})?", speed)
    lanes = int(width) if width.isdecimal() and len(width) < 4 else 0
    known_speed = float(gts[0]) if gts else None
    known_lanes = lanes if lanes in _LANES else None
    return PcieLink(known_speed, known_lanes)


def _observe_links(reading: Reading, devices: Mapping[str, Device]) -> Iterator[Observation]:
    """Each link once, at the first function of its lower end, against the lesser of both ends'
    best."""
    above = {device.below: device for device in devices.values() if device.below}
    is_lspci = _LSPCI in reading.outputs
    for device in devices.values():
        port = above.get(device.bus)
        if not device.pci.endswith(".0") or device.now.width is None or _is_port(device, above):
            continue
        if port is None and not is_lspci:
            continue  # a guest, or a part of the processor: what its slot can do is not known
        yield from _evaluate_device(reading, device, port)


def _is_port(device: Device, above: Mapping[str, Device]) -> bool:
    """Root ports and the lower ports of switches: their links are those of what is plugged into
    them.

    From the root down, bridges are by turns a port and the upper end of a switch.
    """
    depth, bus = 0, device.bus
    while bus in above and depth < len(above):
        depth, bus = depth + 1, above[bus].bus
    return device.kind == _BRIDGE and depth % 2 == 0


def _evaluate_device(
    reading: Reading, device: Device, port: Optional[Device]
) -> Iterator[Observation]:
    best = port.best if port is not None else PcieLink()
    width = _get_lesser(device.best.width, best.width)
    speed = _get_lesser(device.best.speed, best.speed)
    now = device.now
    short = []
    if width is not None and now.width is not None and now.width < width:
        short.append(f"width x{now.width} of x{width:g}")
    is_slow = speed is not None and now.speed is not None and now.speed < speed
    if is_slow and not device.is_gpu:
        short.append(f"speed {now.speed:g} of {speed:g} GT/s")
    if is_slow and not short:
        return  # an idle GPU slows its link on purpose: nothing is said of it either way
    attributes = {}
    if short:
        where = f" below {port.pci}" if port is not None else ""
        attributes["text"] = f"{device.pci}{where}: {', '.join(short)}"
    resource = _get_resource(reading.target, device)
    yield reading.saw("pcie.full_link", not short, resource, **attributes)


def _get_lesser(*values: Optional[float]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return min(known) if known else None


def _get_resource(target: Target, device: Device) -> str:
    """As ingest names it: the GPU, the NIC that the inventory has there, else the bare PCI
    function."""
    if device.is_gpu:
        return resources.gpu(target.name, device.pci)
    nic = target.expected.nic(device.pci)
    if nic is not None:
        return resources.nic(target.name, nic.device)
    return resources.pci_device(target.name, device.pci)


def _parse_errors(reading: Reading) -> Optional[dict[str, dict[str, int]]]:
    """PCI address to count by kind, of those not zero; None where the kernel keeps no counters, or
    none were read."""
    output = reading.outputs.get(_AER.name)
    if output is None:
        return None
    found: dict[str, dict[str, int]] = {}
    for path, text in files.parse_contents(output).items():
        parts = path.split("/")
        kind = _KINDS.get(parts[-1], "")
        pci = resources.pci_address(parts[-2]) if len(parts) > 2 else None
        totals = [line for line in text.splitlines() if line.startswith("TOTAL_ERR_")]
        if not kind or pci is None or not totals:
            continue
        total = totals[0].split()[-1]
        if total.isdecimal():
            found.setdefault(pci, {})[kind] = int(total[:18])
    return found or None


def _pack(counts: Mapping[str, Mapping[str, int]]) -> str:
    """`address/kind=count` of those above zero: a text that a memory keeps at little cost."""
    cells: list[str] = []
    for pci, kinds in sorted(counts.items()):
        cells += [f"{pci}/{kind}={count}" for kind, count in sorted(kinds.items()) if count]
    return ";".join(cells)


def _unpack(text: str) -> dict[tuple[str, str], int]:
    found = {}
    for item in text.split(";"):
        name, _, count = item.partition("=")
        pci, _, kind = name.partition("/")
        if count.isdecimal():
            found[pci, kind] = int(count)
    return found


def _observe_increases(seen: Observation, before: Samples) -> Iterator[Observation]:
    """A counter below its last value was reset by a boot: a new baseline. On the bare function, as
    the log has it."""
    last = before.get((seen.resource, seen.metric))
    if last is None or not isinstance(last.value, str):
        return
    passed_s = (seen.observed_at - last.at).total_seconds()
    if passed_s <= 0:
        return
    old = _unpack(last.value)
    for (pci, kind), count in _unpack(str(seen.value)).items():
        grown = count - old.get((pci, kind), 0)
        if grown <= 0:
            continue
        resource = f"{seen.resource}/pci/{pci}"
        text = {"text": f"{pci}: {grown} {kind} PCI Express errors in {passed_s:.0f} s"}
        yield Observation(resource, f"pcie.aer.{kind}_new", grown, seen.observed_at, text)
        if kind == "corrected":
            rate = grown * 60 / passed_s
            yield Observation(resource, "pcie.aer.corrected_a_minute", rate, seen.observed_at, text)
