"""ipmitool's and freeipmi's words: the system event log, and sensors in all the forms that they are printed in.

A status of `ok` says that a sensor was read, not that its part is well: for parts that have states, the text of the
reading decides, and an empty text says nothing (https://github.com/ipmitool/ipmitool/issues/176).
Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple, Optional

from detectors import bmc_alarms
from detectors.bmc_alarms import Alarm, Kind
from detectors.detector import Command, Output, Reading
from detectors.faults import Observation

# The system interface is slow (some 5 ms for each record), and a board has hundreds of sensors. With Redfish's 30 s the
# round stays below the 100 s that polling gives a look (kintsugi/polling.py).
_SEL_TIMEOUT, _SENSORS_TIMEOUT, _UNITS_TIMEOUT = timedelta(seconds=20), timedelta(seconds=30), timedelta(seconds=10)
_NUMBER = re.compile(r"[0-9a-f]{1,5}", re.IGNORECASE)
_DATED = re.compile(r"\d\d/\d\d/\d|.{0,8}init", re.IGNORECASE)
# freeipmi's ipmi-sel: `Apr-02-2024` or `02-Apr-2024`, then time, name, type, event.
_FREE_DATED = re.compile(r"(?:[a-z]{3}-\d\d|\d\d-[a-z]{3})-\d{4}|postinit", re.IGNORECASE)
_TYPES = (
    "Power Supply|Power Unit|Temperature|Voltage|Current|Fan|Physical Security|Processor|Memory|Drive Slot / Bay"
    "|Drive Slot|Critical Interrupt|Event Logging Disabled|Watchdog ?\\d?|System Firmwares?|Module / Board|Battery"
    "|Cable / Interconnect|Slot / Connector|Chassis|Chip Set|Other FRU|System Event|OS Boot|OS Critical Stop"
    "|System ACPI Power State|Button|Entity Presence|Management Subsys Health|Version Change|Platform Security"
    "|Session Audit|Platform Alert|Add-in Card|Other Units-based Sensor|Cooling Device|Boot Error|Unknown"
)
_TYPED = re.compile(rf"^(?P<type>{_TYPES})\s*(?P<name>.*)$", re.IGNORECASE)
# Longer lines are none of a log.
_LONGEST_LINE = 400
_LEVELS = {"ok": 0, "nc": 1, "lnc": 1, "unc": 1, "cr": 2, "lcr": 2, "ucr": 2, "nr": 3, "lnr": 3, "unr": 3}
_READING = re.compile(r"^-?\d+(?:\.\d+)?(?:e[+-]?\d+)?\s*(?P<unit>[a-z% ]{0,24})", re.IGNORECASE)
_NO_READING = frozenset({"ns", "na", "no reading", "not readable", "disabled", "n/a", ""})
_QUOTED = re.compile(r"'([^']*)'")
_BLOCK = re.compile(r"^\s?Sensor ID\s*:\s*(?P<name>[^\r\n(]{1,80}?)[ \t]{0,40}\(", re.MULTILINE)
_BLOCK_TYPE = re.compile(
    r"^[ \t]*Sensor Type \((?:Discrete|Threshold|Analog)\)\s*:\s*(?P<type>[^\r\n(]+)", re.MULTILINE
)
_BLOCK_STATES = re.compile(
    r"^[ \t]*States Asserted[ \t]*:[^\r\n]*\r?\n(?P<states>(?:[ \t]+\[[^\]\r\n]{0,80}\][ \t]*\r?\n?)+)", re.MULTILINE
)
_BLOCK_STATUS = re.compile(r"^[ \t]*Status\s*:\s*(?P<status>[^\r\n]+)", re.MULTILINE)
_BRACKETED = re.compile(r"\[([^\]\r\n]*)\]")


def commands() -> list[Command]:
    """`sel elist` names sensors, which `sel list` only numbers; power units' states show with -v alone."""
    return [
        Command("sel", ("ipmitool", "sel", "elist", "last", str(bmc_alarms.MOST_ENTRIES)), _SEL_TIMEOUT, as_root=True),
        Command("sensors", ("ipmitool", "sdr", "elist"), _SENSORS_TIMEOUT, as_root=True),
        Command("sensors.power-unit", ("ipmitool", "-v", "sdr", "type", "Power Unit"), _UNITS_TIMEOUT, as_root=True),
    ]


def is_empty(output: Output) -> bool:
    return b"SEL has no entries" in output.stdout + output.stderr


def is_sel(line: str) -> bool:
    return _entry(line) is not None


def sel(reading: Reading, output: Output) -> Iterator[Observation]:
    """Entries of `ipmitool sel list` or `elist`, with or without a time zone or a direction behind them."""
    found, keys = [], []
    for line in _text(output).splitlines():
        entry = _entry(line)
        if entry is not None:
            found.append(_alarm_of(entry))
            keys.append("|".join(entry))
    if keys or output.status == 0 or is_empty(output):
        yield from bmc_alarms.entries(reading, "sel", found, keys)


class _Entry(NamedTuple):
    """One row of the event log; `direction` is empty where it has none."""

    number: str
    date: str
    time: str
    sensor: str
    event: str
    direction: str


def _entry(line: str) -> Optional[_Entry]:
    line = line[:_LONGEST_LINE]
    cells = [cell.strip() for cell in (line.split("|") if "|" in line else line.split(",", 5))]
    if len(cells) >= 6 and _NUMBER.fullmatch(cells[0]) and _FREE_DATED.fullmatch(cells[1]):
        event, _, direction = cells[5].partition(" ; ")
        way = "Deasserted" if "deassertion" in direction.lower() else "Asserted"
        return _Entry(cells[0], cells[1], cells[2], f"{cells[4]} {cells[3]}", event.strip("'"), way)
    if len(cells) < 5 or not _NUMBER.fullmatch(cells[0]) or not _DATED.match(cells[1]) or not (cells[3] and cells[4]):
        return None
    direction = cells[5] if len(cells) > 5 and cells[5].lower() in ("asserted", "deasserted") else ""
    return _Entry(cells[0], cells[1], cells[2], cells[3], cells[4], direction)


