"""How a SONiC switch is set, against what is declared; its reboot cause and the queues that its
watchdog stopped.

The meaning of the settings is in sonic_settings.py, the forms of the outputs in sonic_outputs.py;
thresholds and severities are in catalog/polled_config.toml. Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Optional

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
from detectors.expected import ExpectedPort
from detectors.faults import Observation
from detectors.switch import sonic_outputs, sonic_settings
from detectors.switch.sonic_outputs import Database, get_field, parse_gbps

CONFIG, CAUSE, WATCHDOG, STATUS = "config-db", "reboot-cause", "pfcwd", "interfaces-status"
FEC, AUTONEG, COUNTERS, SUPPLIES, EEPROM, ECN = "fec", "autoneg", "counters", "psu", "eeprom", "ecn"
# sonic-cfggen reads the whole database through Python: 2 to 6 s on a switch's small processor.
_TIMEOUT = timedelta(seconds=40)
_MOST_CAUSE = 200

# What a text is, by words of its heads. The first that fits; a database is told by its first
# character.
_SIGNS = (
    (AUTONEG, b"Auto-Neg Mode"),
    (FEC, b"FEC Oper"),
    (WATCHDOG, b"STORM DETECTED/RESTORED"),
    (STATUS, b"Asym PFC"),
    (COUNTERS, b"RX_OK"),
    (SUPPLIES, b"Voltage (V)"),
    (EEPROM, b"EEPROM"),
    (EEPROM, b"ChannelMonitorValues"),
    (ECN, b"green_max_threshold"),
    (CAUSE, b"reboot"),
)
_RX_POWER = re.compile(r"^\s+RX(\d)Power: (-?\d{1,3}(?:\.\d{1,4})?)dBm", re.MULTILINE)
_MODULE = re.compile(r"^(Ethernet\d+): SFP EEPROM", re.MULTILINE)
_PROFILE = re.compile(r"^Profile: (\S+)", re.MULTILINE)
_SETTING = re.compile(r"^(\w+_(?:threshold|drop_probability)|ecn)\s+(\S+)", re.MULTILINE)


_COMMANDS = (
    Command(CONFIG, ("sonic-cfggen", "-d", "--print-data"), _TIMEOUT, as_root=True),
    Command(STATUS, ("show", "interfaces", "status"), _TIMEOUT),
    Command(CAUSE, ("show", "reboot-cause"), _TIMEOUT),
    Command(WATCHDOG, ("show", "pfcwd", "stats"), _TIMEOUT),
)


class SonicDetector(NothingToCompare):
    """Settings of a SONiC switch. Only asked where settings are declared: that is also where it may
    be logged into."""

    name: ClassVar[str] = "sonic"
    kind: ClassVar[TargetKind] = TargetKind.SWITCH
    every: ClassVar[timedelta] = timedelta(minutes=10)
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "sonic.database_keys",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset({"switch.reboot_cause"})

    def wants(self, target: Target) -> bool:
        return bool(sonic_settings.NAMES & set(target.expected.settings))

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """One session. Raises DetectorError where the switch takes no SSH."""
        outputs = via.shell.run_all(target, self.name, _COMMANDS)
        return Reading(self.name, target, now, outputs)

    def sniff(self, text: bytes) -> str:
        if text.lstrip()[:1] in (b"{", b"["):
            return CONFIG
        return next((name for name, sign in _SIGNS if sign in text), CONFIG)

    def parse(self, reading: Reading) -> Iterator[Observation]:
        outputs = reading.outputs
        database = (
            sonic_outputs.parse_database(outputs[CONFIG].stdout) if CONFIG in outputs else None
        )
        complaint = _find_complaint(reading, database)
        yield reading.silent(complaint) if complaint else reading.answered()
        if database:
            yield from _observe_tables(reading, database)
            yield from _observe_settings(reading, database)
            yield from _observe_ports(reading, _set_ports(database))
        for name, read in _READERS:
            if name in outputs and (name != STATUS or not database):
                yield from read(reading, outputs[name])

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        """Another reboot cause, which SONiC tells with its time, is another reboot."""
        for seen in now:
            if seen.metric != "switch.reboot_cause":
                continue
            last = before.get((seen.resource, seen.metric))
            if last is not None and last.value != seen.value:
                attributes = {
                    "text": f"the switch started anew; it gives as the cause: {seen.value}"
                }
                yield Observation(
                    seen.resource, "switch.restarted", True, seen.observed_at, attributes
                )


def _find_complaint(reading: Reading, database: Optional[Database]) -> str:
    """What could not be read, for people. Without a watchdog `show pfcwd` ends with an error: that
    is no fault."""
    if CONFIG in reading.outputs and not database:
        return f"the configuration database could not be read: {reading.outputs[CONFIG].complaint}"
    cut = sorted(name for name, output in reading.outputs.items() if output.status is None)
    return f"no answer within {_TIMEOUT.seconds} s: {', '.join(cut)}" if cut else ""


def _observe_tables(reading: Reading, database: Database) -> Iterator[Observation]:
    """How much the database holds, for the record."""
    sizes = {name: len(rows) for name, rows in database.items()}
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:8]
    shown = ",".join(f"{name}={size}" for name, size in largest)
    yield reading.saw("sonic.database_keys", sum(sizes.values()), tables=shown)


def _observe_settings(reading: Reading, database: Database) -> Iterator[Observation]:
    """Every declared setting by its name. A database without any quality-of-service table is not
    the configuration."""
    declared = reading.target.expected.settings
    for name in sorted(sonic_settings.NAMES & set(declared)):
        value = sonic_settings.get_observed(name, database, declared)
        wanted = sonic_settings.get_wanted(name, declared[name])
        attributes = {
            "expected": wanted,
            "qualifier": name,
            "text": f"{name.replace('_', ' ')} is {value}; declared is {wanted}",
        }
        yield reading.saw(f"setting.{name}", value, **attributes)


def _set_ports(database: Database) -> dict[str, dict[str, Any]]:
    """By port: what CONFIG_DB (PORT) or APPL_DB (PORT_TABLE) says of it."""
    autoneg_words = {"on": "on", "1": "on", "off": "off", "0": "off"}
    found: dict[str, dict[str, Any]] = {}
    rows = {**database.get("PORT_TABLE", {}), **database.get("PORT", {})}
    for name, row in rows.items():
        if not name.startswith("Ethernet"):
            continue
        values: dict[str, Any] = {"speed_gbps": parse_gbps(get_field(row, "speed"))}
        values["mtu"] = get_field(row, "mtu")
        values["fec"] = get_field(row, "fec").lower()
        values["autoneg"] = autoneg_words.get(get_field(row, "autoneg").lower(), "")
        values["admin"] = get_field(row, "admin_status").lower()
        found[name] = values
    return found


def _observe_ports(reading: Reading, ports: dict[str, dict[str, Any]]) -> Iterator[Observation]:
    """Each value that the switch gives, with what the inventory expects where it does."""
    for name, values in sorted(ports.items()):
        expected = reading.target.expected.port(name)
        resource = resources.port(reading.target.name, name)
        for metric, value in values.items():
            if value in ("", None):
                continue
            shown = _format_value(value)
            wanted = _get_expected(expected, metric)
            attributes: dict[str, str] = {}
            if wanted:
                setting = metric.replace("_gbps", "")
                text = f"its {setting} is {shown}; the inventory says {wanted}"
                attributes = {"expected": wanted, "text": text}
            yield reading.saw(f"port.set_{metric}", shown, resource, **attributes)


def _get_expected(expected: Optional[ExpectedPort], metric: str) -> str:
    """As text; empty where the inventory does not say."""
    if expected is None:
        return ""
    autoneg = {True: "on", False: "off", None: ""}[expected.is_autonegotiated]
    admin = {True: "up", False: "down", None: ""}[expected.is_admin_up]
    settings = {
        "speed_gbps": expected.speed_gbps,
        "mtu": expected.mtu,
        "fec": expected.fec.lower(),
        "autoneg": autoneg,
        "admin": admin,
    }
    wanted = settings[metric]
    return "" if wanted in (None, "") else _format_value(wanted)


def _format_value(value: object) -> str:
    """A whole number without its fraction."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _observe_status(reading: Reading, output: Output) -> Iterator[Observation]:
    """`show interfaces status`, where the database could not be read or only this was handed in."""
    ports: dict[str, dict[str, Any]] = {}
    for row in _list_ethernet_rows(output):
        values: dict[str, Any] = {"speed_gbps": parse_gbps(row.get("speed", ""))}
        values["mtu"] = row.get("mtu", "")
        values["fec"] = row.get("fec", "").lower()
        values["admin"] = row.get("admin", "").lower()
        ports[row["interface"]] = values
    yield from _observe_ports(reading, ports)


