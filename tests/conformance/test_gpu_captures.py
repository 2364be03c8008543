"""What real GPUs printed, read by our detectors: no exception, the facts of the index, a fault
where there is one.

The captures lie outside the repository; CI has them. What our reading of a file is not is listed
with its reason.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from detectors import registry
from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import Target

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
DETECTOR_OF = {
    **{
        f"nvidia_smi_{form}": "gpu" for form in ("xml", "q_text", "table", "csv", "lost", "capture")
    },
    "nvidia_smi_nvlink": "nvlink",
    "nvidia_smi_topo": "nvlink",
    "lspci": "pcie",
}
# Files that tell another health here than in the index, and why.
MISSES = {
    "nvidia_smi_nvlink/v100sxm2__e_summarised.txt": "lifetime counters: first sight is a baseline",
    "nvidia_smi_topo/nvsentinel__L251.txt": "source code around the matrix, without one: no GPU is named, not healthy",
    "nvidia_smi_topo/nvsentinel__L270.txt": "source code around the matrix, without one: no GPU is named, not healthy",
}


@dataclass(frozen=True)
class Row:
    path: str
    kind: str
    health: str
    facts: Mapping[str, str]


@pytest.fixture(scope="module")
def rows(shared: Path) -> list[Row]:
    with (shared / "outputs" / "index.tsv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        Row(each["path"], each["kind"], each["health"], _facts(each["facts"])) for each in table
    ]


def _facts(text: str) -> dict[str, str]:
    return {
        name: value for name, _, value in (fact.partition("=") for fact in text.split(";") if fact)
    }


def seen(shared: Path, row: Row) -> captures.CaptureReading:
    detector = registry.get_by_name(DETECTOR_OF[row.kind])
    reading = captures.read_file(
        shared / "outputs" / row.path, detector, Target("gn001", "127.0.0.1"), NOW
    )
    observations = list(detector.parse(reading))
    return captures.CaptureReading(
        observations, captures.classify_all(observations, catalog.load())
    )


def test_faulty_captures_show_a_fault_and_healthy_ones_none(shared: Path, rows: list[Row]) -> None:
    wrong = {}
    for row in (row for row in rows if row.kind in DETECTOR_OF):
        found = sorted({event.fault_type for event in seen(shared, row).events})
        if row.health in ("healthy", "faulty") and bool(found) != (row.health == "faulty"):
            wrong[row.path] = found
    assert set(wrong) == set(MISSES), {
        path: found for path, found in wrong.items() if path not in MISSES
    }


def test_facts_of_the_index_are_reproduced(shared: Path, rows: list[Row]) -> None:
    differing, compared = [], 0
    for row in (row for row in rows if row.kind in DETECTOR_OF and row.path not in MISSES):
        observations = seen(shared, row).observations
        for name, wanted in row.facts.items():
            if name in FACTS and name not in NOT_SAID.get(row.kind, ()):
                compared += 1
                found = FACTS[name](observations)
                if found != wanted:
                    differing.append(f"{row.path}: {name} is {found}, the index says {wanted}")
    assert compared > 100
    assert sorted(differing) == []


def test_what_the_words_of_a_lost_gpu_name_is_lost(shared: Path, rows: list[Row]) -> None:
    for row in (row for row in rows if row.kind == "nvidia_smi_lost"):
        lost = [event for event in seen(shared, row).events if event.fault_type == "gpu.lost"]
        assert [event.resource.rpartition("/")[2].lstrip("0") for event in lost] == [
            row.facts["bus_id"].lower().lstrip("0")
        ]
        assert lost[0].attributes["text"] == row.facts["text"]


def _values(observations: Sequence[Any], metric: str) -> list[Any]:
    return [each.value for each in observations if each.metric == metric]


def _count(metric: str, value: Any) -> Callable[[Sequence[Any]], str]:
    return lambda observations: str(_values(observations, metric).count(value))


def _only(metric: str) -> Callable[[Sequence[Any]], str]:
    return lambda observations: ",".join(
        sorted({str(value) for value in _values(observations, metric)})
    )


def _flag(metric: str, yes: str, no: str) -> Callable[[Sequence[Any]], str]:
    return lambda observations: yes if any(_values(observations, metric)) else no


def _uncorrected(suffix: str) -> Callable[[Sequence[Any]], str]:
    def total(observations: Sequence[Any]) -> str:
        counts = [
            n
            for part in ("dram", "sram")
            for n in _values(observations, f"gpu.ecc.{part}_{suffix}")
        ]
        return str(sum(counts)) if counts else "N/A"

    return total


def _links_up(observations: Sequence[Any]) -> str:
    return str(
        sum(_values(observations, "nvlink.links_active") + _values(observations, "nvlink.links_up"))
    )


def _bonds(observations: Sequence[Any]) -> str:
    found = _values(observations, "nvlink.links_active") + _values(observations, "nvlink.links_up")
    return f"NV{max(found)}"


FACTS: Mapping[str, Callable[[Sequence[Any]], str]] = {
    "gpus": _count("gpu.present", True),
    "gpu_rows": _count("gpu.present", True),
    "nvidia_gpus": _only("pcie.gpus_on_bus"),
    "product": _only("gpu.product"),
    "err": _count("gpu.readable", False),
    "ecc_uncorr_volatile": _uncorrected("uncorrected"),
    "ecc_uncorr_aggregate": _uncorrected("uncorrected_ever"),
    "remapped_row_corr": _only("gpu.ecc.remapped_correctable"),
    "remapped_row_unc": _only("gpu.ecc.remapped_uncorrectable"),
    "remapped_uncorr": _only("gpu.ecc.remapped_uncorrectable"),
    "remapped_row_pending": _flag("gpu.ecc.remap_pending", "Yes", "No"),
    "pending_remap": _flag("gpu.ecc.remap_pending", "yes", "no"),
    "remapped_row_failure": _flag("gpu.ecc.remap_failure", "Yes", "No"),
    "hw_slowdown_gpus": lambda seen: str(
        sum(
            _values(seen, f"gpu.slowdown.{cause}").count(True)
            for cause in ("thermal", "power_brake", "unexplained")
        )
    ),
    "hw_power_brake_slowdown_gpus": _count("gpu.slowdown.power_brake", True),
    "links_active": _links_up,
    "nv": _bonds,
    "lnksta_downgraded": _count("pcie.full_link", False),
    "gpu_downgraded": _count("pcie.full_link", False),
}
# Rows of a matrix are NICs too in the index.
NOT_SAID = {"nvidia_smi_topo": ("gpu_rows",)}
