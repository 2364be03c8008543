"""The tests that tell whether a node is well: what runs on it, and what its output says. Pure.

`dcgmi diag`, NCCL's `all_reduce_perf` over all GPUs of the node, and `ib_write_bw` of each fabric
card against itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from detectors.catalog import catalog
from detectors.catalog.catalog import FaultType
from detectors.faults import Component, Severity
from runbooks.node.detached_command import Ended

# The fact of a run whose node has passed its last test: when.
PROVED_AT = "proved_at"
# What a simulated node, or a person who reads `ps`, knows the scripts by.
CARDS, BURN_IN, IN_JOB = "kintsugi-cards", "kintsugi-burn-in", "kintsugi-job"


class Diagnosis(StrEnum):
    DCGM = "dcgm"
    NCCL = "nccl"
    RDMA = "ib_write_bw"


class DiagnosticOutcome(StrEnum):
    """ILL: the node's hardware failed a test. UNKNOWN: a setting is wrong, or the test could not
    run."""

    PASSED = "passed"
    ILL = "ill"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class DiagnosticVerdict:
    """`text` completes "the test ...": what it found."""

    outcome: DiagnosticOutcome
    text: str


@dataclass(frozen=True)
class Wanted:
    """What is asked of a test: DCGM's level, the least bandwidth that passes (GB/s of NCCL's bus,
    Gb/s of a card)."""

    test: Diagnosis
    level: int = 2
    at_least: float | None = None
    gpus: int = 8
    devices: tuple[str, ...] = ()


# Each card sends to itself, which tries its PCI Express and the card, not the cable. $1 and on:
# RDMA devices.
_CARDS = """status=0
for device; do
  echo "card $device"
  ib_write_bw -d "$device" -D 5 -F --report_gbits >/dev/null 2>&1 & server=$!
  sleep 2
  timeout -k 5 60 ib_write_bw -d "$device" -D 5 -F --report_gbits localhost || { status=1; kill $server 2>/dev/null; }
  wait $server 2>/dev/null
done
exit $status"""  # noqa: E501

# DCGM and NCCL in turns. $1: for how many seconds; $2: DCGM's level; $3: the number of GPUs.
_BURN_IN = """end=$(($(date +%s) + $1)); round=0
while :; do
  round=$((round + 1)); echo "kintsugi round $round dcgm"
  dcgmi diag -r "$2" -j || exit
  echo "kintsugi round $round nccl"
  all_reduce_perf -b 1G -e 8G -f 2 -g "$3" || exit
  [ "$(date +%s)" -lt "$end" ] || exit 0
