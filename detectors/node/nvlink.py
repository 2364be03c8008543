"""NVLinks of a node's GPUs by `nvidia-smi nvlink`: which links are up, and the errors that each has
counted.

Python 3.9, standard library alone. Facts only; thresholds and severities are the catalogue's
(polled_gpu.toml).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from detectors.node.outputs import nvidia_smi, nvidia_smi_errors

_SMI = "nvidia-smi"
_LIMIT = timedelta(seconds=20)
_GPUS = Command(
    "gpus", (_SMI, "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"), _LIMIT
)
_STATUS = Command("nvlink-s", (_SMI, "nvlink", "-s"), _LIMIT)
_ERRORS = Command("nvlink-e", (_SMI, "nvlink", "-e"), _LIMIT)
_LANES = Command("nvlink-ec", (_SMI, "nvlink", "-ec"), _LIMIT)

# Not asked for, but read where people hand it in: `nvidia-smi topo -m`.
_TOPO = "topo"
_MATRIX_ROW = re.compile(
    r"^GPU(?P<index>\d{1,3})[ \t]+(?P<cells>(?:X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS)\b[^\r\n]{0,400})",
    re.MULTILINE,
)
_HEAD = re.compile(
    r"^GPU (?P<index>\d{1,3}): (?P<product>[^(\r\n]{1,120})(?:\(UUID: (?P<uuid>[^)\s]{1,80})\))?"
)
_LINK = re.compile(r"^\s*Link (?P<link>\d{1,3})\s?[:,] ?(?P<rest>[^\r\n]{1,120})")
_SPEED = re.compile(r"(?P<gbps>\d{1,4}(?:\.\d{1,6})?) GB/s$")
_COUNT = re.compile(r"^(?P<label>[A-Za-z][A-Za-z0-9 ,:/]{1,60}?):? +(?P<count>\d{1,20})$")
_LANE = re.compile(r"lane (?P<lane>\d{1,2})")
# `NVML: Unable to retrieve NVLink information as all links are inActive`, and the same with `Not
# Supported`.
_NONE_ACTIVE = re.compile(r"all links are inactive", re.IGNORECASE)

# Links of an SXM module or superchip, all of which lead to NVSwitches or to its neighbours on the
# board: https://docs.nvidia.com/health-validation/reference/checks/nvlink (18), NVIDIA A100 data
# sheet (12).
_LINKS_OF: Sequence[tuple[re.Pattern[str], int]] = (
    (re.compile(r"\b(?:H100 \d+GB HBM3|H200(?! NVL)|H20|GH200 NVL32|B200|B300|GB200|GB300)\b"), 18),
    (re.compile(r"\bA100-SXM"), 12),
)
# Other modules of which every one on a board has as many links as the next; cards with bridges need
# not.
_BOARD = re.compile(r"SXM|HBM3|HGX")
# What each counter's name says, by generation: to NVLink 4, then NVLink 5. What is counted in
# normal work is left out: recoveries that succeeded, symbols that were corrected.
_KINDS: Sequence[tuple[str, re.Pattern[str]]] = (
    ("recovery", re.compile(r"^recovery errors?|recovery failed", re.IGNORECASE)),
    ("replay", re.compile(r"replay", re.IGNORECASE)),
    ("ecc", re.compile(r"ecc", re.IGNORECASE)),
    ("crc", re.compile(r"crc", re.IGNORECASE)),
    (
        "receive",
        re.compile(r"malformed packet|buffer overrun|^rx |local link integrity", re.IGNORECASE),
    ),
)
_NAMED = 4


@dataclass
class _Gpu:
    """One GPU's part of the outputs. `speeds` maps link to GB/s, None for one that is down;
    `counts` by kind, link."""

    index: str
    product: str = ""
    uuid: str = ""
    speeds: dict[str, Optional[float]] = field(default_factory=dict)
    has_none_active: bool = False
    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def links_up(self) -> Optional[int]:
        """None where nothing was said: a GPU without NVLink, or split by MIG."""
        if self.speeds:
            return sum(1 for speed in self.speeds.values() if speed is not None)
        return 0 if self.has_none_active else None


class NvlinkDetector(NothingToCompare):
    """Links that are down, and counters of errors that rise.

    Metrics: docs/reference/detectors/gpu.md.
    """

    name: ClassVar[str] = "nvlink"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(seconds=60)
    families: ClassVar[frozenset[str]] = frozenset()
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "nvlink.links_up",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset({"nvlink.error_counts", "nvlink.links_best"})

    def wants(self, target: Target) -> bool:
        return True

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """Four short nvidia-smi calls in one go. Raises DetectorError when the node cannot be
        reached."""
        commands = (_GPUS, _STATUS, _ERRORS, _LANES, nvidia_smi.DEVICES)
        outputs = via.shell.run_all(target, self.name, commands)
        return Reading(detector=self.name, target=target, taken_at=now, outputs=outputs)

    def sniff(self, text: bytes) -> str:
        words = text[:4000].lower()
        if _MATRIX_ROW.search(text[:20_000].decode("utf-8", "replace")):
            return _TOPO
        if b"lane" in words:
            return _LANES.name
        return _ERRORS.name if b"errors:" in words else _STATUS.name

    def parse(self, reading: Reading) -> Iterator[Observation]:
        if _TOPO in reading.outputs:
            yield from _observe_topology(reading, reading.outputs[_TOPO])
            return
        outputs = dict(reading.outputs)
        outputs.pop(_GPUS.name, None)
        devices = outputs.pop(nvidia_smi.DEVICES.name, None)
        on_bus = nvidia_smi.are_on_bus(devices)
        if on_bus is False and not reading.target.expected.gpus:
            yield reading.answered()  # a node without GPUs
            return
        gpus = _parse_gpus(outputs.values())
        yield from _observe_answer(reading, outputs, has_gpus=bool(gpus))
        addresses = _get_addresses(reading, len(gpus))
        for gpu in gpus.values():
            address = addresses.get(gpu.index) or gpu.uuid or f"index:{gpu.index}"
            resource = resources.gpu(reading.target.name, address)
            yield from _observe_links(reading, gpu, gpus, resource)
            if gpu.counts:
                yield reading.saw("nvlink.error_counts", _pack(gpu.counts), resource)

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        """What each counter rose by, and links that were up once; the first sight is the baseline
        of both."""
        for seen in now:
            if seen.metric == "nvlink.error_counts":
                yield from _observe_increases(seen, before)
            elif seen.metric == "nvlink.links_up":
                yield from _observe_lost_links(seen, before)


def _observe_answer(
    reading: Reading, outputs: Mapping[str, Output], *, has_gpus: bool
) -> Iterator[Observation]:
    """Whether nvidia-smi gave what it was asked for, and how it failed."""
    if any(output.status is None for output in outputs.values()):
        yield nvidia_smi_errors.observe_hang(reading, _LIMIT.total_seconds())
        return
    if outputs and not has_gpus:
        first = next(iter(outputs.values()))
        yield from nvidia_smi_errors.observe_failure(reading, first, "nvidia-smi nvlink")
        return
    empty = [name for name, output in outputs.items() if _is_empty(output)]
    if empty or not outputs:
        name = empty[0] if empty else "nvlink"
        yield reading.silent(f"nvidia-smi {name.replace('-', ' -')}: no output")
    else:
        yield reading.answered()


def _is_empty(output: Output) -> bool:
    return not (output.stdout + output.stderr).strip()


def _parse_gpus(outputs: Iterable[Output]) -> dict[str, _Gpu]:
    """By index, from all outputs together. Text that is none of theirs is passed over."""
    found: dict[str, _Gpu] = {}
    for output in outputs:
        gpu: Optional[_Gpu] = None
        for line in output.text.splitlines():
            head = _HEAD.match(line)
            if head is not None:
                gpu = found.setdefault(head["index"], _Gpu(head["index"]))
                gpu.product = head["product"].strip()
                gpu.uuid = head["uuid"] or gpu.uuid
            elif gpu is not None:
                _parse_line(gpu, line[:200])
    return found


def _parse_line(gpu: _Gpu, line: str) -> None:
    gpu.has_none_active = gpu.has_none_active or bool(_NONE_ACTIVE.search(line))
    row = _LINK.match(line)
    if row is None:
        return
    link, rest = row["link"], row["rest"].strip()
    speed = _SPEED.search(rest)
    count = _COUNT.match(rest)
    if speed is not None or "inactive" in rest.lower():
        gpu.speeds[link] = float(speed["gbps"]) if speed is not None else None
    elif count is not None:
        lane = _LANE.search(rest.lower())
        where = f"{link} lane {lane['lane']}" if lane else link
        kind = _get_error_kind(count["label"])
        if kind:
            known = gpu.counts.get((kind, where), 0)
            gpu.counts[kind, where] = known + int(count["count"])


def _get_error_kind(label: str) -> str:
    """Empty for a counter of normal work."""
    for kind, pattern in _KINDS:
        if pattern.search(label):
            return kind
    return ""


def _get_addresses(reading: Reading, count: int) -> dict[str, str]:
    """Index to PCI address: nvidia-smi's own word, else the inventory's where no GPU is missing:
    indices shift."""
    expected = reading.target.expected.gpus
    known = dict(expected) if len(expected) == count else {}
    output = reading.outputs.get(_GPUS.name)
    if output is None:
        return known
    for line in output.text.splitlines():
        cells = [cell.strip() for cell in line[:200].split(",")]
        pci = resources.pci_address(cells[2]) if len(cells) == 3 else None
        if pci is not None:
            known[cells[0]] = pci
    return known


def _observe_links(
    reading: Reading, gpu: _Gpu, gpus: Mapping[str, _Gpu], resource: str
) -> Iterator[Observation]:
    """Judged against the module's number, or its neighbours'; without either the links are only
    counted.

    A lone GPU of which no link is up may be in a guest that was given no others: nothing is said of
    it.
    """
    up = gpu.links_up
    if up is None:
        return
    wanted = _get_wanted_links(gpu, gpus)
    is_lone = len(gpus) == 1 and gpu.index == "0"
    if wanted is None or (is_lone and not up):
        yield reading.saw("nvlink.links_up", up, resource)
        return
    text = f"{up} of {wanted} NVLinks are up"
    down = [link for link, speed in gpu.speeds.items() if speed is None]
    if down:
        text += f"; down: {', '.join(down[:18])}"
    yield reading.saw("nvlink.links_active", up, resource, raise_at=str(wanted), text=text)


def _get_wanted_links(gpu: _Gpu, gpus: Mapping[str, _Gpu]) -> Optional[int]:
    for pattern, count in _LINKS_OF:
        if pattern.search(gpu.product):
            return count
    if not _BOARD.search(gpu.product):
        return None
    alike = [peer.links_up for peer in gpus.values() if peer.product == gpu.product]
    most = max((up for up in alike if up is not None), default=0)
    return most or None


def _observe_topology(reading: Reading, output: Output) -> Iterator[Observation]:
    """By the bonds between each two GPUs. One that has none while all others are bonded with each
    other has lost its links; where some others have none either, they are cards with bridges, and
    nothing is said."""
    rows = {row["index"]: row["cells"].split() for row in _MATRIX_ROW.finditer(output.text)}
    if not rows:
        yield reading.silent(f"nvidia-smi topo -m: {output.complaint}")
        return
    yield reading.answered()
    addresses = _get_addresses(reading, len(rows))
    bonds = [list(map(_count_links, cells[: len(rows)])) for cells in rows.values()]
    for number, (index, counts) in enumerate(zip(rows, bonds)):
        address = addresses.get(index) or f"index:{index}"
        resource = resources.gpu(reading.target.name, address)
        others = _list_bonds_of_others(bonds, number)
        up = max(counts, default=0)
        if not _is_fully_bonded(others):
            yield reading.saw("nvlink.links_up", up, resource)
            continue
        wanted = max(max(row) for row in others)
        text = f"{up} of {wanted} NVLinks lead to other GPUs"
        yield reading.saw("nvlink.links_active", up, resource, raise_at=str(wanted), text=text)


def _list_bonds_of_others(bonds: Sequence[list[int]], number: int) -> list[list[int]]:
    """The bonds of the other GPUs with each other."""
    rows = [*bonds[:number], *bonds[number + 1 :]]
    return [row[:number] + row[number + 1 :] for row in rows]


def _is_fully_bonded(rows: Sequence[Sequence[int]]) -> bool:
    """Whether these GPUs, three or more, are all bonded with each other."""
    if len(rows) <= 2:
        return False
    bonded = [len(row) - row.count(0) for row in rows]
    return min(bonded) >= len(rows) - 1


def _count_links(cell: str) -> int:
    """`NV18` is 18 links bonded; any other word is a way over PCI Express."""
    return int(cell[2:]) if cell.startswith("NV") and cell[2:].isdecimal() else 0


def _pack(counts: Mapping[tuple[str, str], int]) -> str:
    """`kind/link=count` of those above zero, which are few: a text that a memory keeps at little
    cost."""
    ordered = sorted(counts.items())
    return ";".join(f"{kind}/{link}={count}" for (kind, link), count in ordered if count)


def _unpack(text: str) -> dict[tuple[str, str], int]:
    found = {}
    for item in text.split(";"):
        name, _, count = item.partition("=")
        kind, _, link = name.partition("/")
        if count.isdecimal():
            found[kind, link] = int(count)
    return found


def _observe_increases(seen: Observation, before: Samples) -> Iterator[Observation]:
    """A counter below its last value was reset: a new baseline."""
    last = before.get((seen.resource, seen.metric))
    if last is None or not isinstance(last.value, str):
        return
    passed_s = (seen.observed_at - last.at).total_seconds()
    if passed_s <= 0:
        return
    old, new = _unpack(last.value), _unpack(str(seen.value))
    rises = _get_rises(old, new)
    resource, at = seen.resource, seen.observed_at
    for kind, _ in _KINDS:
        if kind not in rises:
            continue
        links = sorted(rises[kind], reverse=True)
        named = ", ".join(f"link {link}: {rise}" for rise, link in links[:_NAMED])
        attributes = {"qualifier": kind, "text": f"{kind} errors in {passed_s:.0f} s: {named}"}
        total = sum(rise for rise, _ in links)
        yield Observation(resource, f"nvlink.{kind}_errors_new", total, at, attributes)
        if kind == "crc":
            highest, _ = links[0]
            yield Observation(resource, "nvlink.crc_error_rate", highest / passed_s, at, attributes)


def _get_rises(
    old: Mapping[tuple[str, str], int], new: Mapping[tuple[str, str], int]
) -> dict[str, list[tuple[int, str]]]:
    """By kind of error: how much each link's counter rose, and which link."""
    rises: dict[str, list[tuple[int, str]]] = {}
    for (kind, link), count in new.items():
        rise = count - old.get((kind, link), 0)
        if rise > 0:
            rises.setdefault(kind, []).append((rise, link))
    return rises


def _observe_lost_links(seen: Observation, before: Samples) -> Iterator[Observation]:
    """Of a card with a bridge: no fewer links than it has had before."""
    last = before.get((seen.resource, "nvlink.links_best"))
    best = int(seen.value)
    if last is not None and isinstance(last.value, int):
        best = max(best, last.value)
    yield Observation(seen.resource, "nvlink.links_best", best, seen.observed_at)
    if best:
        is_kept = seen.value >= best
        text = {} if is_kept else {"text": f"{seen.value} of {best} NVLinks that it had are up"}
        yield Observation(seen.resource, "nvlink.links_kept", is_kept, seen.observed_at, text)
