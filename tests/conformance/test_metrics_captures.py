"""What real dcgm-exporters showed, read by our parser."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path

from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import Target
from detectors.evaluation.classify import classify
from detectors.metrics import exposition
from detectors.node.dcgm import DcgmDetector

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
DETECTOR = DcgmDetector()
NODE = Target("gn001", "")
# Called faulty, and no fault to us.
FACTS_AND_NO_FAULTS = {
    "dcgmexp239__xid_count.txt": "an Xid counted in a window: recorded; the event is its line in the log",
}


def index(shared: Path) -> list[dict[str, str]]:
    with (shared / "outputs" / "index.tsv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        row | {"name": row["path"].rpartition("/")[2]}
        for row in rows
        if row["kind"] == "dcgm_metrics"
    ]


def page(shared: Path, row: dict[str, str]) -> exposition.Page:
    return exposition.read((shared / "outputs" / row["path"]).read_bytes())


def facts(row: dict[str, str]) -> dict[str, str]:
    return dict(fact.partition("=")[::2] for fact in row["facts"].split(";"))


def test_every_series_of_the_index_is_found(shared: Path) -> None:
    rows = index(shared)
    assert len(rows) >= 8
    for row in rows:
        metrics = page(shared, row).metrics
        assert len(metrics) == int(facts(row)["series"]), row["name"]
        assert len({metric.name for metric in metrics}) == int(facts(row)["metrics"]), row["name"]


def test_the_xid_of_a_window_is_found_and_is_no_event(shared: Path) -> None:
    [row] = [row for row in index(shared) if "xid" in facts(row)]
    reading = captures.read_file(shared / "outputs" / row["path"], DETECTOR, NODE, NOW)
    seen = [o for o in DETECTOR.parse(reading) if o.metric == "gpu.xids_in_window"]
    assert [(o.value, o.attributes["xid"]) for o in seen] == [
        (int(facts(row)["xid_errors"]), facts(row)["xid"])
    ]


def test_faulty_pages_give_a_fault_and_healthy_ones_none(shared: Path) -> None:
    rows, misses = catalog.load(), set()
    for row in index(shared):
        reading = captures.read_file(shared / "outputs" / row["path"], DETECTOR, NODE, NOW)
        found = {
            event.fault_type for o in DETECTOR.parse(reading) for event in classify(o, (), rows)
        }
        if row["health"] == "healthy":
            assert found - {"detector.silent"} == set(), row["name"]
        elif not found:
            misses.add(row["name"])
    assert misses == set(FACTS_AND_NO_FAULTS)


def test_a_list_of_counters_or_a_page_without_a_known_value_is_never_healthy(shared: Path) -> None:
    for row in index(shared):
        reading = captures.read_file(shared / "outputs" / row["path"], DETECTOR, NODE, NOW)
        seen = list(DETECTOR.parse(reading))
        [answered] = [o for o in seen if o.metric == "detector.answered"]
        assert answered.value is any("/gpu/" in o.resource for o in seen), row["name"]