done"""


_ROUND = re.compile(r"^kintsugi round (\d+) (dcgm|nccl)$", re.MULTILINE)


def build_command(wanted: Wanted) -> tuple[str, ...]:
    return _COMMANDS[wanted.test](wanted)


_COMMANDS: Mapping[Diagnosis, Callable[[Wanted], tuple[str, ...]]] = {
    Diagnosis.DCGM: lambda wanted: ("dcgmi", "diag", "-r", str(wanted.level), "-j"),
    # From 1 to 8 GB, where the links are the limit and not the start of each operation.
    Diagnosis.NCCL: lambda wanted: (
        "all_reduce_perf",
        "-b",
        "1G",
        "-e",
        "8G",
        "-f",
        "2",
        "-g",
        str(wanted.gpus),
    ),
    Diagnosis.RDMA: lambda wanted: ("sh", "-c", _CARDS, CARDS, *wanted.devices),
}


def build_burn_in_command(seconds: int, *, level: int, gpus: int) -> tuple[str, ...]:
    return ("sh", "-c", _BURN_IN, BURN_IN, str(seconds), str(level), str(gpus))


def evaluate(wanted: Wanted, ended: Ended) -> DiagnosticVerdict:
    """What the test found, of its exit status and the end of its output. Total on any text."""
    if ended.status in (126, 127):
        return DiagnosticVerdict(DiagnosticOutcome.UNKNOWN, f"could not run ({ended.last_words})")
    return _READERS[wanted.test](wanted, ended)


def evaluate_burn_in(wanted: Wanted, ended: Ended) -> DiagnosticVerdict:
    """By the last test that it ran; of NCCL every round whose output is at hand has to be fast
    enough."""
    marks = list(_ROUND.finditer(ended.said))
    if not marks:
        return evaluate(wanted, ended)
    last = marks[-1]
    test = Wanted(Diagnosis(last[2]), wanted.level, wanted.at_least, wanted.gpus)
    verdict = evaluate(test, Ended(ended.status, ended.said[last.end() :]))
    slow = _format_too_slow(
        [float(value) for value in _BUS.findall(ended.said)], wanted.at_least, "GB/s on NCCL's bus"
    )
    if verdict.outcome is DiagnosticOutcome.PASSED and slow:
        return DiagnosticVerdict(DiagnosticOutcome.ILL, slow)
    return DiagnosticVerdict(verdict.outcome, f"{verdict.text} (round {last[1]}, {last[2]})")


# DCGM
# ---------------------------------------------------------------------------

# Tests of DCGM's category Deployment that tell of settings, not of hardware (DCGM 3); DCGM 4 says
# so by the severity of its errors, of which 5 is a setting (DCGM_ERROR_CONFIG).
_SETTINGS = frozenset(
    {
        "Blacklist",
        "Denylist",
        "Environment Variables",
        "Graphics Processes",
        "Permissions and OS Blocks",
        "Persistence Mode",
    }
)
_CONFIG_SEVERITY = 5
# `| PCIe | Pass |`, cut at its bars.
_CELLS_OF_A_ROW = 4
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class _Result:
    """A test of DCGM on one GPU, or on the node."""

    test: str
    status: str
    where: str = ""
    said: str = ""
    is_setting: bool = False
    codes: tuple[int, ...] = ()
    """Of the errors that DCGM gives for it (dcgm_errors.h); none where it gives none."""

    @property
    def is_of_hardware(self) -> bool:
        """Whether its failure condemns what it tested.

        By the catalogue's rows of its codes: a setting does not, nor what the vendor would only
        watch, nor a test that could not be done. Without codes it does.
        """
        if self.is_setting:
            return False
        known = catalog.load()
        rows = [known[f"gpu.dcgm.{code}"] for code in self.codes]
        return not rows or any(_is_of_hardware(row) for row in rows)

    @property
    def text(self) -> str:
        place = f" on GPU {self.where}" if self.where else ""
        return f"{self.test}{place}" + (f" ({self.said})" if self.said else "")


def _is_of_hardware(row: FaultType) -> bool:
    return row.component is not Component.MISCONFIGURATION and row.severity.at_least(Severity.MINOR)


def _evaluate_dcgm(wanted: Wanted, ended: Ended) -> DiagnosticVerdict:
    results = list(_parse_json(ended.said) or _parse_table(ended.said))
    failed = [result for result in results if result.status.startswith("fail")]
    ill = [result for result in failed if result.is_of_hardware]
    if ill:
        return DiagnosticVerdict(
            DiagnosticOutcome.ILL, f"failed: {'; '.join(result.text for result in ill[:4])}"
        )
    if failed:
        texts = "; ".join(result.text for result in failed[:4])
        are_settings = all(result.is_setting for result in failed)
        found = (
            "found a wrong setting" if are_settings else "failed without a word against hardware"
        )
        return DiagnosticVerdict(DiagnosticOutcome.UNKNOWN, f"{found}: {texts}")
    if ended.status != 0 or not any(result.status.startswith("pass") for result in results):
        return DiagnosticVerdict(
            DiagnosticOutcome.UNKNOWN,
            f"{ended.how} and says of no test that it passed: {ended.last_words}",
        )
    warned = [result.text for result in results if result.status.startswith("warn")]
    return DiagnosticVerdict(
        DiagnosticOutcome.PASSED,
        "passed" + (f", with warnings: {'; '.join(warned[:4])}" if warned else ""),
    )


def _parse_json(text: str) -> list[_Result]:
    """DCGM 3 and 4 differ in names and in what a result holds; what is neither gives nothing."""
    start, end = text.find("{"), text.rfind("}")
    try:
        document = json.loads(text[start : end + 1]) if 0 <= start < end else {}
    except (ValueError, RecursionError):
        return []
    root = _to_mapping(document)
    body = _to_mapping(root.get("DCGM GPU Diagnostic") or root.get("DCGM Diagnostic"))
    found: list[_Result] = []
    for category in _list_rows(body.get("test_categories")):
        found += _parse_category(category)
    trouble = body.get("runtime_error")
    if trouble:
        found.append(_Result("dcgmi diag", "fail", said=str(trouble), is_setting=True))
    return found


def _parse_category(category: Mapping[str, Any]) -> Iterator[_Result]:
    for test in _list_rows(category.get("tests")):
        name = str(test.get("name", "a test"))
        for row in _list_rows(test.get("results")):
            warnings = _list_warnings(row)
            severities = [_to_mapping(warning).get("error_severity") for warning in warnings]
            codes = tuple(_list_codes(warnings))
            texts = [_format_warning(warning) for warning in warnings]
            place = row.get("gpu_ids", row.get("gpu_id", row.get("entity_id", "")))
            is_config = bool(severities) and all(s == _CONFIG_SEVERITY for s in severities)
            is_setting = name in _SETTINGS or is_config
            status, text = str(row.get("status", "")).lower(), "; ".join(texts)[:200]
            yield _Result(name, status, str(place), text, is_setting, codes)


def _list_codes(warnings: Sequence[object]) -> Iterator[int]:
    for warning in warnings:
        code = _to_mapping(warning).get("error_id")
        # Of bool too `isinstance(..., int)` is true; 0 is DCGM_FR_OK.
        if isinstance(code, int) and not isinstance(code, bool) and code > 0:
            yield code


def _format_warning(warning: object) -> str:
    """DCGM's own words, with the code by which the catalogue has it."""
    text = str(_to_mapping(warning).get("warning", warning))
    codes = list(_list_codes([warning]))
    return f"DCGM {codes[0]}: {text}" if codes else text