def _list_ethernet_rows(output: Output) -> Iterator[dict[str, str]]:
    for row in sonic_outputs.parse_table(output.text):
        if row.get("interface", "").startswith("Ethernet"):
            yield row


def _observe_fec(reading: Reading, output: Output) -> Iterator[Observation]:
    """What the link runs with, else what it is set to."""
    ports: dict[str, dict[str, Any]] = {}
    for row in _list_ethernet_rows(output):
        fec = row.get("fec oper") or row.get("fec admin", "")
        ports[row["interface"]] = {"fec": fec.lower()}
    yield from _observe_ports(reading, ports)


def _observe_autoneg(reading: Reading, output: Output) -> Iterator[Observation]:
    words = {"enabled": "on", "disabled": "off"}
    ports: dict[str, dict[str, Any]] = {}
    for row in _list_ethernet_rows(output):
        autoneg = words.get(row.get("auto-neg mode", ""), "")
        ports[row["interface"]] = {"autoneg": autoneg}
    yield from _observe_ports(reading, ports)


def _observe_cause(reading: Reading, output: Output) -> Iterator[Observation]:
    """`show reboot-cause`: one sentence, with user and time where a person asked for it."""
    text = " ".join(output.text.split())[:_MOST_CAUSE]
    if output.status == 0 and text:
        yield reading.saw("switch.reboot_cause", text)


