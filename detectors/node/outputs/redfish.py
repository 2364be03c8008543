"""Redfish: what a management controller's documents say of health, and the entries of its logs.

Walks a few kinds of links from the service root with GETs alone. Python 3.9, standard library
alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Optional
from urllib.parse import urljoin, urlsplit

from detectors.detector import DetectorError, Output, Reading, Target, Transports
from detectors.faults import Observation
from detectors.node.outputs import bmc_alarms
from detectors.node.outputs.bmc_alarms import Alarm, AlarmKind

ROOT = "/redfish/v1/"
# Links that lead to health and logs. A GB300 board has some 20 chassis, each with its own.
_FOLLOWED = (
    *(
        "Systems",
        "Chassis",
        "Managers",
        "Members",
        "LogServices",
        "Entries",
        "Power",
        "Thermal",
        "PowerSubsystem",
    ),
    *("PowerSupplies", "ThermalSubsystem", "Fans", "LeakDetection", "LeakDetectors"),
)
_MOST_DOCUMENTS = 150
_EACH = timedelta(seconds=10)
_IN_ALL = timedelta(seconds=20)
_DEEPEST = 12
_MOST_NODES = 20_000
_HEALTH = {"ok": 0, "warning": 1, "critical": 2}
# By the type of the object, or the list that it stands in.
_KINDS = {
    "PowerSupply": AlarmKind.PSU,
    "PowerSupplies": AlarmKind.PSU,
    "PowerSupplyMetrics": AlarmKind.PSU,
    "PowerSubsystem": AlarmKind.PSU,
    "Redundancy": AlarmKind.REDUNDANCY,
    "PowerSupplyRedundancy": AlarmKind.REDUNDANCY,
    "FanRedundancy": AlarmKind.REDUNDANCY,
    "Fan": AlarmKind.FAN,
    "Fans": AlarmKind.FAN,
    "ThermalSubsystem": AlarmKind.TEMPERATURE,
    "Temperatures": AlarmKind.TEMPERATURE,
    "Temperature": AlarmKind.TEMPERATURE,
    "Voltages": AlarmKind.VOLTAGE,
    "Voltage": AlarmKind.VOLTAGE,
    "Drive": AlarmKind.DISK,
    "Storage": AlarmKind.DISK,
    "Volume": AlarmKind.DISK,
    "LeakDetector": AlarmKind.LEAK,
    "LeakDetection": AlarmKind.LEAK,
    "Processor": AlarmKind.PROCESSOR,
    "ProcessorSummary": AlarmKind.PROCESSOR,
    "MemorySummary": AlarmKind.HARDWARE,
}
# Keys under which no part of the object stands.
_NO_PARTS = frozenset({"Status", "Links", "RelatedItem"})
_INLET = re.compile(r"inlet|ambient|intake", re.IGNORECASE)
# What people and programs did to the machine or its controller, and how safe its settings are: no
# part is broken.
_NOTICES = re.compile(
    r"secur|PCR |user|login|logged|audit|reset|driver missing|license|certificate|firmware"
    r"|configuration modified|iLO ",
    re.IGNORECASE,
)
_PART = re.compile(
    r"power suppl|psu|\bfan|temperature|thermal|overheat|voltage|memory|dimm|drive"
    r"|intrusion|hood|leak|redundan"
    r"|machine check|processor|pcie|uncorrectable|\bcpu|\bgpu|nvlink|hardware",
    re.IGNORECASE,
)


def collect(target: Target, via: Transports, base: str) -> dict[str, Output]:
    """Documents by the order in which they were asked: `redfish.0` is the root. A controller that
    does not answer is an output without status, never an error: the node itself may be well.
    """
    parts = urlsplit(base)
    first = base if parts.path.strip("/") else urljoin(base, ROOT)
    queue = [first]
    queued_paths = {_get_path(first)}
    took = timedelta(0)
    outputs: dict[str, Output] = {}
    while queue and len(outputs) < _MOST_DOCUMENTS and took < _IN_ALL:
        output = _get(target, via, queue.pop(0))
        outputs[f"redfish.{len(outputs)}"] = output
        took += output.took
        if output.status is None:
            break
        for link in _list_links(output):
            url = urljoin(first, link)
            path = _get_path(url)
            if urlsplit(url).netloc == parts.netloc and path not in queued_paths:
                queued_paths.add(path)
                queue.append(url)
    return outputs


def _get(target: Target, via: Transports, url: str) -> Output:
    try:
        return via.http.get(target, url, _EACH)
    except DetectorError as error:
        return Output(None, b"", str(error).encode(), timedelta(0))


def _get_path(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path.rstrip('/')}?{parts.query}"


def _list_links(output: Output) -> Iterator[str]:
    """Links of one document; of a collection of entries only that to its next page: entries stand
    in it."""
    document = parse_document(output.stdout) or {}
    is_log = "LogEntryCollection" in str(document.get("@odata.type", ""))
    for key, value in document.items():
        if key == "Members@odata.nextLink" and isinstance(value, str):
            yield value
        if key not in _FOLLOWED or is_log:
            continue
        for item in value if isinstance(value, list) else [value]:
            link = item.get("@odata.id") if isinstance(item, dict) else None
            if isinstance(link, str) and link.startswith("/"):
                yield link


def parse_document(stdout: bytes) -> Optional[dict[str, Any]]:
    start = stdout.find(b"{")
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(stdout[start:].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read(reading: Reading, outputs: list[Output]) -> Iterator[Observation]:
    """Health of each part, and the entries of each log, of all documents together."""
    found: list[Alarm] = []
    logs: dict[str, list[tuple[str, Alarm]]] = {}
    for output in outputs:
        document = parse_document(output.stdout) or {}
        kind = _get_type(document)
        if kind == "JsonSchemaFile":
            continue
        if kind == "LogEntry":
            _add(logs, document)
        elif kind == "LogEntryCollection":
            for entry in _list_entries(document):
                _add(logs, entry)
            logs.setdefault(_log_name(document), [])
        else:
            found += _list_health_alarms(document)
            yield from _observe_facts(reading, document)
    yield from bmc_alarms.observe_worst_alarms(reading, found)
    for name, entries in sorted(logs.items()):
        entries.sort(key=lambda pair: _sort_key(pair[0]))
        keys = [key for key, _ in entries]
        alarms = [alarm for _, alarm in entries]
        yield from bmc_alarms.observe_entries(reading, name, alarms, keys)


def _list_entries(collection: dict[str, Any]) -> list[dict[str, Any]]:
    """Entries that stand in the collection itself, not as a link alone."""
    members = collection.get("Members")
    if not isinstance(members, list):
        return []
    return [entry for entry in members if isinstance(entry, dict) and len(entry) > 1]


_FACTS = {
    "Model": "bmc.model",
    "SerialNumber": "bmc.serial",
    "FirmwareVersion": "bmc.firmware",
    "PowerState": "bmc.power_state",
}


def _observe_facts(reading: Reading, document: dict[str, Any]) -> Iterator[Observation]:
    """What the inventory is to learn of the thing that a document is of."""
    name = str(document.get("Id") or document.get("Name") or "")[:80]
    for key, metric in _FACTS.items():
        value = document.get(key)
        if isinstance(value, str) and value.strip():
            yield reading.saw(metric, value.strip(), qualifier=name, of=_get_type(document))


def _add(logs: dict[str, list[tuple[str, Alarm]]], entry: dict[str, Any]) -> None:
    message = entry.get("Message") or entry.get("MessageId", "")
    key = f"{entry.get('Created', '')}|{entry.get('Id', '')}|{message}"
    logs.setdefault(_log_name(entry), []).append((key, _make_entry_alarm(entry)))


def _sort_key(key: str) -> tuple[int, str]:
    number = key.split("|")[1]
    return int(number) if number.isdecimal() and len(number) < 18 else 0, key


def _get_type(document: dict[str, Any]) -> str:
    """`#LogEntry.v1_3_0.LogEntry` as `LogEntry`."""
    return str(document.get("@odata.type", "")).rpartition(".")[2].lstrip("#")


def _log_name(document: dict[str, Any]) -> str:
    """`/redfish/v1/Systems/1/LogServices/IML/Entries/3` as `Systems.1.IML`."""
    log = str(document.get("@odata.id", "")).partition("/Entries")[0]
    parts = log.replace("/redfish/v1/", "").split("/")
    name = ".".join(part for part in parts if part and part != "LogServices")
    return name[-80:] or "redfish"


def _make_entry_alarm(entry: dict[str, Any]) -> Alarm:
    """Level -1 for entries that warn of nothing; 0 for those that are marked as repaired."""
    message = str(entry.get("Message") or entry.get("Description") or entry.get("MessageId") or "")
    words = f"{entry.get('SensorType', '')} {entry.get('EntryCode', '')} {message}"
    is_notice = _NOTICES.search(message) and not entry.get("SensorType")
    is_of_part = bool(_PART.search(words)) and not is_notice
    kind = AlarmKind.NOTICE
    if is_of_part:
        kind = bmc_alarms.classify_sensor(words)
        found = bmc_alarms.parse_state(words, kind)
        if found:
            kind = found[0]
    severity = entry.get("Severity", "")
    level = _HEALTH.get(str(severity).lower(), -1)
    if _is_repaired(entry):
        level = 0 if is_of_part else -1
    elif level == 0:
        level = -1
    text = f"event log, {entry.get('Created', '')}: {message} ({severity})"
    return Alarm(kind, _get_entry_name(entry), level, text[:400])


def _is_repaired(entry: dict[str, Any]) -> bool:
    """As the standard marks it, or as HPE does."""
    hpe = _get_object(_get_object(entry, "Oem"), "Hpe")
    is_repaired = hpe.get("Repaired") is True or hpe.get("Severity") == "Repaired"
    return entry.get("Resolved") is True or is_repaired


def _get_object(document: dict[str, Any], key: str) -> dict[str, Any]:
    """Empty where there is none, or where something else stands there."""
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _get_entry_name(entry: dict[str, Any]) -> str:
    origin = _get_object(_get_object(entry, "Links"), "OriginOfCondition")
    path = origin.get("@odata.id")
    if isinstance(path, str) and path:
        return path.rstrip("/").rpartition("/")[2][:80]
    if entry.get("SensorNumber") is not None:
        return f"#{entry['SensorNumber']}"
    return str(entry.get("MessageId") or entry.get("Id") or "")[:80]


def _list_health_alarms(document: dict[str, Any]) -> Iterator[Alarm]:
    """Every object in the document with a Status.Health of its own; roll-ups repeat what their
    parts say."""
    waiting: list[tuple[Any, str, int]] = [(document, "", 0)]
    seen = 0
    while waiting and seen < _MOST_NODES:
        node, within, depth = waiting.pop()
        seen += 1
        if isinstance(node, dict):
            yield from _find_health_alarms(node, within)
        if depth >= _DEEPEST:
            continue
        if isinstance(node, list):
            waiting += [(item, within, depth + 1) for item in node]
        elif isinstance(node, dict):
            skipped = _NO_PARTS | {"Oem"} if depth else _NO_PARTS
            for key, value in node.items():
                if key not in skipped:
                    waiting.append((value, key, depth + 1))


def _find_health_alarms(node: dict[str, Any], within: str) -> Iterator[Alarm]:
    status = _get_object(node, "Status")
    level = _HEALTH.get(str(status.get("Health", "")).lower())
    if level is None or str(status.get("State", "")).lower() == "absent":
        return
    names = map(node.get, ("Name", "FanName", "MemberId", "Id"))
    name = str(next(filter(None, names), within))[:80]
    kind = _KINDS.get(_get_type(node)) or _KINDS.get(within) or _get_sensor_kind(node)
    place = f"{name} {node.get('PhysicalContext', '')}"
    if kind is AlarmKind.TEMPERATURE and _INLET.search(place):
        kind = AlarmKind.INLET
    if kind is AlarmKind.LEAK:
        detector_state = str(node.get("DetectorState", "OK")).lower()
        level = max(level, _HEALTH.get(detector_state, 0))
    text = f"{name}: health {status.get('Health')}, state {status.get('State', 'unknown')}"
    yield Alarm(kind, name, level, text)
    if kind is AlarmKind.PSU and "LineInputStatus" in node:
        line = str(node["LineInputStatus"])
        input_level = 0 if line in ("Normal", "None") else 2
        yield Alarm(AlarmKind.INPUT, name, input_level, f"{name}: line input {line}")


_SENSOR_KINDS = {
    "Temperature": AlarmKind.TEMPERATURE,
    "Voltage": AlarmKind.VOLTAGE,
    "Rotational": AlarmKind.FAN,
}


def _get_sensor_kind(node: dict[str, Any]) -> AlarmKind:
    if "leak" in str(node.get("Name", "")).lower():
        return AlarmKind.LEAK
    return _SENSOR_KINDS.get(str(node.get("ReadingType", "")), AlarmKind.HARDWARE)
