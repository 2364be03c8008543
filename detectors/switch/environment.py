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
    r"^(?P<port>[A-Z]\w{0,32}[\d/]{1,32})(?: Lane (?P<lane>\d{1,4}))? Transceiver "
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
    named = ports.list_port_names(tables, reading.target.expected)
    port_names = _PortNames(tables, named)
    for sensor in sensors.list_sensors(tables):
        optics = _OPTICS.match(sensor.name) or _NXOS_OPTICS.match(sensor.name)
        if optics is not None:
            yield from _observe_optics(reading, sensor, optics, port_names)
        elif sensor.kind == sensors.CELSIUS:
            yield _observe_temperature(reading, sensor)
        elif _is_fan(sensor):
            turns = sensor.value > 0
            text = f"{sensor.name} {'turns' if turns else 'stands still'}"
            yield reading.saw("fan.well", turns, qualifier=_get_unit(sensor.name), text=text)
    yield from _observe_states(reading, tables)
    yield from _observe_parts(reading, tables, named)


def _observe_temperature(reading: Reading, sensor: Sensor) -> Observation:
    text = f"{sensor.name} is at {sensor.value:.1f} degrees Celsius"
    if sensor.limits:
        text += f", its own limit is {sensor.limits['raise_at']}"
    degrees = round(sensor.value, 1)
    attributes = {"qualifier": _get_unit(sensor.name), "text": text, **sensor.limits}
    return reading.saw("switch.temperature_celsius", degrees, **attributes)


def _is_fan(sensor: Sensor) -> bool:
    if sensor.kind == sensors.UNKNOWN:
        name = sensor.name.lower()
        return "fan" in name or "tach" in name
    return sensor.kind == sensors.RPM


def _get_unit(name: str) -> str:
    return re.sub(r"^(?:Tachometers|RPM sensor) for ", "", name)


@dataclass(frozen=True)
class _PortNames:
    """Where a sensor sits: ports by the names that the switch gives them."""

    tables: Tables
    named: Mapping[str, str]

    def get_port_and_lane(self, sensor: Sensor, words: str) -> tuple[str, str]:
        """Port name and lane ("" where the sensor is the module's). The lane follows the port
        behind a slash."""
        number = int(sensor.row) if sensor.row.isdecimal() else 0
        if number >= _SONIC_PORT_BASE:
            index = _get_sonic_index(number)
            if index in self.named:
                lane = number % 10
                return self.named[index], str(lane) if lane else ""
        whole = self._find_name(words)
        if whole:
            return whole, ""
        port, _, lane_text = words.rpartition("/")
        if port and lane_text.isdecimal():
            return self._find_name(port) or port, lane_text
        return words, ""

    def _find_name(self, words: str) -> str:
        for index, name in self.named.items():
            if words in (name, self.tables.get_text(switch_tables.IF_NAME, index)):
                return name
        return ""