def _alarm_of(entry: _Entry) -> Alarm:
    typed = _TYPED.match(entry.sensor)
    kind_word, name = (typed["type"], typed["name"].strip()) if typed else ("", entry.sensor)
    own = bmc_alarms.kind_of(kind_word, name)
    if own is Kind.TEMPERATURE:
        own = bmc_alarms.kind_of(name) if bmc_alarms.kind_of(name) is Kind.INLET else own
    told = bmc_alarms.state(entry.event, own)
    kind, level = told if told else (own, -1)
    if entry.direction.lower() == "deasserted":
        level = 0 if level > 0 else -1
    said = f"{entry.sensor}: {entry.event}" + (f" ({entry.direction.lower()})" if entry.direction else "")
    return Alarm(kind, name or kind_word, level, f"event log, {entry.date} {entry.time}: {said}")


def sensors(reading: Reading, output: Output) -> Iterator[Observation]:
    """Sensors of `sdr list`, `sdr elist`, `sdr -v`, `sensor list`, and of freeipmi with pipes or commas."""
    yield from bmc_alarms.alarms(reading, told_by(_text(output)))


def told_by(text: str) -> Iterator[Alarm]:
    if _BLOCK.search(text):
        yield from _verbose(text)
        return
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 3:
            yield from _sensor(cells[0], "", cells[1], cells[2])
        elif len(cells) == 5 and re.fullmatch(r"[0-9a-f]{1,3}h", cells[1], re.IGNORECASE):
            yield from _sensor(cells[0], "", cells[4], cells[2])
        elif len(cells) >= 9 and cells[0]:
            yield from _sensor(cells[0], "", f"{cells[1]} {cells[2]}", cells[3])
        elif len(cells) in (6, 7) and cells[0].isdigit():
            yield from _free([cells[1], cells[2], *cells[-3:]])
        elif len(cells) == 1 and line.count(",") >= 5 and line.split(",")[0].strip().isdigit():
            yield from _free([cell.strip() for cell in line.split(",", 5)][1:])


def _sensor(name: str, kind_word: str, shown: str, status: str) -> Iterator[Alarm]:
    """`shown` is a number with its unit, or words of states; `status` ipmitool's ok, nc, cr, nr."""
    status, shown = status.lower(), shown.strip()
    level = _LEVELS.get(status)
    if level is None or shown.lower() in _NO_READING or shown.startswith("0x") or not name:
        return
    measured = _READING.match(shown)
    unit = measured["unit"].strip() if measured else ""
    own = bmc_alarms.kind_of(kind_word, name, unit)
    text = f"{name}: {shown} ({status})"
    if measured and unit.lower() != "discrete":
        if unit.lower().startswith("degrees"):
            own = Kind.INLET if bmc_alarms.kind_of(name) is Kind.INLET else Kind.TEMPERATURE
        yield Alarm(own, name, level, text)
        shown = shown.partition(",")[2].strip()
    elif level:
        yield Alarm(own, name, level, text)
    yield from _states(name, own, [word.strip() for word in shown.split(",")], text)


def _states(name: str, own: Kind, words: list[str], text: str) -> Iterator[Alarm]:
    told = [found for found in (bmc_alarms.state(word, own) for word in words) if found]
    for kind, level in told:
        yield Alarm(kind, name, level, text)
    if own is Kind.PSU and told:  # one that is present and complains of nothing has its input too
        yield Alarm(Kind.INPUT, name, 0, text)


def _verbose(text: str) -> Iterator[Alarm]:
    starts = [found.start() for found in _BLOCK.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)]):
        block = text[start:end]
        name = _BLOCK.search(block)
        kind_word, states, status = (p.search(block) for p in (_BLOCK_TYPE, _BLOCK_STATES, _BLOCK_STATUS))
        if name is None:
            continue
        own = bmc_alarms.kind_of(name["name"], kind_word["type"] if kind_word else "")
        words = _BRACKETED.findall(states["states"]) if states else []
        yield from _states(name["name"], own, words, f"{name['name']}: {', '.join(words)}")
        level = _LEVELS.get(status["status"].strip().lower()) if status else None
        if level:
            yield Alarm(own, name["name"], level, f"{name['name']}: {status['status'].strip() if status else ''}")


_FREE_LEVELS = (("non-recoverable", 3), ("non-critical", 1), ("critical", 2))


def _free(cells: list[str]) -> Iterator[Alarm]:
    """freeipmi's `ipmi-sensors`: name, type, reading, unit, events in quotes."""
    if len(cells) < 5:
        return
    name, kind_word, reading, unit = cells[:4]
    events = _QUOTED.findall(",".join(cells[4:])) or [cells[4]]
    own = bmc_alarms.kind_of(name if "redund" in name.lower() else kind_word, name, unit)
    text = f"{name}: {reading} {unit} {', '.join(events)}"
    for event in events:
        crossed = next(
            (level for word, level in _FREE_LEVELS if "threshold" in event.lower() and word in event.lower()), None
        )
        if crossed is not None:
            yield Alarm(own, name, crossed, text)
    yield from _states(name, own, events, text)


def _text(output: Output) -> str:
    return output.stdout.decode("utf-8", "replace")
