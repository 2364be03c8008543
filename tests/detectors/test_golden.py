"""Every capture under fixtures/signals/<detector>/<case>/ parses to the observations beside it.

`pytest tests/detectors/test_golden.py --update-golden` writes expected.json anew; read the difference.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from detectors import registry
from detectors.detector import Output, Reading, Target

SIGNALS = Path(__file__).resolve().parents[2] / "fixtures" / "signals"
CASES = sorted(folder for folder in SIGNALS.glob("*/*") if folder.is_dir())
TAKEN_AT = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)


def reading_of(case: Path) -> Reading:
    setting = json.loads((case / "input.json").read_text())
    expected = {kind: tuple((a, b) for a, b in rows) for kind, rows in setting["expected"].items()}
    outputs = {
        command: Output(status, _bytes(case, command, "stdout"), _bytes(case, command, "stderr"), timedelta(seconds=1))
        for command, status in setting["status"].items()
    }
    return Reading(case.parent.name, Target(setting["target"], "127.0.0.1", expected=expected), TAKEN_AT, outputs)


def _bytes(case: Path, command: str, stream: str) -> bytes:
    path = case / f"input.{command}.{stream}"
    return path.read_bytes() if path.exists() else b""


def observed(case: Path) -> list[dict[str, Any]]:
    detector = registry.by_name(case.parent.name)
    return [
        {"resource": o.resource, "metric": o.metric, "value": o.value, "attributes": o.attributes}
        for o in detector.parse(reading_of(case))
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_a_capture_parses_to_its_expected_observations(case: Path, request: pytest.FixtureRequest) -> None:
    found = observed(case)
    if request.config.getoption("--update-golden"):
        (case / "expected.json").write_text(json.dumps(found, indent=2) + "\n")
    assert found == json.loads((case / "expected.json").read_text())


@pytest.mark.parametrize("detector", registry.DETECTORS, ids=lambda detector: detector.name)
def test_every_detector_has_a_healthy_a_faulty_and_a_garbage_capture(detector: Any) -> None:
    cases = {case.name for case in CASES if case.parent.name == detector.name}
    assert "healthy" in cases
    assert "truncated" in cases
    assert len(cases) >= 3


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_every_capture_says_where_it_comes_from(case: Path) -> None:
    assert len((case / "origin.md").read_text().split()) > 5
