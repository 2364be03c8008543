"""Walks of real switches: read without an exception, in agreement with the index and with what
another poller saw.

`MISSES` holds each disagreement with its reason; one that is gone, or a new one, fails the test.
"""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import Reading, SnmpValue, Target, TargetKind, Transports
from detectors.expected import Expected
from detectors.switch import sensors
from detectors.switch import tables as oids
from detectors.switch.ports import list_port_names
from detectors.switch.switch_snmp import SwitchSensorsDetector, SwitchSnmpDetector
from detectors.switch.tables import Tables
from detectors.transports.snmp import SnmpLimits, SnmpTransport
from detectors.transports.snmp_credentials import SnmpCredentials
from fixtures.cluster.world import SimulatedShell, SimulatedWorld
from tests.services.snmpsim import Snmpsim

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
DETECTORS = (SwitchSnmpDetector(), SwitchSensorsDetector())
# Walks of baseboard controllers, servers and single tables, in which a switch's own are not:
# silence is right there.
NO_SWITCH = {
    "switch_snmp": {
        *("librenms__comware_hpe5900", "librenms__fs-switch-dc_fs-switch-dc", "librenms__linux"),
        *("librenms__linux_ucd-diskio", "librenms__nxos_n9504-7.0"),
    },
    "switch_sensors": {
        *(
            "librenms__arubaos-cx_10.15-transceivers",
            "librenms__drac_c6525",
            "librenms__drac_idrac7",
        ),
        *(
            "librenms__fs-centec_s5850-48s2q4c",
            "librenms__fs-switch-dc_fs-switch-dc",
            "librenms__linux",
        ),
        *("librenms__linux_ucd-diskio", "librenms__nxos_n9504-7.0"),
        # OcNOS keeps its parts in a table of its own (IPI-CMM-CHASSIS-MIB), which is not read.
        "librenms__ocnos_s9510-28dc",
    },
}
# What the whole walks show at first sight. Ports that are down are none: nothing is known of what
# they are for.
FAULTS = {
    ("librenms__edgecos_dcs203", "switch.bgp.down", "172.31.1.17"),
}
MISSES: dict[tuple[str, str], str] = {}


