"""Captures of what a detector collected, kept as files, and what Kintsugi makes of them. Collects
nothing itself.

A folder holds `input.json` (target, kind, expected, and the exit status of each output),
`input.<name>.stdout` and `.stderr`, SNMP values in `input.snmprec`, and may hold the round before
it in `before/`, made of the same files. Python 3.9, standard library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from detectors import expected
from detectors.catalog.catalog import Catalog
from detectors.detector import Detector, Output, Reading, SnmpValue, Target, TargetKind
from detectors.evaluation import judge
from detectors.evaluation.classify import classify
from detectors.faults import FaultEvent, Observation
from detectors.transports import error_text

BEFORE = "before"
_APART = timedelta(seconds=60)
_INTEGER = re.compile(r"-?[0-9]{1,20}")


class CaptureError(Exception):
    """The file or folder is no capture: names it and says what was expected."""


@dataclass(frozen=True)
class CaptureReading:
    """What one capture tells: its observations, comparisons with the round before included, and the
    fault events."""

    observations: list[Observation]
    events: list[FaultEvent]


def read_folder(path: Path, detector: str, taken_at: datetime) -> Reading:
    """The reading that a folder holds. Raises CaptureError."""
    try:
        setting = json.loads((path / "input.json").read_text(encoding="utf-8"))
        target = Target(
            setting["target"],
            "127.0.0.1",
            kind=TargetKind(setting.get("kind", "node")),
            expected=expected.from_json(setting.get("expected", {})),
        )
        taken_at = (
            datetime.fromisoformat(setting["taken_at"]) if "taken_at" in setting else taken_at
        )
        outputs: dict[str, Output] = {}
        for name, status in setting.get("status", {}).items():
            stdout, stderr = _read_bytes(path, name, "stdout"), _read_bytes(path, name, "stderr")
            outputs[name] = Output(status, stdout, stderr, timedelta(seconds=1))
        records = path / "input.snmprec"
        values = parse_snmprec(records.read_bytes()) if records.exists() else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CaptureError(
            f"{path}: no capture of {detector}: {error_text.format_reason(error)}"
        ) from error
    return Reading(detector, target, taken_at, outputs, values)


def read_file(
    path: Path, detector: Detector, target: Target, taken_at: datetime, *, name: str = ""
) -> Reading:
    """A reading of one file: an output (named by the detector from its text, or `name`), or SNMP
    values."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror}") from error
    if path.suffix == ".snmprec":
        return Reading(detector.name, target, taken_at, {}, parse_snmprec(text))
    output = Output(0, text, b"", timedelta(0))
    return Reading(detector.name, target, taken_at, {name or detector.sniff(text): output})


def read_capture(
    detector: Detector, path: Path, catalog: Catalog, taken_at: datetime
) -> CaptureReading:
    """What a capture folder tells, after the round before where it holds one."""
    now = read_folder(path, detector.name, taken_at)
    observations = list(detector.parse(now))
    if not (path / BEFORE).is_dir():
        return CaptureReading(observations, classify_all(observations, catalog))
    first = list(detector.parse(read_folder(path / BEFORE, detector.name, now.taken_at - _APART)))
    memory = judge.judge_round(detector, first, judge.Memory(), active=(), catalog=catalog).memory
    observations += detector.compare(observations, memory.samples)
    judged = judge.judge(observations, memory, active=(), catalog=catalog)
    shown = classify_all(observations, catalog)
    known = {event.event_id for event in shown}
    return CaptureReading(
        observations, [*shown, *(event for event in judged.events if event.event_id not in known)]
    )


def classify_all(observations: Sequence[Observation], catalog: Catalog) -> list[FaultEvent]:
    """The faults that the observations show by themselves, without waiting for a second round."""
    return [event for observation in observations for event in classify(observation, (), catalog)]


def to_json(seen: CaptureReading) -> dict[str, Any]:
    """The shape of `python -m detectors parse --json` and of expected.json."""
    return {
        "observations": [_format_observation(observation) for observation in seen.observations],
        "faults": [_format_fault(event) for event in seen.events],
    }


def _format_observation(observation: Observation) -> dict[str, Any]:
    return {
        "resource": observation.resource,
        "metric": observation.metric,
        "value": _get_plain_value(observation.value),
        "attributes": dict(observation.attributes),
    }


def _format_fault(event: FaultEvent) -> dict[str, Any]:
    component, severity, action = str(event.component), str(event.severity), str(event.action)
    return {
        "fault_type": event.fault_type,
        "resource": event.resource,
        "qualifier": event.qualifier,
        "component": component,
        "severity": severity,
        "action": action,
        "text": event.excerpt,
    }


def _get_plain_value(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)


def _read_bytes(path: Path, name: str, stream: str) -> bytes:
    file = path / f"input.{name}.{stream}"
    return file.read_bytes() if file.exists() else b""


def parse_snmprec(text: bytes) -> dict[str, SnmpValue]:
    """snmpsim's record file: `OID|TAG|VALUE` lines, tag 4 text, 4x hex, 6 OID, 64 address, others
    numbers.

    Lines that are none are passed over. https://docs.lextudio.com/snmpsim/documentation/snmprec
    """
    values: dict[str, SnmpValue] = {}
    for line in text.splitlines():
        oid, _, rest = line.partition(b"|")
        tag, bar, value = rest.partition(b"|")
        if bar and oid.replace(b".", b"").isdigit():
            values[oid.decode().strip(".")] = _parse_snmp_value(
                tag.decode("ascii", "replace").partition(":")[0], value
            )
    return values


def _parse_snmp_value(tag: str, value: bytes) -> SnmpValue:
    text = value.decode("latin-1").strip()
    if tag in ("2", "65", "66", "67", "70"):
        return int(text) if _INTEGER.fullmatch(text) else None
    if tag == "6":
        return text.lstrip(".")
    if tag in ("4x", "64x", "68x"):
        try:
            return bytes.fromhex(text)
        except ValueError:
            return None
    if tag == "64":
        parts = text.split(".")
        return (
            bytes(int(part) & 0xFF for part in parts)
            if all(p.isdecimal() for p in parts)
            else value
        )
    return value if tag == "4" else None