def _list_warnings(row: Mapping[str, Any]) -> list[Any]:
    """A list, or a single warning as a text or a mapping."""
    warnings = row.get("warnings") or row.get("info") or []
    if isinstance(warnings, list):
        return warnings
    return [warnings] if isinstance(warnings, str | Mapping) else []


def _parse_table(text: str) -> list[_Result]:
    """The table that dcgmi prints without -j: `| PCIe | Fail - GPU: 3 |`, warnings in the rows
    below."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().split("|", _CELLS_OF_A_ROW)]
        if len(cells) != _CELLS_OF_A_ROW or cells[0] or cells[-1]:
            continue
        _, name, value, _ = cells
        status, _, where = value.partition(" - ")
        if status.lower() in {"pass", "fail", "warn", "skip"}:
            numbers = _NUMBER.findall(where)
            found.append(
                _Result(name, status.lower(), ",".join(numbers), is_setting=name in _SETTINGS)
            )
    return found


def _to_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list_rows(value: object) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        return []
    return [row for row in value if isinstance(row, Mapping)]


# NCCL and cards
# ---------------------------------------------------------------------------

_BUS = re.compile(r"^# Avg bus bandwidth\s*:\s*(\d+(?:\.\d+)?)", re.MULTILINE)
_WRONG = re.compile(r"^# Out of bounds values\s*:\s*(\d+) FAILED", re.MULTILINE)
_CARD = re.compile(r"^card (\S+)$", re.MULTILINE)
_SPEED = re.compile(r"\d{1,12}(?:\.\d{1,12})?")


def _evaluate_nccl(wanted: Wanted, ended: Ended) -> DiagnosticVerdict:
    wrong = _WRONG.search(ended.said)
    if wrong is not None:
        return DiagnosticVerdict(DiagnosticOutcome.ILL, f"failed: {wrong[1]} values came out wrong")
    speeds = [float(value) for value in _BUS.findall(ended.said)]
    if ended.status != 0:
        outcome = DiagnosticOutcome.UNKNOWN if ended.status is None else DiagnosticOutcome.ILL
        return DiagnosticVerdict(outcome, f"{ended.how}: {ended.last_words}")
    if not speeds:
        return DiagnosticVerdict(
            DiagnosticOutcome.UNKNOWN, f"tells no bandwidth: {ended.last_words}"
        )
    slow = _format_too_slow(speeds, wanted.at_least, "GB/s on NCCL's bus")
    return (
        DiagnosticVerdict(DiagnosticOutcome.ILL, slow)
        if slow
        else DiagnosticVerdict(DiagnosticOutcome.PASSED, f"passed with {min(speeds):g} GB/s")
    )


def _evaluate_cards(wanted: Wanted, ended: Ended) -> DiagnosticVerdict:
    _, *parts = _CARD.split(ended.said)
    outputs = dict(zip(parts[::2], parts[1::2], strict=True))
    speeds = {device: _parse_speed(outputs.get(device, "")) for device in wanted.devices}
    silent = [device for device, speed in speeds.items() if speed is None]
    if silent and ended.status is None:
        return DiagnosticVerdict(
            DiagnosticOutcome.UNKNOWN, f"{ended.how}, before {', '.join(silent)}"
        )
    if silent:
        words = Ended(ended.status, outputs.get(silent[0], "")).last_words
        return DiagnosticVerdict(DiagnosticOutcome.ILL, f"failed on {', '.join(silent)}: {words}")
    measured = {device: speed for device, speed in speeds.items() if speed is not None}
    slow = []
    for device, speed in measured.items():
        too_slow = _format_too_slow([speed], wanted.at_least, "Gb/s")
        if too_slow:
            slow.append(f"{device}: {too_slow}")
    if slow:
        return DiagnosticVerdict(DiagnosticOutcome.ILL, "; ".join(slow))
    slowest = min(measured.values(), default=0)
    text = f"passed with {slowest:g} Gb/s or more on {len(measured)} cards"
    return DiagnosticVerdict(DiagnosticOutcome.PASSED, text)


def _parse_speed(output: str) -> float | None:
    """The average of the last row of ib_write_bw's table."""
    rows = (line.split(maxsplit=5) for line in output.splitlines())
    values = [row[3] for row in rows if _is_of_bandwidth(row)]
    return float(values[-1]) if values else None


def _is_of_bandwidth(cells: Sequence[str]) -> bool:
    """Bytes, iterations, peak, average, messages: the average is the fourth."""
    if len(cells) < 5 or not all(_SPEED.fullmatch(cell) for cell in cells[:4]):
        return False
    return "." not in cells[0] + cells[1] and cells[4][0].isdecimal()


def _format_too_slow(speeds: Sequence[float], at_least: float | None, unit: str) -> str:
    """Empty when all are fast enough, or nobody has said how fast they have to be."""
    slowest = min(speeds, default=None)
    if at_least is None or slowest is None or slowest >= at_least:
        return ""
    return f"reached {slowest:g} {unit}, and {at_least:g} are asked for"


_READERS: Mapping[Diagnosis, Callable[[Wanted, Ended], DiagnosticVerdict]] = {
    Diagnosis.DCGM: _evaluate_dcgm,
    Diagnosis.NCCL: _evaluate_nccl,
    Diagnosis.RDMA: _evaluate_cards,
}
