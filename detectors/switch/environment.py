"""What a switch says of its own parts: optics, temperatures, fans, power supplies, processor,
memory, disks. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from detectors import resources
from detectors.detector import Reading
from detectors.faults import Observation
from detectors.switch import ports, sensors
from detectors.switch import tables as switch_tables
from detectors.switch.sensors import Sensor
from detectors.switch.tables import Tables

# ENTITY-MIB (RFC 4133) PhysicalClass; ENTITY-STATE-MIB (RFC 4268): a part that cannot do its work
# is disabled(2).
_CHASSIS, _POWER_SUPPLY, _FAN, _PORT = 3, 6, 7, 10
_DISABLED = 2
# CISCO-ENTITY-FRU-CONTROL-MIB: PowerOperType on(2) and offAdmin(3) are wanted states, on with a
# failed fan(9) gives power too. SONiC says ok(2), failed(7) and missing(8) in the same column, by
# number of the supply.
_POWER_STATES = {
    1: "off",
    4: "denied power",
    5: "without input power",
    6: "off, too hot",
    7: "failed",
    8: "missing or failed",
    10: "off, cooling lost",
    11: "off, connector overloaded",
    12: "on, inline power failed",
}
_FAN_STATES = {3: "down", 4: "not as it should be"}

# Arista and SONiC: `DOM RX Power Sensor for Ethernet1`, with the lane behind a slash where a module
# has several.
_OPTICS = re.compile(
    r"^DOM (?P<what>RX Power|TX Power|TX Bias|Temperature|Voltage) Sensor for (?P<port>.+)$"
)
# NX-OS: `Ethernet1/1 Lane 1 Transceiver Receive Power Sensor`.
_NXOS_OPTICS = re.compile(
    r"^(?P<port>[A-Z]\w*[\d/]+)(?: Lane (?P<lane>\d+))? Transceiver "
    r"(?P<what>Receive Power|Transmit Power|Bias Current|Temperature|Voltage) Sensor$"
)
_METRICS = {
    **dict.fromkeys(("RX Power", "Receive Power"), "optics.rx_power_dbm"),
    **dict.fromkeys(("TX Power", "Transmit Power"), "optics.tx_power_dbm"),
    **dict.fromkeys(("TX Bias", "Bias Current"), "optics.bias_ma"),
    "Temperature": "optics.temperature_celsius",
    "Voltage": "optics.voltage_v",
}
# SFF-8636 and CMIS modules, and ethtool, give -40 dBm for no light at all; 0 mW has no logarithm.
_DARK_DBM = -40.0
# `DOM ... for Eth1/1`: SONiC numbers a port's sensors 1 + ifIndex in seven digits + kind + lane.
_SONIC_PORT_BASE = 1_000_000_000
_RAM = "1.3.6.1.2.1.25.2.1.2"
_FIXED_DISK = "1.3.6.1.2.1.25.2.1.4"
# net-snmp's names, and those of EOS.
_WHOLE_MEMORY = frozenset({"physical memory", "ram"})
_SPARE_MEMORY = frozenset({"memory buffers", "cached memory", "ram (buffers)", "ram (cache)"})
# File systems that grow. A switch's others are memory, images that are always full, or single
# files.
_WATCHED_DISKS = frozenset({"/", "/host", "/var", "/var/log", "/mnt/flash", "/mnt/disk", "/config"})


def observe(reading: Reading, tables: Tables) -> Iterator[Observation]:
    """Everything that the entity and sensor tables hold."""
    named = ports.names(tables, reading.target.expected)
    places = _Places(tables, named)
    for sensor in sensors.sensors(tables):
        optics = _OPTICS.match(sensor.name) or _NXOS_OPTICS.match(sensor.name)
        if optics is not None:
            yield from _optics(reading, sensor, optics, places)
        elif sensor.kind == sensors.CELSIUS:
            own = f", its own limit is {sensor.limits['raise_at']}" if sensor.limits else ""
            attributes = {
                "text": f"{sensor.name} is at {sensor.value:.1f} degrees Celsius{own}",
                **sensor.limits,
            }
            yield reading.saw(
                "switch.temperature_celsius",
                round(sensor.value, 1),
                qualifier=_unit(sensor.name),
                **attributes,
            )
        elif sensor.kind == sensors.RPM or (
            sensor.kind == sensors.UNKNOWN and _is_fan(sensor.name)
        ):
            text = f"{sensor.name} {'turns' if sensor.value > 0 else 'stands still'}"
            yield reading.saw("fan.well", sensor.value > 0, qualifier=_unit(sensor.name), text=text)
    yield from _states(reading, tables)
    yield from _parts(reading, tables, named)


def _is_fan(name: str) -> bool:
    return "fan" in name.lower() or "tach" in name.lower()


def _unit(name: str) -> str:
    return re.sub(r"^(?:Tachometers|RPM sensor) for ", "", name)


@dataclass(frozen=True)
class _Places:
    """Where a sensor sits: ports by the names that the switch gives them."""

    tables: Tables
    named: Mapping[str, str]

    def of(self, sensor: Sensor, told: str) -> tuple[str, str]:
        """Port name and lane ("" where the sensor is the module's). The lane follows the port
        behind a slash."""
        number = int(sensor.row) if sensor.row.isdigit() else 0
        if number >= _SONIC_PORT_BASE:
            index, lane = str((number - _SONIC_PORT_BASE) // 100), number % 10
            if index in self.named:
                return self.named[index], str(lane) if lane else ""
        whole = self._known(told)
        if whole:
            return whole, ""
        port, _, lane_text = told.rpartition("/")
        return (
            (self._known(port) or port, lane_text) if port and lane_text.isdigit() else (told, "")
        )

    def _known(self, told: str) -> str:
        for index, name in self.named.items():
            if told in (name, self.tables.text(switch_tables.IF_NAME, index)):
                return name
        return ""


def _optics(
    reading: Reading, sensor: Sensor, found: re.Match[str], places: _Places
) -> Iterator[Observation]:
    told = found.groupdict()
    port, lane = (
        (told["port"], told["lane"] or "") if "lane" in told else places.of(sensor, told["port"])
    )
    what = found["what"]
    value = sensor.value
    if sensor.kind == sensors.WATTS:
        # SONiC and Arista: milliwatts with four decimals, so 5310 is -2.75 dBm.
        value = 10 * math.log10(value * 1000) if value > 0 else _DARK_DBM
    elif sensor.kind == sensors.AMPERES:
        value *= 1000
    attributes = {"lane": lane, "qualifier": f"lane {lane}"} if lane else {}
    yield reading.saw(
        _METRICS[what], round(value, 2), resources.port(reading.target.name, port), **attributes
    )


def _states(reading: Reading, tables: Tables) -> Iterator[Observation]:
    """Power supplies and fans by ENTITY-STATE-MIB and by Cisco's table of replaceable units."""
    for row, state in tables.column(switch_tables.ENTITY_OPER).items():
        kind = tables.number(switch_tables.ENTITY_CLASS, row)
        metric = {_POWER_SUPPLY: "psu.well", _FAN: "fan.well"}.get(kind or 0)
        if metric is not None:
            name = sensors.name(tables, row)
            text = f"{name} is {'not working' if state == _DISABLED else 'working'}"
            yield reading.saw(metric, state != _DISABLED, qualifier=f"{name} {row}", text=text)
    for row, state in tables.column(switch_tables.FRU_POWER_STATUS).items():
        wrong = _POWER_STATES.get(state) if isinstance(state, int) else None
        # SONiC counts its supplies from 1; elsewhere the row is that of ENTITY-MIB.
        name = f"PSU {row}" if len(row) < 3 else sensors.name(tables, row)
        yield reading.saw(
            "psu.well", wrong is None, qualifier=name, text=f"{name} is {wrong or 'on'}"
        )
    for row, state in tables.column(switch_tables.FRU_FAN_STATUS).items():
        wrong = _FAN_STATES.get(state) if isinstance(state, int) else None
        name = sensors.name(tables, row)
        yield reading.saw(
            "fan.well", wrong is None, qualifier=f"{name} {row}", text=f"{name} is {wrong or 'up'}"
        )


def _parts(reading: Reading, tables: Tables, named: Mapping[str, str]) -> Iterator[Observation]:
    """Serials for the inventory: the switch's own, and those of the transceivers in its ports."""
    for row in tables.column(switch_tables.ENTITY_CLASS):
        serial = tables.text(switch_tables.ENTITY_SERIAL, row)
        kind = tables.number(switch_tables.ENTITY_CLASS, row)
        if serial and kind == _CHASSIS:
            yield reading.saw("switch.serial", serial)
        if serial and kind == _PORT and row.isdigit() and int(row) >= _SONIC_PORT_BASE:
            index = str((int(row) - _SONIC_PORT_BASE) // 100)
            if index in named:
                resource = resources.port(reading.target.name, named[index])
                yield reading.saw("module.serial", serial, resource)


def load(reading: Reading, tables: Tables) -> Iterator[Observation]:
    """Processor and memory in percent."""
    loads = [
        value
        for value in tables.column(switch_tables.PROCESSOR_LOAD).values()
        if isinstance(value, int)
    ]
    if loads:
        share = round(sum(loads) / len(loads), 1)
        text = f"its processor is {share:.0f} % busy"
        yield reading.saw("switch.cpu_percent", share, qualifier="processor", text=text)
    total, free = (
        tables.scalar(switch_tables.MEMORY_TOTAL),
        tables.scalar(switch_tables.MEMORY_FREE),
    )
    if total and free is not None:
        spare = sum(
            tables.scalar(oid) or 0
            for oid in (switch_tables.MEMORY_BUFFERS, switch_tables.MEMORY_CACHED)
        )
        yield _memory(reading, total, total - free - spare)


def storage(reading: Reading, tables: Tables) -> Iterator[Observation]:
    """Memory and disks by HOST-RESOURCES-MIB. Linux counts its buffers and cache as used: they are
    subtracted."""
    spare = 0
    ram: tuple[int, int] | None = None
    for row, kind in tables.column(switch_tables.STORAGE_TYPE).items():
        name = tables.text(switch_tables.STORAGE_NAME, row)
        size = tables.number(switch_tables.STORAGE_SIZE, row)
        used = tables.number(switch_tables.STORAGE_USED, row)
        if size is None or used is None or size <= 0:
            continue
        if name.lower() in _SPARE_MEMORY:
            spare += used
        elif kind == _RAM and name.lower() in _WHOLE_MEMORY:
            ram = (size, used)
        elif kind == _FIXED_DISK and name in _WATCHED_DISKS:
            share = round(100 * used / size, 1)
            text = f"its disk {name} is {share:.0f} % full"
            yield reading.saw("switch.disk_percent", share, qualifier=f"disk {name}", text=text)
    if ram is not None and not tables.scalar(switch_tables.MEMORY_TOTAL):
        size, used = ram
        yield _memory(reading, size, used - spare if used >= spare else used)


def _memory(reading: Reading, total: int, used: int) -> Observation:
    share = round(min(max(100 * used / total, 0.0), 100.0), 1)
    text = f"its memory is {share:.0f} % used"
    return reading.saw("switch.memory_percent", share, qualifier="memory", text=text)
