"""What real controllers of boards printed, read by our parsers: every file of its kind, against the
index beside it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

import pytest

from detectors import registry
from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import Detector, Output, Reading, Sample, Target
from detectors.faults import FaultEvent, Observation

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
TARGET = Target("gn001", "127.0.0.1")
KINDS = ("ipmi", "redfish")
SNAPSHOTS = "host_inventory_json"
# Where we say other than the index, and why.
WHY_NOT = {
    "ipmitool176__sdr_ok_but_redundancy_lost.txt": "nothing in the file says so: we say that nothing is known",
}
NEEDS_INVENTORY = "alike on all ports, or plausible by itself: only the inventory can tell"
SNAPSHOTS_WHY_NOT = {
    "gcm__learn_ib_intf_bad_rate.json": NEEDS_INVENTORY,
    "gcm__learn_ib_intf_bad_version.json": NEEDS_INVENTORY,
    "gcm__eth_learn_degraded_intf.json": NEEDS_INVENTORY,
    "gcm__learn_ib_misbound_if.json": NEEDS_INVENTORY,
    "gcm__cache_downlink.json": "speeds of links alone, without what any of them could do",
}
# What people did, and how safe settings are: `faulty` in the index by the word Warning alone.
# Recorded, no incident.
NOTICES = (
    "LogServices_IEL_Entries.json",
    "LogServices_SL_Entries",
    "LogServices_Event_Entries.json",
)


@lru_cache(maxsize=1)
def index(shared: Path) -> tuple[dict[str, str], ...]:
    return tuple(row for row in rows(shared) if row["kind"] in KINDS)


def rows(shared: Path) -> list[dict[str, str]]:
    with (shared / "outputs" / "index.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def told(detector: Detector, text: bytes) -> tuple[list[Observation], list[FaultEvent]]:
    """As `python -m detectors parse`: a log that comes alone is new."""
    name = detector.sniff(text)
    reading = Reading(detector.name, TARGET, NOW, {name: Output(0, text, b"", timedelta(0))})
    observations = list(detector.parse(reading))
    unread = {
        (o.resource, o.metric): Sample("", NOW)
        for o in observations
        if o.metric == "bmc.log_cursor"
    }
    observations += detector.compare(observations, unread)
    return observations, captures.classify_all(observations, catalog.load())


def each(shared: Path) -> Iterator[tuple[dict[str, str], list[Observation], list[FaultEvent]]]:
    for row in index(shared):
        text = (shared / "outputs" / row["path"]).read_bytes()
        yield row, *told(registry.get_by_name("bmc"), text)


def test_faulty_captures_give_a_fault_and_healthy_ones_none(shared: Path) -> None:
    wrong = []
    for row, _, events in each(shared):
        name = row["path"].rpartition("/")[2]
        found = [event.fault_type for event in events if event.fault_type != "detector.silent"]
        if bool(found) is not (row["health"] == "faulty") and name not in WHY_NOT:
            wrong.append(f"{name}: {row['health']} ({row['wrong']}), found {found}")
    assert wrong == []
    assert len(index(shared)) > 200


def test_what_is_only_noteworthy_asks_for_nothing(shared: Path) -> None:
    loud = [
        (row["path"], event.fault_type)
        for row, _, events in each(shared)
        for event in events
        if any(part in row["path"] for part in NOTICES) and str(event.action) != "none"
    ]
    assert loud == []


def test_where_the_text_does_not_say_how_the_part_is_nothing_is_said_to_be_well(
    shared: Path,
) -> None:
    _, events = told(
        registry.get_by_name("bmc"),
        (shared / "outputs" / "ipmi" / next(iter(WHY_NOT))).read_bytes(),
    )
    assert [event.fault_type for event in events] == ["detector.silent"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gcm__fail_sel.txt", {"node.voltage", "node.hardware_event"}),
        ("gcm__pass_sel.txt", {"node.voltage"}),
        (
            "gcm_check_sensors__fail_psr_and_psu.txt",
            {"node.power_supply.failed", "node.redundancy_lost"},
        ),
        ("ipmitool176__sdr_v_redundancy_lost.txt", {"node.redundancy_lost"}),
        (
            "luanote__sel_pull_power_cable.txt",
            {"node.power_supply.failed", "facility.power.input_lost", "node.redundancy_lost"},
        ),
    ],
)
def test_words_of_ipmitool_are_the_faults_that_they_name(
    shared: Path, name: str, expected: set[str]
) -> None:
    _, events = told(registry.get_by_name("bmc"), (shared / "outputs" / "ipmi" / name).read_bytes())
    assert {event.fault_type for event in events} == expected


def test_counts_of_the_index_are_reproduced(shared: Path) -> None:
    """`asserted=2;deasserted=0`: entries whose last word is that; `severity=...`: entries of a log
    that warn."""
    for row, observations, _ in each(shared):
        facts = dict(part.partition("=")[::2] for part in row["facts"].split(";") if "=" in part)
        entries = [o for o in observations if o.metric == "bmc.log_entry"]
        if "asserted" in facts:
            raised = sum(int(entry.attributes["level"]) > 0 for entry in entries)
            assert raised == int(facts["asserted"]), row["path"]
            assert len(entries) - raised == int(facts["deasserted"]), row["path"]


def test_facts_of_the_index_are_reproduced(shared: Path) -> None:
    names = {
        "model": "bmc.model",
        "firmwareversion": "bmc.firmware",
        "power_state": "bmc.power_state",
    }
    compared = 0
    for row, observations, _ in each(shared):
        facts = dict(part.partition("=")[::2] for part in row["facts"].split(";") if "=" in part)
        for fact, metric in names.items():
            if fact in facts:
                compared += 1
                assert facts[fact] in {o.value for o in observations if o.metric == metric}, (
                    row["path"],
                    fact,
                )
    assert compared > 20


def test_the_host_detector_reads_the_same_files_as_the_board_detector(shared: Path) -> None:
    for row in index(shared):
        text = (shared / "outputs" / row["path"]).read_bytes()
        by_board, by_host = (
            {(e.fault_type, e.qualifier) for e in told(registry.get_by_name(name), text)[1]}
            - {("detector.silent", name)}
            for name in ("bmc", "host")
        )
        assert by_host == by_board, row["path"]


def test_snapshots_of_other_tools_show_what_they_can_show_alone(shared: Path) -> None:
    wrong, read = [], [row for row in rows(shared) if row["kind"] == SNAPSHOTS]
    for row in read:
        name = row["path"].rpartition("/")[2]
        _, events = told(
            registry.get_by_name("host"), (shared / "outputs" / row["path"]).read_bytes()
        )
        found = {event.fault_type for event in events} - {"detector.silent"}
        if bool(found) is not (row["health"] == "faulty" and name not in SNAPSHOTS_WHY_NOT):
            wrong.append(f"{name}: {row['health']} ({row['wrong']}), found {sorted(found)}")
    assert wrong == []
    assert len(read) > 20


@pytest.mark.parametrize("name", ["host", "bmc", "disks", "node_log"])
def test_no_capture_of_any_kind_breaks_a_parser(shared: Path, name: str) -> None:
    """Also of kinds that are not its own: a file is handed in under the wrong name."""
    detector = registry.get_by_name(name)
    files = sorted(path for path in (shared / "outputs").rglob("*") if path.is_file())
    assert len(files) > 700
    for path in files:
        seen, _ = told(detector, path.read_bytes()[:60_000])
        assert sum(o.metric == "detector.answered" for o in seen) == 1, path.name
