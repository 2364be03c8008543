"""Real reports of `dcgmi diag -j`: what failed is found, what passed passes."""

from pathlib import Path

import pytest

from runbooks import diagnostics
from runbooks.apart import Ended
from runbooks.diagnostics import Diagnosis, Outcome, Wanted


@pytest.mark.parametrize(
    ("name", "status", "outcome"),
    [
        ("gcm__diag_pass_output.txt", 0, Outcome.PASSED),
        ("gcm__diag_warn_output.txt", 0, Outcome.PASSED),
        # Its only failing test is a setting (persistence mode).
        ("gcm__diag_fail_output.txt", 226, Outcome.UNKNOWN),
    ],
)
def test_real_report_is_judged(shared: Path, name: str, status: int, outcome: Outcome) -> None:
    text = (shared / "outputs" / "dcgmi" / name).read_text()
    verdict = diagnostics.judge(Wanted(Diagnosis.DCGM), Ended(status, text))
    assert verdict.outcome is outcome
    assert ("Persistence Mode" in verdict.text) == (outcome is Outcome.UNKNOWN or "warn" in name)
