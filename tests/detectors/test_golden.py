"""Every capture under fixtures/signals/<detector>/<case>/ tells the observations and faults beside
it.

`pytest tests/detectors/test_golden.py --update-golden` writes expected.json anew; read the
difference.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from detectors import contract, registry
from detectors.catalog import catalog
from detectors.cli import captures

SIGNALS = Path(__file__).resolve().parents[2] / "fixtures" / "signals"
CASES = sorted(path for path in SIGNALS.glob("*/*") if path.is_dir())
TAKEN_AT = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)


def told(case: Path) -> dict[str, Any]:
    detector = registry.get_by_name(case.parent.name)
    return captures.to_json(captures.read_capture(detector, case, catalog.load(), TAKEN_AT))


def metrics_of(folder: Path) -> set[str]:
    """What the captures of one detector observe."""
    expected = [json.loads(path.read_text()) for path in folder.glob("*/expected.json")]
    return {found["metric"] for case in expected for found in case["observations"]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_a_capture_tells_its_expected_observations_and_faults(
    case: Path, request: pytest.FixtureRequest
) -> None:
    found = told(case)
    if request.config.getoption("--update-golden"):
        (case / "expected.json").write_text(json.dumps(found, indent=2) + "\n")
    assert found == json.loads((case / "expected.json").read_text())


@pytest.mark.parametrize("detector", registry.DETECTORS, ids=lambda detector: detector.name)
def test_every_detector_has_a_healthy_a_faulty_and_a_garbage_capture(detector: Any) -> None:
    cases = {case.name: case for case in CASES if case.parent.name == detector.name}
    assert {"healthy", "truncated"} <= set(cases)
    assert told(cases["healthy"])["faults"] == []
    assert any(
        told(case)["faults"] for name, case in cases.items() if name not in ("healthy", "truncated")
    )


@pytest.mark.parametrize(
    "detector", [*registry.DETECTORS, *registry.HANDED_IN], ids=lambda detector: detector.name
)
def test_every_metric_is_for_a_rule_or_for_the_record(detector: Any) -> None:
    """A detector that no rule mentions would look and never speak."""
    metrics = metrics_of(SIGNALS / detector.name)
    assert contract.list_unused_metrics(detector, metrics, catalog.load()) == []


@pytest.mark.parametrize(
    "detector", [*registry.DETECTORS, *registry.HANDED_IN], ids=lambda detector: detector.name
)
def test_nothing_is_kept_for_the_record_that_is_not_seen_or_has_its_rule(detector: Any) -> None:
    known = catalog.load().rules
    seen = metrics_of(SIGNALS / detector.name)
    assert sorted(detector.for_the_record & set(known)) == []
    assert sorted(detector.for_the_record - seen) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_every_capture_says_where_it_comes_from(case: Path) -> None:
    assert len((case / "origin.md").read_text().split()) > 5
