"""Intervals of shares against published values."""

from __future__ import annotations

import pytest

from incidents.reliability import proportions


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [
        # R 4.3, binom.test(count, of)$conf.int.
        (0, 10, 0.0, 0.3084971),
        (0, 18, 0.0, 0.1853020),
        (12, 18, 0.4099252, 0.8665726),
        (6, 6, 0.5407419, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_the_exact_interval_of_a_share(count: int, of: int, low: float, high: float) -> None:
    found = proportions.estimate_clopper_pearson(count, of)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(("count", "of"), [(0, 2000), (7, 2000), (1993, 2000)])
def test_the_exact_interval_holds_for_many_trials(count: int, of: int) -> None:
    found = proportions.estimate_clopper_pearson(count, of)
    assert found.low is not None
    assert found.high is not None
    assert 0.0 <= found.low <= count / of <= found.high <= 1.0


def test_more_successes_than_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="3 successes of 2 trials"):
        proportions.estimate_clopper_pearson(3, 2)
