"""What real Slurms printed, read by our parsers: nodes of several versions, and text that is no
node at all."""

from __future__ import annotations

import csv
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import Target, TargetKind
from detectors.evaluation.classify import classify
from detectors.slurm import output, output_formats, slurm_jobs
from detectors.slurm.job_stalled import JobStalledDetector
from detectors.slurm.slurm_jobs import SlurmJobsDetector
from detectors.slurm.slurm_nodes import SlurmNodesDetector

FOLDER = "outputs/slurm"
NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
SITE = Target("slurm", "", kind=TargetKind.SITE)
NODES = SlurmNodesDetector()

# The index counts words; these are not the nodes' states.
STATES_SHOWN_WRONG = {
    "gcm__sample-scontrol-output-large.txt": "states of partitions",
    "gcm__sample-scontrol-output.txt": "states of partitions",
    "gcm__sample-scontrol-show-config-output.txt": "a word of the configuration, not a node's state",
    "gcm__sample-sinfo-output.txt": "each row holds the state twice, and the node is listed in two partitions",
    "gcm__sinfo-output-for-structured.txt": "only what is out of service is counted",
}
# Called faulty, and no fault to us.
FACTS_AND_NO_FAULTS = {
    "gcm__sample-scontrol-show-config-output.txt": "the configuration: no node is in it",
    "gcm__sinfo-output-for-structured.txt": "drained inside a maintenance reservation: planned work",
    "slurmweb__24.05_0.0.41_slurm-node-down.json": "a person set the node down: `CPU dead`",
    "slurmweb__24.05_0.0.41_slurm-node-drain.json": "a person's drain: `ECC memory error`",
    "slurmweb__24.05_0.0.41_slurm-node-draining.json": "a person's drain: `ECC memory error`",
    "slurmweb__24.11_0.0.41_slurm-node-down.json": "a person set the node down: `CPU dead`",
    "slurmweb__24.11_0.0.41_slurm-node-drain.json": "a person's drain: `ECC memory error`",
    "slurmweb__24.11_0.0.41_slurm-nodes.json": "a person's drain and a person's down",
}


def index(shared: Path) -> list[dict[str, str]]:
    with (shared / "outputs" / "index.tsv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        row | {"name": row["path"].rpartition("/")[2]} for row in rows if row["kind"] == "slurm"
    ]


def text_of(shared: Path, row: dict[str, str]) -> str:
    return (shared / "outputs" / row["path"]).read_bytes().decode("utf-8", "replace")


def faults(shared: Path, row: dict[str, str]) -> set[str]:
    reading = captures.read_file(shared / "outputs" / row["path"], NODES, SITE, NOW)
    rows = catalog.load()
    return {event.fault_type for o in NODES.parse(reading) for event in classify(o, (), rows)}


@pytest.mark.parametrize(
    ("capture", "name", "base", "flags", "reason"),
    [
        (
            "hyperpod__scontrol_node_fail_notresp_2302.txt",
            "ip-10-1-232-95",
            "DOWN",
            {"CLOUD", "FAIL", "NOT_RESPONDING"},
            "Action:Replace : Not responding",
        ),
        ("openhpcdoc__scontrol_node_mixed_2311.txt", "cn-1001", "MIXED", set(), ""),
        ("sirepo2136__scontrol_node_down_1905.txt", "localhost", "DOWN", set(), None),
        ("telegraf__slurmrestd_nodes.json", "naboo145", "IDLE", {"DRAIN"}, "Kill task failed"),
        ("slurmweb__24.11_0.0.41_slurm-node-planned.json", "cn4", "IDLE", {"PLANNED"}, ""),
        (
            "elasticluster272__sinfo_lNe_down.txt",
            "compute001",
            "DOWN",
            {"NOT_RESPONDING"},
            "Not responding",
        ),
    ],
)
def test_node_of_a_real_slurm_is_read(
    shared: Path, capture: str, name: str, base: str, flags: set[str], reason: str | None
) -> None:
    nodes = output_formats.parse_nodes((shared / FOLDER / capture).read_text()).nodes
    node = nodes[name]
    assert node.base == base
    assert node.flags == flags
    assert reason is None or node.reason == reason


