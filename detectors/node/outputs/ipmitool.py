"""ipmitool's and freeipmi's words: the system event log, and sensors in all the forms that they are
printed in.

A status of `ok` says that a sensor was read, not that its part is well: for parts that have states,
the text of the reading decides, and an empty text says nothing
(https://github.com/ipmitool/ipmitool/issues/176). Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple, Optional

from detectors.detector import Command, Output, Reading
from detectors.faults import Observation
from detectors.node.outputs import bmc_alarms
from detectors.node.outputs.bmc_alarms import Alarm, AlarmKind

# The system interface is slow (some 5 ms for each record), and a board has hundreds of sensors.
# With Redfish's 30 s the round stays below the 100 s that polling gives a look
# (kintsugi/periodic/polling.py).
_SEL_TIMEOUT, _SENSORS_TIMEOUT, _UNITS_TIMEOUT = (
    timedelta(seconds=20),
    timedelta(seconds=30),
    timedelta(seconds=10),
)
_NUMBER = re.compile(r"[0-9a-f]{1,5}", re.IGNORECASE)
_DATED = re.compile(r"\d\d/\d\d/\d|.{0,8}init", re.IGNORECASE)
# freeipmi's ipmi-sel: `Apr-02-2024` or `02-Apr-2024`, then time, name, type, event.
_FREE_DATED = re.compile(r"(?:[a-z]{3}-\d\d|\d\d-[a-z]{3})-\d{4}|postinit", re.IGNORECASE)
_TYPES = (
    "Power Supply|Power Unit|Temperature|Voltage|Current|Fan|Physical"
    " Security|Processor|Memory|Drive Slot / Bay|Drive Slot|Critical Interrupt|Event Logging"
    " Disabled|Watchdog ?\\d?|System Firmwares?|Module / Board|Battery|Cable / Interconnect|Slot /"
    " Connector|Chassis|Chip Set|Other FRU|System Event|OS Boot|OS Critical Stop|System ACPI Power"
    " State|Button|Entity Presence|Management Subsys Health|Version Change|Platform"
    " Security|Session Audit|Platform Alert|Add-in Card|Other Units-based Sensor|Cooling"
    " Device|Boot Error|Unknown"
)
_TYPED = re.compile(rf"^(?P<type>{_TYPES})\s*(?P<name>.*)$", re.IGNORECASE)
# Longer lines are none of a log.
_LONGEST_LINE = 400
_LEVELS = {
    "ok": 0,
    "nc": 1,
    "lnc": 1,
    "unc": 1,
    "cr": 2,
    "lcr": 2,
    "ucr": 2,
    "nr": 3,
    "lnr": 3,
    "unr": 3,
}
_READING = re.compile(r"^-?\d+(?:\.\d+)?(?:e[+-]?\d+)?\s*(?P<unit>[a-z% ]{0,24})", re.IGNORECASE)
_NO_READING = frozenset({"ns", "na", "no reading", "not readable", "disabled", "n/a", ""})
_QUOTED = re.compile(r"'([^']*)'")
_BLOCK = re.compile(
    r"^\s?Sensor ID\s{0,40}:\s{0,40}(?P<name>[^\r\n(]{1,80}?)[ \t]{0,40}\(", re.MULTILINE
)
_BLOCK_TYPE = re.compile(
    r"^[ \t]*Sensor Type \((?:Discrete|Threshold|Analog)\)\s*:\s*(?P<type>[^\r\n(]+)", re.MULTILINE
)
_BLOCK_STATES = re.compile(
    r"^[ \t]*States Asserted[ \t]*:[^\r\n]*\r?\n(?P<states>(?:[ \t]+\[[^\]\r\n]{0,80}\]["
    r" \t]*\r?\n?){1,64})",
    re.MULTILINE,
)
_BLOCK_STATUS = re.compile(r"^[ \t]*Status\s*:\s*(?P<status>[^\r\n]+)", re.MULTILINE)
_BRACKETED = re.compile(r"\[([^\[\]\r\n]{0,200})\]")


def build_commands() -> list[Command]:
    """`sel elist` names sensors, which `sel list` only numbers; power units' states show with -v
    alone."""
    last = ("ipmitool", "sel", "elist", "last", str(bmc_alarms.MOST_ENTRIES))
    units = ("ipmitool", "-v", "sdr", "type", "Power Unit")
    return [
        Command("sel", last, _SEL_TIMEOUT, as_root=True),
        Command("sensors", ("ipmitool", "sdr", "elist"), _SENSORS_TIMEOUT, as_root=True),
        Command("sensors.power-unit", units, _UNITS_TIMEOUT, as_root=True),
    ]


def is_empty(output: Output) -> bool:
    return b"SEL has no entries" in output.stdout + output.stderr


def is_sel(line: str) -> bool:
    return _parse_entry(line) is not None


def observe_sel(reading: Reading, output: Output) -> Iterator[Observation]:
    """Entries of `ipmitool sel list` or `elist`, with or without a time zone or a direction behind
    them."""
    found, keys = [], []
    for line in _get_text(output).splitlines():
        entry = _parse_entry(line)
        if entry is not None:
            found.append(_make_alarm(entry))
            keys.append("|".join(entry))
    if keys or output.status == 0 or is_empty(output):
        yield from bmc_alarms.observe_entries(reading, "sel", found, keys)


class _Entry(NamedTuple):
    """One row of the event log; `direction` is empty where it has none."""

    number: str
    date: str
    time: str
    sensor: str
    event: str
    direction: str


def _parse_entry(line: str) -> Optional[_Entry]:
    line = line[:_LONGEST_LINE]
    parts = line.split("|") if "|" in line else line.split(",", 5)
    cells = [part.strip() for part in parts]
    if len(cells) < 5 or not _NUMBER.fullmatch(cells[0]):
        return None
    number, date, time, *texts = cells
    if len(texts) > 2 and _FREE_DATED.fullmatch(date):
        name, kind_word, ending = texts[:3]
        event, _, assertion = ending.partition(" ; ")
        direction = "Deasserted" if "deassertion" in assertion.lower() else "Asserted"
        return _Entry(number, date, time, f"{kind_word} {name}", event.strip("'"), direction)
    sensor, event = texts[:2]
    if not _DATED.match(date) or not sensor or not event:
        return None
    is_directed = len(texts) > 2 and texts[2].lower() in ("asserted", "deasserted")
    return _Entry(number, date, time, sensor, event, texts[2] if is_directed else "")


def _make_alarm(entry: _Entry) -> Alarm:
    typed = _TYPED.match(entry.sensor)
    kind_word, name = (typed["type"], typed["name"].strip()) if typed else ("", entry.sensor)
    own = bmc_alarms.classify_sensor(kind_word, name)
    if own is AlarmKind.TEMPERATURE:
        by_name = bmc_alarms.classify_sensor(name)
        own = by_name if by_name is AlarmKind.INLET else own
    kind, level = bmc_alarms.parse_state(entry.event, own) or (own, -1)
    if entry.direction.lower() == "deasserted":
        level = 0 if level > 0 else -1
    text = f"event log, {entry.date} {entry.time}: {entry.sensor}: {entry.event}"
    if entry.direction:
        text += f" ({entry.direction.lower()})"
    return Alarm(kind, name or kind_word, level, text)


def observe_sensors(reading: Reading, output: Output) -> Iterator[Observation]:
    """Sensors of `sdr list`, `sdr elist`, `sdr -v`, `sensor list`, and of freeipmi with pipes or
    commas."""
    yield from bmc_alarms.observe_worst_alarms(reading, parse_alarms(_get_text(output)))


def parse_alarms(text: str) -> Iterator[Alarm]:
    if _BLOCK.search(text):
        yield from _parse_verbose(text)
        return
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 3:
            yield from _make_sensor_alarms(cells[0], "", cells[1], cells[2])
        elif len(cells) == 5 and re.fullmatch(r"[0-9a-f]{1,3}h", cells[1], re.IGNORECASE):
            yield from _make_sensor_alarms(cells[0], "", cells[4], cells[2])
        elif len(cells) >= 9 and cells[0]:
            yield from _make_sensor_alarms(cells[0], "", f"{cells[1]} {cells[2]}", cells[3])
        elif len(cells) in (6, 7) and cells[0].isdecimal():
            yield from _parse_freeipmi([cells[1], cells[2], *cells[-3:]])
        elif len(cells) == 1 and line.count(",") >= 5 and line.split(",")[0].strip().isdecimal():
            yield from _parse_freeipmi([cell.strip() for cell in line.split(",", 5)][1:])


def _make_sensor_alarms(name: str, kind_word: str, shown: str, status: str) -> Iterator[Alarm]:
    """`shown` is a number with its unit, or words of states; `status` ipmitool's ok, nc, cr, nr."""
    status, shown = status.lower(), shown.strip()
    level = _LEVELS.get(status)
    if level is None or shown.lower() in _NO_READING or shown.startswith("0x") or not name:
        return
    measured = _READING.match(shown)
    unit = measured["unit"].strip() if measured else ""
    own = bmc_alarms.classify_sensor(kind_word, name, unit)
    text = f"{name}: {shown} ({status})"
    if measured and unit.lower() != "discrete":
        if unit.lower().startswith("degrees"):
            own = (
                AlarmKind.INLET
                if bmc_alarms.classify_sensor(name) is AlarmKind.INLET
                else AlarmKind.TEMPERATURE
            )
        yield Alarm(own, name, level, text)
        shown = shown.partition(",")[2].strip()
    elif level:
        yield Alarm(own, name, level, text)
    yield from _make_state_alarms(name, own, [word.strip() for word in shown.split(",")], text)