def _observe_watchdog(reading: Reading, output: Output) -> Iterator[Observation]:
    """`show pfcwd stats`: a queue is operational or stormed. A port is well when none of its queues
    is stormed."""
    stormed: dict[str, list[str]] = {}
    for row in sonic_outputs.parse_table(output.text):
        port, _, queue = row.get("queue", "").partition(":")
        if not port.startswith("Ethernet"):
            continue
        queues = stormed.setdefault(port, [])
        if row.get("status") == "stormed":
            counts = row.get("storm detected/restored", "")
            queues.append(f"{queue} ({counts} detected/restored)")
    for port, queues in sorted(stormed.items()):
        resource = resources.port(reading.target.name, port)
        text = "no queue is held up"
        if queues:
            text = f"pause frames hold up queue {', '.join(queues)}"
        yield reading.saw("port.pfc_stormed", bool(queues), resource, text=text)


def _observe_counters(reading: Reading, output: Output) -> Iterator[Observation]:
    """`show interfaces counters`: a port that has received packets and is down now had a link."""
    for row in sonic_outputs.parse_table(output.text):
        port = row.get("iface", "")
        state = row.get("state", "")
        if not port.startswith("Ethernet") or state not in ("U", "D", "X"):
            continue
        resource = resources.port(reading.target.name, port)
        yield reading.saw("port.state", state, resource)
        received = row.get("rx_ok", "").replace(",", "")
        has_received = received.isdecimal() and int(received) > 0
        is_up = state == "U"
        if is_up or (state == "D" and has_received):
            word = "up" if is_up else "down"
            text = f"the link is {word}; it has received {received or 'some'} packets"
            yield reading.saw("port.well", is_up, resource, text=text)


def _observe_supplies(reading: Reading, output: Output) -> Iterator[Observation]:
    """`show platform psustatus`. A supply that is not there may never have been."""
    for row in sonic_outputs.parse_table(output.text):
        status = row.get("status", "")
        if row.get("psu") and status in ("OK", "WARNING", "NOT OK"):
            text = f"{row['psu']} says {status}"
            yield reading.saw("psu.well", status != "NOT OK", qualifier=row["psu"], text=text)


def _observe_optics(reading: Reading, output: Output) -> Iterator[Observation]:
    """`show interfaces transceiver eeprom --dom`: received power by lane, for the record.

    What it means is judged where lanes are looked at over time: over SNMP, and from the host's end.
    """
    blocks = _split_blocks(_MODULE, output.text) or [("", output.text)]
    for port, block in blocks:
        resource = resources.port(reading.target.name, port) if port else ""
        for lane, power in _RX_POWER.findall(block):
            yield reading.saw("port.rx_power_dbm", float(power), resource, lane=lane)


def _observe_ecn(reading: Reading, output: Output) -> Iterator[Observation]:
    """`show ecn` (ecnconfig -l): profiles as blocks of field and value."""
    profiles = {}
    for name, block in _split_blocks(_PROFILE, output.text):
        # The command does not print whether a profile marks: only those that mark are worth asking
        # for.
        profiles[name] = {"ecn": "ecn_all", **dict(_SETTING.findall(block))}
    expected = reading.target.expected.settings
    declared = {name: value for name, value in expected.items() if name.startswith("ecn_")}
    if profiles:
        for name in sorted(sonic_settings.NAMES & set(declared)):
            value = sonic_settings.get_observed(name, {"WRED_PROFILE": profiles}, declared)
            wanted = sonic_settings.get_wanted(name, declared[name])
            yield reading.saw(f"setting.{name}", value, expected=wanted, qualifier=name)


def _split_blocks(heading: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    """The name in each heading, with the text from there to the next heading."""
    headings = list(heading.finditer(text))
    ends = [following.start() for following in headings[1:]] + [len(text)]
    return [(found[1], text[found.start() : end]) for found, end in zip(headings, ends)]


_READERS = (
    (STATUS, _observe_status),
    (FEC, _observe_fec),
    (AUTONEG, _observe_autoneg),
    (CAUSE, _observe_cause),
    (WATCHDOG, _observe_watchdog),
    (COUNTERS, _observe_counters),
    (SUPPLIES, _observe_supplies),
    (EEPROM, _observe_optics),
    (ECN, _observe_ecn),
)