def _get_sonic_index(number: int) -> str:
    """The port's ifIndex in the number of one of its sensors."""
    return str((number - _SONIC_PORT_BASE) // 100)


def _observe_optics(
    reading: Reading, sensor: Sensor, found: re.Match[str], port_names: _PortNames
) -> Iterator[Observation]:
    groups = found.groupdict()
    if "lane" in groups:
        port, lane = groups["port"], groups["lane"] or ""
    else:
        port, lane = port_names.get_port_and_lane(sensor, groups["port"])
    value = sensor.value
    if sensor.kind == sensors.WATTS:
        # SONiC and Arista: milliwatts with four decimals, so 5310 is -2.75 dBm.
        value = 10 * math.log10(value * 1000) if value > 0 else _DARK_DBM
    elif sensor.kind == sensors.AMPERES:
        value *= 1000
    metric = _METRICS[groups["what"]]
    resource = resources.port(reading.target.name, port)
    attributes = {"lane": lane, "qualifier": f"lane {lane}"} if lane else {}
    yield reading.saw(metric, round(value, 2), resource, **attributes)


def _observe_states(reading: Reading, tables: Tables) -> Iterator[Observation]:
    """Power supplies and fans by ENTITY-STATE-MIB and by Cisco's table of replaceable units."""
    for row, state in tables.get_column(switch_tables.ENTITY_OPER).items():
        kind = tables.get_number(switch_tables.ENTITY_CLASS, row)
        metric = {_POWER_SUPPLY: "psu.well", _FAN: "fan.well"}.get(kind or 0)
        if metric is not None:
            name = sensors.name(tables, row)
            is_well = state != _DISABLED
            text = f"{name} is {'working' if is_well else 'not working'}"
            yield reading.saw(metric, is_well, qualifier=f"{name} {row}", text=text)
    for row, state in tables.get_column(switch_tables.FRU_POWER_STATUS).items():
        wrong = _POWER_STATES.get(state) if isinstance(state, int) else None
        # SONiC counts its supplies from 1; elsewhere the row is that of ENTITY-MIB.
        name = f"PSU {row}" if len(row) < 3 else sensors.name(tables, row)
        text = f"{name} is {wrong or 'on'}"
        yield reading.saw("psu.well", wrong is None, qualifier=name, text=text)
    for row, state in tables.get_column(switch_tables.FRU_FAN_STATUS).items():
        wrong = _FAN_STATES.get(state) if isinstance(state, int) else None
        name = sensors.name(tables, row)
        text = f"{name} is {wrong or 'up'}"
        yield reading.saw("fan.well", wrong is None, qualifier=f"{name} {row}", text=text)


def _observe_parts(
    reading: Reading, tables: Tables, named: Mapping[str, str]
) -> Iterator[Observation]:
    """Serials for the inventory: the switch's own, and those of the transceivers in its ports."""
    for row in tables.get_column(switch_tables.ENTITY_CLASS):
        serial = tables.get_text(switch_tables.ENTITY_SERIAL, row)
        kind = tables.get_number(switch_tables.ENTITY_CLASS, row)
        if serial and kind == _CHASSIS:
            yield reading.saw("switch.serial", serial)
        if not serial or kind != _PORT or not row.isdecimal() or int(row) < _SONIC_PORT_BASE:
            continue
        port = named.get(_get_sonic_index(int(row)))
        if port is not None:
            resource = resources.port(reading.target.name, port)
            yield reading.saw("module.serial", serial, resource)


def load(reading: Reading, tables: Tables) -> Iterator[Observation]:
    """Processor and memory in percent."""
    processors = tables.get_column(switch_tables.PROCESSOR_LOAD)
    loads = [value for value in processors.values() if isinstance(value, int)]
    if loads:
        share = round(sum(loads) / len(loads), 1)
        text = f"its processor is {share:.0f} % busy"
        yield reading.saw("switch.cpu_percent", share, qualifier="processor", text=text)
    total = tables.get_scalar(switch_tables.MEMORY_TOTAL)
    free = tables.get_scalar(switch_tables.MEMORY_FREE)
    if total and free is not None:
        buffers = tables.get_scalar(switch_tables.MEMORY_BUFFERS) or 0
        cached = tables.get_scalar(switch_tables.MEMORY_CACHED) or 0
        yield _observe_memory(reading, total, total - free - buffers - cached)


def observe_storage(reading: Reading, tables: Tables) -> Iterator[Observation]:
    """Memory and disks by HOST-RESOURCES-MIB. Linux counts its buffers and cache as used: they are
    subtracted."""
    spare = 0
    ram: tuple[int, int] | None = None
    for row, kind in tables.get_column(switch_tables.STORAGE_TYPE).items():
        name = tables.get_text(switch_tables.STORAGE_NAME, row)
        size = tables.get_number(switch_tables.STORAGE_SIZE, row)
        used = tables.get_number(switch_tables.STORAGE_USED, row)
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
    if ram is not None and not tables.get_scalar(switch_tables.MEMORY_TOTAL):
        size, used = ram
        yield _observe_memory(reading, size, used - spare if used >= spare else used)


def _observe_memory(reading: Reading, total: int, used: int) -> Observation:
    share = round(min(max(100 * used / total, 0.0), 100.0), 1)
    text = f"its memory is {share:.0f} % used"
    return reading.saw("switch.memory_percent", share, qualifier="memory", text=text)
