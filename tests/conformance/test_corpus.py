"""Every line of the real corpus through `explain`: no exception, the right component, no benign
line raised.

The labels' words and ours: docs/reference/catalogue.md. The corpus lies outside the repository; CI has it.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from detectors.catalog.catalog import load
from detectors.cli.explain import ExplainedLine, explain
from detectors.faults import Action, Component, EventKind
from detectors.logs.signatures import Fact, Matcher
from tests.conformance.score import COMPONENTS
from tests.matching import get_shipped_matcher

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
RIGHT_SHARE = 0.99
HARMLESS = (Action.NONE, Action.RESTART_APP)


@dataclass(frozen=True)
class Labelled:
    """One line of the corpus with what a person made of it, and what `explain` does."""

    id: str
    text: str
    component: str
    severity: str
    facts: tuple[Fact, ...]

    def __str__(self) -> str:
        found = ", ".join(
            f"{fact.fault_type} ({fact.component} {fact.event} {fact.action})"
            for fact in self.facts
        )
        return f"{self.id} is {self.component} {self.severity}, found {found or 'nothing'}: {self.text[:160]}"


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return get_shipped_matcher()


@pytest.fixture(scope="module")
def corpus(shared: Path, matcher: Matcher) -> list[Labelled]:
    table = (shared / "corpus" / "lines.tsv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(table), delimiter="\t", quoting=csv.QUOTE_NONE))
    results = explain((row["line"].encode() for row in rows), matcher, host="-", observed_at=NOW)
    facts = _by_line(results)
    return [
        Labelled(
            row["id"],
            row["line"],
            COMPONENTS.get(row["component"], row["component"]),
            row["severity"],
            tuple(facts.get(number, ())),
        )
        for number, row in enumerate(rows, 1)
    ]


def _by_line(results: Iterator[ExplainedLine]) -> dict[int, list[Fact]]:
    facts: dict[int, list[Fact]] = {}
    for result in results:
        if result.fact is not None:
            facts.setdefault(result.line, []).append(result.fact)
    return facts


def _report(wrong: list[Labelled], of: int) -> str:
    return f"{len(wrong)} of {of} lines:\n" + "\n".join(str(line) for line in wrong)


def test_the_component_is_right_on_nearly_every_faulty_line(corpus):
    faulty = [line for line in corpus if line.component != "none"]
    wrong = [
        line for line in faulty if {str(fact.component) for fact in line.facts} != {line.component}
    ]
    assert len(faulty) > 300
    assert len(wrong) <= (1 - RIGHT_SHARE) * len(faulty), _report(wrong, len(faulty))


def test_no_benign_line_is_raised(corpus):
    benign = [line for line in corpus if line.component == "none"]
    wrong = [
        line for line in benign if any(fact.component is not Component.NODE for fact in line.facts)
    ]
    assert len(benign) > 300
    assert not wrong, _report(wrong, len(benign))


def test_what_is_only_informative_is_a_clear_or_asks_for_nothing(corpus):
    informative = [line for line in corpus if line.component != "none" and line.severity == "info"]
    wrong = [
        line
        for line in informative
        if any(
            fact.event is EventKind.RAISED and fact.action not in HARMLESS for fact in line.facts
        )
    ]
    assert not wrong, _report(wrong, len(informative))


def test_what_is_critical_is_never_taken_for_harmless(corpus):
    critical = [line for line in corpus if line.component != "none" and line.severity == "critical"]
    wrong = [line for line in critical if all(fact.action in HARMLESS for fact in line.facts)]
    assert not wrong, _report(wrong, len(critical))


@pytest.mark.parametrize(
    ("episode", "component"),
    [
        ("01_gpu_lost_then_nvswitch_sxid20034", Component.GPU),
        ("03_nvlink5_xid149_154_gb200", Component.NVLINK),
        ("05_gpu_pmu_halt_xid62_cascade", Component.GPU),
        ("07_mlx5_health_fatal_cascade", Component.NIC),
        ("09_ib_port_down_lustre_failover", Component.NIC),
        ("11_sonic_bcm_threads_exit", Component.INTERCONNECT_SWITCH),
    ],
)
def test_an_episodes_root_is_among_the_first_faults_that_open_an_incident(
    shared, matcher, episode, component
):
    log = (shared / "corpus" / "episodes" / f"{episode}.log").read_bytes().splitlines()
    results = explain(log, matcher, host="-", observed_at=NOW)
    opening = [
        result.fact
        for result in results
        if result.fact and load()[result.fact.fault_type].opens_incident
    ]
    assert component in {fact.component for fact in opening[:3]}