def test_no_capture_breaks_the_parsers(shared: Path) -> None:
    captured = sorted((shared / FOLDER).iterdir())
    assert len(captured) > 50
    for path in captured:
        text = path.read_bytes().decode(errors="replace")
        output.parse_nodes(text)
        output.parse_jobs(text)
        output.parse_config(text)
        list(output.iterate_hosts(text[:2000]))
        slurm_jobs.parse_jobs(path.read_bytes())
        for detector in (NODES, SlurmJobsDetector(), JobStalledDetector()):
            list(detector.parse(captures.read_file(path, detector, SITE, NOW)))


def test_configuration_of_a_real_slurm_is_read(shared: Path) -> None:
    texts = [
        path.read_text(errors="replace") for path in (shared / FOLDER).glob("*config-output.txt")
    ]
    for text in texts:
        values = output.parse_config(text)
        assert {"ClusterName", "RebootProgram", "ResumeTimeout"} & set(
            values
        ) or "PartitionName" in text


def test_the_states_of_the_index_are_found_or_shown_wrong(shared: Path) -> None:
    misses = {}
    for row in index(shared):
        facts = dict(fact.partition("=")[::2] for fact in row["facts"].split(";") if fact)
        if "states" in facts:
            pairs = (item.rpartition("=") for item in facts["states"].split(","))
            wanted = Counter({output.parse_state(state): int(count) for state, _, count in pairs})
            nodes = output_formats.parse_nodes(text_of(shared, row)).nodes.values()
            if Counter((node.base, node.flags) for node in nodes) != wanted:
                misses[row["name"]] = str(wanted)
    assert set(misses) == set(STATES_SHOWN_WRONG)


def test_the_reasons_of_the_index_are_found(shared: Path) -> None:
    seen = 0
    for row in index(shared):
        facts = dict(fact.partition("=")[::2] for fact in row["facts"].split(";") if fact)
        if "states" in facts and "reasons" in facts:
            nodes = output_formats.parse_nodes(text_of(shared, row)).nodes.values()
            found = {node.reason for node in nodes if node.reason}
            assert found == {reason.partition(" [")[0] for reason in facts["reasons"].split(" / ")}
            seen += 1
    assert seen > 5


def test_faulty_nodes_give_a_fault_and_healthy_ones_none(shared: Path) -> None:
    misses = set()
    for row in index(shared):
        holds_nodes = "states=" in row["facts"] or "node" in row["name"]
        found = faults(shared, row) if holds_nodes else set()
        if row["health"] == "faulty" and not {name for name in found if name.startswith("slurm.")}:
            is_error = row["wrong"].startswith("API error")
            if not (is_error and (not holds_nodes or found == {"detector.silent"})):
                misses.add(row["name"])
        if row["health"] == "healthy" and output_formats.parse_nodes(text_of(shared, row)).nodes:
            assert found == set(), row["name"]
    assert misses == set(FACTS_AND_NO_FAULTS)


def test_an_error_of_the_api_is_never_healthy(shared: Path) -> None:
    rows = [row for row in index(shared) if row["wrong"].startswith("API error")]
    assert len(rows) >= 6
    for row in rows:
        reading = captures.read_file(shared / "outputs" / row["path"], NODES, SITE, NOW)
        answered = [o for o in NODES.parse(reading) if o.metric == "detector.answered"]
        assert [o.value for o in answered] == [False], row["name"]


def test_a_hundred_nodes_are_read_quickly(shared: Path) -> None:
    text = (shared / FOLDER / "slurmweb__24.05_0.0.41_slurm-nodes.json").read_text()
    begun = datetime.now(UTC)
    assert len(output_formats.parse_nodes(text).nodes) == 100
    assert datetime.now(UTC) - begun < timedelta(seconds=2)