def _make_state_alarms(name: str, own: AlarmKind, words: list[str], text: str) -> Iterator[Alarm]:
    states = list(filter(None, (bmc_alarms.parse_state(word, own) for word in words)))
    for kind, level in states:
        yield Alarm(kind, name, level, text)
    if (
        own is AlarmKind.PSU and states
    ):  # one that is present and complains of nothing has its input too
        yield Alarm(AlarmKind.INPUT, name, 0, text)


def _parse_verbose(text: str) -> Iterator[Alarm]:
    starts = [found.start() for found in _BLOCK.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)]):
        block = text[start:end]
        head = _BLOCK.search(block)
        if head is None:
            continue
        name = head["name"]
        kind_word = _BLOCK_TYPE.search(block)
        own = bmc_alarms.classify_sensor(name, kind_word["type"] if kind_word else "")
        states = _BLOCK_STATES.search(block)
        words = _BRACKETED.findall(states["states"]) if states else []
        yield from _make_state_alarms(name, own, words, f"{name}: {', '.join(words)}")
        status = _BLOCK_STATUS.search(block)
        if status is None:
            continue
        status_word = status["status"].strip()
        level = _LEVELS.get(status_word.lower())
        if level:
            yield Alarm(own, name, level, f"{name}: {status_word}")


_FREE_LEVELS = (("non-recoverable", 3), ("non-critical", 1), ("critical", 2))


def _parse_freeipmi(cells: list[str]) -> Iterator[Alarm]:
    """freeipmi's `ipmi-sensors`: name, type, reading, unit, events in quotes."""
    if len(cells) < 5:
        return
    name, kind_word, reading, unit = cells[:4]
    events = _QUOTED.findall(",".join(cells[4:])) or [cells[4]]
    own = bmc_alarms.classify_sensor(name if "redund" in name.lower() else kind_word, name, unit)
    text = f"{name}: {reading} {unit} {', '.join(events)}"
    for event in events:
        level = _get_threshold_level(event.lower())
        if level is not None:
            yield Alarm(own, name, level, text)
    yield from _make_state_alarms(name, own, events, text)


def _get_threshold_level(event: str) -> Optional[int]:
    """The level of the threshold that the event names; None where it names none."""
    if "threshold" not in event:
        return None
    return next((level for word, level in _FREE_LEVELS if word in event), None)


def _get_text(output: Output) -> str:
    return output.stdout.decode("utf-8", "replace")
