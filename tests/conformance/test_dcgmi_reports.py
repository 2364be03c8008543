"""Real reports of `dcgmi diag -j`: what failed is found, what passed passes."""

from pathlib import Path

import pytest

from runbooks.node import diagnostics
from runbooks.node.detached_command import Ended
from runbooks.node.diagnostics import Diagnosis, DiagnosticOutcome, Wanted


@pytest.mark.parametrize(
    ("name", "status", "outcome"),
    [
        ("gcm__diag_pass_output.txt", 0, DiagnosticOutcome.PASSED),
        ("gcm__diag_warn_output.txt", 0, DiagnosticOutcome.PASSED),
        # Its only failing test is a setting (persistence mode).
        ("gcm__diag_fail_output.txt", 226, DiagnosticOutcome.UNKNOWN),
    ],
)
def test_real_report_is_judged(
    shared: Path, name: str, status: int, outcome: DiagnosticOutcome
) -> None:
    text = (shared / "outputs" / "dcgmi" / name).read_text()
    verdict = diagnostics.evaluate(Wanted(Diagnosis.DCGM), Ended(status, text))
    assert verdict.outcome is outcome
    assert ("Persistence Mode" in verdict.text) == (
        outcome is DiagnosticOutcome.UNKNOWN or "warn" in name
    )
