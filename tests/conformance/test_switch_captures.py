"""Real outputs of SONiC, its databases, other switches' commands and snmptrapd, read by our
parsers.

The index's facts are a second opinion; where we differ, the reason stands here.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from detectors import registry
from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import Target
from detectors.faults import Observation

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
KINDS = {
    "sonic_cli": "sonic",
    "sonic_db": "sonic",
    "switch_cli": "config",
    "snmptrap_text": "snmptrap",
}
# Not a fault of what is watched: the file is of a command that the detector does not ask for.
NOT_READ = "detector.silent"
# The indexer calls them faulty; we see none.
LESS_THAN_THE_INDEX = {
    # A port that is down and has received nothing may never have had a cable.
    "sonic_cli/utilities_portstat__intf_counter_after_clear.txt": "all counters were just set to zero",
    "sonic_cli/utilities_portstat__intf_counters_period.txt": "the counters of a short period are zero",
    "sonic_cli/utilities_portstat__intf_fec_counters.txt": "no column tells whether the port ever had a link",
    "sonic_cli/utilities_portstat__intf_fec_counters_nonzero.txt": "no column tells whether the port ever had a link",
    "sonic_cli/utilities_portstat__intf_fec_counters_period.txt": "no column tells whether the port ever had a link",
}


@dataclass(frozen=True)
class Real:
    """One file, what its index says of it, and what we make of it."""

    path: str
    kind: str
    health: str
    facts: dict[str, str]
    seen: list[Observation]
    faults: tuple[str, ...]


@pytest.fixture(scope="module")
def files(shared: Path) -> list[Real]:
    rows = catalog.load()
    found = []
    with (shared / "outputs" / "index.tsv").open(encoding="utf-8", newline="") as index:
        for row in csv.DictReader(index, delimiter="\t", quoting=csv.QUOTE_NONE):
            if row["kind"] not in KINDS:
                continue
            detector = registry.get_by_name(KINDS[row["kind"]])
            path = shared / "outputs" / row["path"]
            reading = captures.read_file(path, detector, Target("-", "", kind=detector.kind), NOW)
            seen = list(detector.parse(reading))
            faults = tuple(event.fault_type for event in captures.classify_all(seen, rows))
            facts = dict(part.split("=", 1) for part in row["facts"].split(";") if "=" in part)
            found.append(Real(row["path"], row["kind"], row["health"], facts, seen, faults))
    return found


def test_every_file_of_these_kinds_is_read_without_harm(files: list[Real]) -> None:
    counts = {kind: sum(file.kind == kind for file in files) for kind in KINDS}
    assert counts == {"sonic_cli": 75, "sonic_db": 52, "switch_cli": 34, "snmptrap_text": 45}
    for file in files:
        assert sum(seen.metric == "detector.answered" for seen in file.seen) == 1, file.path


def test_no_healthy_file_shows_a_fault(files: list[Real]) -> None:
    healthy = [file for file in files if file.health == "healthy"]
    wrong = {file.path: file.faults for file in healthy if set(file.faults) - {NOT_READ}}
    assert wrong == {}


def test_every_faulty_file_shows_one(files: list[Real]) -> None:
    faulty = [file for file in files if file.health == "faulty"]
    missed = {file.path for file in faulty if not set(file.faults) - {NOT_READ}}
    assert len(faulty) > 10
    assert missed == set(LESS_THAN_THE_INDEX)


def test_stopped_queues_are_those_that_the_watchdog_lists(files: list[Real]) -> None:
    for file in files:
        if "storms" in file.facts:
            stormed = {
                part.split(":")[0]
                for part in file.facts["storms"].split(",")
                if ":stormed:" in part
            }
            told = {
                seen.resource.rpartition("/")[2]
                for seen in file.seen
                if seen.metric == "port.pfc_stormed" and seen.value
            }
            assert told == stormed, file.path


def test_received_power_is_read_lane_by_lane(files: list[Real]) -> None:
    compared = 0
    for file in files:
        if file.kind == "sonic_cli" and "rx_power_dbm" in file.facts:
            told = [seen.value for seen in file.seen if seen.metric == "port.rx_power_dbm"]
            assert told == [float(value) for value in file.facts["rx_power_dbm"].split(",")], (
                file.path
            )
            compared += 1
    assert compared >= 4


def test_databases_are_counted_as_the_index_does(files: list[Real]) -> None:
    compared = 0
    for file in files:
        if file.kind == "sonic_db" and "keys" in file.facts:
            told = [seen.value for seen in file.seen if seen.metric == "sonic.database_keys"]
            assert told == [int(file.facts["keys"])], file.path
            compared += 1
    assert compared >= 50


# Of switches and what feeds them; the others are of services that no cluster fabric runs.
KNOWN = {
    "linkDown": None,  # both were shut on purpose: ifAdminStatus is down
    "linkUp": None,
    "bgpBackwardTransition": "switch.bgp.down",
    "jnxBgpM2BackwardTransition": "switch.bgp.down",
    "jnxDomAlarmSet": "switch.transceiver.power",
    "jnxDomLaneAlarmSet": "switch.transceiver.power",
    "jnxPowerSupplyFailure": "switch.power",
    "cErrDisableInterfaceEventRev1": "switch.port.error",
}
# Excerpts that begin in the middle of one notification and end in another.
CUT = {"snmptrap_text/librenms__JnxBgpM2Test_1.txt", "snmptrap_text/librenms__JnxBgpM2Test_2.txt"}


def test_notifications_mean_what_their_names_say(files: list[Real]) -> None:
    compared = 0
    for file in files:
        name = file.facts.get("trap", "").rpartition("::")[2]
        if (
            file.kind == "snmptrap_text"
            and name in KNOWN
            and "::" in file.facts["trap"]
            and file.path not in CUT
        ):
            wanted = [KNOWN[name]] if KNOWN[name] else []
            assert [fault for fault in file.faults if fault != NOT_READ] == wanted, file.path
            compared += 1
    assert compared >= 10


def test_a_notification_that_is_not_known_raises_nothing(files: list[Real]) -> None:
    unknown = [
        file
        for file in files
        if file.kind == "snmptrap_text"
        and file.facts["trap"].rpartition("::")[2] not in KNOWN
        and file.path not in CUT
    ]
    assert {file.path: file.faults for file in unknown if set(file.faults) - {NOT_READ}} == {}