def _rows(shared: Path) -> dict[str, dict[str, str]]:
    with (shared / "outputs" / "index.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return {Path(row["path"]).stem: row for row in rows if row["kind"] == "snmprec"}


def _walks(shared: Path) -> Iterator[tuple[str, dict[str, SnmpValue]]]:
    for path in sorted((shared / "outputs" / "snmprec").glob("*.snmprec")):
        yield path.stem, _values(path)


@functools.cache
def _values(path: Path) -> dict[str, SnmpValue]:
    return captures.parse_snmprec(path.read_bytes())


def _reading(detector: Any, values: dict[str, SnmpValue]) -> Reading:
    return Reading(
        detector.name, Target("leaf-01", "127.0.0.1", kind=TargetKind.SWITCH), NOW, values=values
    )


def _facts(row: dict[str, str]) -> dict[str, int]:
    pairs = (fact.partition("=") for fact in row["facts"].split(";"))
    return {name: int(value) for name, _, value in pairs if value.isdigit()}


def test_every_walk_is_read_and_only_what_holds_no_switch_is_silent(shared: Path) -> None:
    for detector in DETECTORS:
        silent = set()
        for name, values in _walks(shared):
            answers = [
                seen.value
                for seen in detector.parse(_reading(detector, values))
                if _is_answer(seen)
            ]
            assert len(answers) == 1, name
            if answers == [False]:
                silent.add(name)
        assert silent == NO_SWITCH[detector.name]


def _is_answer(seen: Any) -> bool:
    return bool(seen.metric == "detector.answered")


def test_faults_at_first_sight_are_those_that_the_walks_hold(shared: Path) -> None:
    rows = catalog.load()
    found = set()
    for name, values in _walks(shared):
        for detector in DETECTORS:
            for event in captures.classify_all(
                list(detector.parse(_reading(detector, values))), rows
            ):
                if event.fault_type != "detector.silent":
                    found.add((name, event.fault_type, event.qualifier))
    assert found == FAULTS


def test_facts_of_the_index_are_reproduced(shared: Path) -> None:
    misses = set()
    for name, values in _walks(shared):
        tables, facts = Tables(values), _facts(_rows(shared)[name])
        oper = tables.get_column(oids.IF_OPER)
        ours = {
            "ports": len(oper),
            "oper_up": sum(value == 1 for value in oper.values()),
            "oper_notpresent": sum(value == 6 for value in oper.values()),
            "admin_up_oper_down": sum(
                value == 2 and tables.get_number(oids.IF_ADMIN, row) == 1
                for row, value in oper.items()
            ),
            "entity_sensor_values": len(tables.get_column(oids.SENSOR_VALUE)),
            "entity_sensor_status_not_ok": sum(
                value != 1 for value in tables.get_column(oids.SENSOR_STATUS).values()
            ),
        }
        misses |= {(name, fact) for fact, value in ours.items() if facts.get(fact) != value}
    assert misses == set(MISSES)


def _others(shared: Path) -> Iterator[tuple[str, dict[str, SnmpValue], dict[str, Any]]]:
    walks = dict(_walks(shared))
    for path in sorted((shared / "outputs" / "snmprec_expected").glob("*.json")):
        if path.stem in walks:
            yield path.stem, walks[path.stem], json.loads(path.read_text())


def test_ports_are_called_and_stand_as_another_poller_has_them(shared: Path) -> None:
    compared = 0
    for name, values, other in _others(shared):
        tables = Tables(values)
        named = list_port_names(tables, Expected())
        for port in _table(other, "ports", "ports"):
            row = str(port["ifIndex"])
            if row not in tables.get_column(oids.IF_OPER) or port.get("ifOperStatus") is None:
                continue
            is_up = tables.get_number(oids.IF_OPER, row) == 1
            assert is_up == (port["ifOperStatus"] == "up"), (name, row)
            offered = {str(port.get(key) or "").replace(" ", "") for key in ("ifName", "ifDescr")}
            assert named[row].partition(":" + row)[0] in offered or named[row] in offered, (
                name,
                row,
                named[row],
            )
            compared += 1
    assert compared > 700


def test_sensors_read_as_another_poller_reads_them(shared: Path) -> None:
    compared = limits = 0
    for name, values, other in _others(shared):
        ours = {sensor.row: sensor for sensor in sensors.list_sensors(Tables(values))}
        for sensor in _table(other, "sensors", "sensors"):
            column, _, row = str(sensor["sensor_oid"]).strip(".").rpartition(".")
            known = (oids.SENSOR_VALUE, oids.CISCO_SENSORS[3])
            if column not in known or row not in ours or sensor["sensor_class"] == "dbm":
                continue
            theirs = sensor["sensor_current"]
            assert ours[row].value == pytest.approx(theirs, rel=0.02, abs=0.02), (name, row)
            limit = ours[row].limits.get("raise_at")
            if (
                sensor["sensor_class"] == "temperature"
                and limit is not None
                and sensor["sensor_limit"] is not None
            ):
                limits += float(limit) == pytest.approx(sensor["sensor_limit"], abs=1)
            compared += 1
    assert compared > 100
    assert limits > 40


def test_processors_are_as_busy_as_another_poller_sees_them(shared: Path) -> None:
    compared = 0
    for name, values, other in _others(shared):
        theirs = [
            row["processor_usage"]
            for row in _table(other, "processors", "processors")
            if _is_host(row)
        ]
        seen = list(SwitchSnmpDetector().parse(_reading(SwitchSnmpDetector(), values)))
        ours = [each.value for each in seen if each.metric == "switch.cpu_percent"]
        if theirs and ours:
            assert ours[0] == pytest.approx(sum(theirs) / len(theirs), abs=1), name
            compared += 1
    assert compared > 4


def _is_host(row: dict[str, Any]) -> bool:
    return row["processor_type"] in ("hr", "hr-average") and row["processor_usage"] is not None


def _table(other: dict[str, Any], module: str, table: str) -> list[dict[str, Any]]:
    """What the other poller has after its poll, or at its discovery where its poll has no such
    table."""
    runs = other.get(module, {})
    for run in ("poller", "discovery"):
        held = runs.get(run)
        rows = (
            held.get(table) if isinstance(held, dict) else None
        )  # "matches discovery" where both are the same
        if rows:
            return list(rows)
    return []


MOST_ROWS = 6


def _cut(shared: Path, folder: Path) -> list[Path]:
    """24 walks with what `switch_snmp` asks for, at most so many rows of each column: snmpsim is no
    fast agent."""
    files = []
    for path in sorted((shared / "outputs" / "snmprec").glob("*.snmprec")):
        counted: dict[bytes, int] = {}
        lines = []
        for line in path.read_bytes().splitlines():
            oid = line.partition(b"|")[0]
            column = next(
                (each for each in WANTED if oid == each or oid.startswith(each + b".")), None
            )
            if column is not None and counted.get(column, 0) < MOST_ROWS:
                counted[column] = counted.get(column, 0) + 1
                lines.append(line)
        if lines:
            file = folder / path.name
            file.write_bytes(b"\n".join(lines) + b"\n")
            files.append(file)
    return files[:24]


WANTED = tuple(oid.encode() for oid in (*oids.SYSTEM, *oids.PORTS, *oids.CONTROL, *oids.FORWARDING))


def test_24_agents_serve_the_walks_and_are_asked_at_once(shared: Path, tmp_path: Path) -> None:
    files = _cut(shared, tmp_path)
    served = Snmpsim(files)
    transport = SnmpTransport(
        lambda target: SnmpCredentials(community=target.name, port=served.port),
        SnmpLimits(timeout_s=5, retries=3, walk_s=60),
    )
    via = Transports(SimulatedShell(SimulatedWorld([])), snmp=transport)

    def look(file: Path) -> Reading:
        target = Target(file.stem, served.addresses[file.stem], kind=TargetKind.SWITCH)
        return SwitchSnmpDetector().collect(target, via, NOW)

    try:
        served.start()
        with ThreadPoolExecutor(len(files)) as pool:
            readings = list(pool.map(look, files))
    finally:
        transport.close()
        served.stop()
    assert len(readings) == 24
    for file, reading in zip(files, readings, strict=True):
        written = {
            o: value
            for o, value in captures.parse_snmprec(file.read_bytes()).items()
            if value is not None
        }
        assert {oid: reading.values.get(oid) for oid in written} == written, file.stem
