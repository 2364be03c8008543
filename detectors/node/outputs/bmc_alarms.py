"""What a board's management controller warns of, whatever the words: by kind of part and how bad,
from 0 (well) to 3.

Pure tables over words of IPMI and Redfish. Python 3.9, standard library alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from detectors.detector import Reading, Samples
from detectors.faults import Observation, Word

ENTRY = "bmc.log_entry"
CURSOR = "bmc.log_cursor"
# Of a log so many of the newest entries are read; a hash of each is what is remembered.
MOST_ENTRIES = 100
_HASH = 8


class AlarmKind(Word):
    """What a fault of it is called in the catalogue: metric `bmc.<kind>`."""

    PSU = "psu"
    INPUT = "input"
    REDUNDANCY = "redundancy"
    FAN = "fan"
    TEMPERATURE = "temperature"
    INLET = "inlet"
    VOLTAGE = "voltage"
    CHASSIS = "chassis"
    LEAK = "leak"
    MEMORY_CORRECTED = "memory_corrected"
    MEMORY_UNCORRECTED = "memory_uncorrected"
    PROCESSOR = "processor"
    DISK = "disk"
    HARDWARE = "hardware"
    LOG = "log"
    NOTICE = "notice"


class Alarm(NamedTuple):
    """One part by its name at one level. `text` is what the controller said."""

    kind: AlarmKind
    name: str
    level: int
    text: str


# What a part is, by IPMI's sensor types and the names that vendors give. The first that fits; order
# matters.
_KINDS = tuple(
    (re.compile(words, re.IGNORECASE), kind)
    for words, kind in (
        (r"redundan", AlarmKind.REDUNDANCY),
        (r"\bleak", AlarmKind.LEAK),
        (r"intrusion|physical security|\bhood\b", AlarmKind.CHASSIS),
        (r"inlet|ambient|front panel temp|exhaust", AlarmKind.INLET),
        (r"temp|therm|degrees", AlarmKind.TEMPERATURE),
        (r"\bfan|fan\d|blower|\brpm\b|rotational|_fan", AlarmKind.FAN),
        (
            r"power supply|power supplies|powersuppl|\bps ?\d|psu|pwr supply|converter",
            AlarmKind.PSU,
        ),
        (r"voltage|volts|\bcurrent\b|\bamps\b", AlarmKind.VOLTAGE),
        (r"drive|disk|\bhdd|\bssd|nvme|storage|volume", AlarmKind.DISK),
        (r"memory|dimm", AlarmKind.MEMORY_UNCORRECTED),
        (r"processor|\bcpu|machine check", AlarmKind.PROCESSOR),
        (r"event logging disabled|\bsel\b", AlarmKind.LOG),
    )
)
# IPMI 2.0 tables 42-2 and 42-3: words of states, what they speak of (None: the part itself), how
# bad. The first fits.
_STATES: tuple[tuple[re.Pattern[str], Optional[AlarmKind], int], ...] = tuple(
    (re.compile(words, re.IGNORECASE), kind, level)
    for words, kind, level in (
        (r"redundancy (?:is )?lost|non-redundant:? ?insufficient", AlarmKind.REDUNDANCY, 2),
        (r"redundancy degraded|non-redundant|redundancy is degraded", AlarmKind.REDUNDANCY, 1),
        (r"fully redundant|redundancy (?:is )?(?:regained|restored)", AlarmKind.REDUNDANCY, 0),
        (
            r"ac lost|input lost|loss ?of ?input|input out-of-range|input power.{0,20}lost",
            AlarmKind.INPUT,
            2,
        ),
        (
            r"uncorrectable (?:ecc|memory)|multi-?bit (?:memory|ecc)|memory.{0,20}uncorrect",
            AlarmKind.MEMORY_UNCORRECTED,
            2,
        ),
        (
            r"uncorrectable machine check|\bierr\b|thermal trip|frb\d? ?/?.{0,12}fail",
            AlarmKind.PROCESSOR,
            2,
        ),
        (r"^correctable ecc|[^n]correctable (?:ecc|memory)", AlarmKind.MEMORY_CORRECTED, 1),
        (r"non-critical", None, 1),
        (r"non-recoverable", None, 3),
        (r"(?:upper|lower) critical|transition to critical|(?:high|low)er? critical", None, 2),
        (
            r"pci serr|pci perr|bus fatal|bus uncorrectable|bus timeout|fatal nmi|pcie? fatal",
            AlarmKind.HARDWARE,
            2,
        ),
        (r"bus (?:correctable|degraded)|software nmi", AlarmKind.HARDWARE, 1),
        (r"intrusion|hood was removed", AlarmKind.CHASSIS, 2),
        (r"log (?:almost )?full", AlarmKind.LOG, 1),
        (r"log area reset|log cleared", AlarmKind.LOG, 0),
        (r"predictive fail|failure predicted", None, 1),
        (r"drive fault|in failed array", AlarmKind.DISK, 2),
        (r"in critical array|rebuild aborted", AlarmKind.DISK, 1),
        (r"fail(?:ure|ed)|\bfault|leak detected", None, 2),
        (r"config(?:uration)? error|low battery", None, 1),
        (r"transition to ok|presence detected|^ok$|^connected$|drive present", None, 0),
    )
)
# What is no fault of a part, however it is worded.
_NO_ALARM = re.compile(
    r"state deasserted|os boot|acpi|button|timestamp clock|boot completed|soft-power control"
    r" failure",
    re.IGNORECASE,
)

# Of most sensors these words tell nothing: `State Asserted` is well of "power good". A leak sensor
# has one meaning.
_LEAKS = {"state asserted": 2, "state deasserted": 0}


def classify_sensor(*names: str) -> AlarmKind:
    """By the sensor's type first, then its name, then its unit; HARDWARE for what nothing is known
    of."""
    for words in names:
        for pattern, kind in _KINDS:
            if words and pattern.search(words):
                return kind
    return AlarmKind.HARDWARE


def parse_state(words: str, own: AlarmKind) -> Optional[tuple[AlarmKind, int]]:
    """What one state of a part means; None for a state that tells neither good nor bad."""
    if own is AlarmKind.LEAK and words.lower() in _LEAKS:
        return own, _LEAKS[words.lower()]
    if not words or _NO_ALARM.search(words):
        return None
    for pattern, kind, level in _STATES:
        if pattern.search(words):
            return kind or own, level
    return None


def observe_worst_alarms(reading: Reading, found: Iterable[Alarm]) -> Iterator[Observation]:
    """The worst of each part by its name: two sensors of one name occur."""
    worst: dict[tuple[AlarmKind, str], Alarm] = {}
    for alarm in found:
        key = (alarm.kind, alarm.name)
        if key not in worst or alarm.level > worst[key].level:
            worst[key] = alarm
    for alarm in worst.values():
        yield observe_alarm(reading, alarm)


def observe_alarm(reading: Reading, alarm: Alarm) -> Observation:
    return reading.saw(f"bmc.{alarm.kind}", alarm.level, qualifier=alarm.name, text=alarm.text)


def observe_entries(
    reading: Reading, log: str, found: Sequence[Alarm], keys: Sequence[str]
) -> Iterator[Observation]:
    """Entries of a log, oldest first, and the place up to which it was read. Not yet judged: old
    ones are history.

    `keys` tells each entry from all others that the log ever held; entries that are no alarm have a
    level below 0.
    """
    resource = f"{reading.target.resource}/log/{re.sub(r'[^A-Za-z0-9_.-]', '_', log) or 'sel'}"
    marks = [hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:_HASH] for key in keys]
    for alarm, mark in list(zip(found, marks))[-MOST_ENTRIES:]:
        if alarm.level >= 0:
            attributes = {
                "kind": str(alarm.kind),
                "level": str(alarm.level),
                "name": alarm.name,
                "mark": mark,
            }
            yield reading.saw(ENTRY, alarm.text, resource, **attributes)
    yield reading.saw(CURSOR, "".join(marks[-MOST_ENTRIES:]), resource)


def observe_new_entries(now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
    """What entries that the round before did not see say, the last word on each part. At first
    sight: nothing."""
    last: dict[tuple[str, str], Observation] = {}
    alarms = [seen for seen in now if isinstance(seen.value, int) and seen.value > 0]
    shown = {(alarm.metric, alarm.attributes.get("qualifier")) for alarm in alarms}
    for entry in now:
        if entry.metric != ENTRY:
            continue
        cursor = before.get((entry.resource, CURSOR))
        if cursor is None or entry.attributes["mark"] in _parse_cursor(str(cursor.value)):
            continue
        name, level = entry.attributes["name"], int(entry.attributes["level"])
        metric = f"bmc.{entry.attributes['kind']}"
        if (metric, name) in shown:  # its sensor says so itself, and will say when it is over
            continue
        attributes = {"qualifier": name, "text": str(entry.value)}
        node = entry.resource.partition("/log/")[0]
        last[(metric, name)] = Observation(node, metric, level, entry.observed_at, attributes)
    yield from last.values()


def _parse_cursor(cursor: str) -> set[str]:
    return {cursor[at : at + _HASH] for at in range(0, len(cursor), _HASH)}
