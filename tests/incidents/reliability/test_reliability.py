"""Estimators against tables, scipy and properties that must hold for any numbers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from incidents.reliability.estimates import (
    Curve,
    Direction,
    compute_bands,
    compute_covered_hours,
    compute_exposure,
    compute_exposure_at,
    compute_kaplan_meier,
    estimate_mean_time_between,
    estimate_median,
    estimate_restricted_mean,
    evaluate_trend,
)
from incidents.reliability.proportions import Estimate, estimate_wilson

_times = st.lists(st.integers(1, 50), min_size=1, max_size=60)
# Gehan 1965, weeks of remission under 6-MP; + marks those still in remission.
REMISSION = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
RELAPSED = [True] * 9 + [False] * 12


def _load_scipys_statistics() -> Any:
    """A second that each process of every run would take that collects this file."""
    from scipy import stats  # noqa: PLC0415

    return stats


def _curve(durations: list[float], ended: list[bool] | None = None) -> Curve:
    return compute_kaplan_meier(
        np.array(durations, float),
        np.array(ended if ended is not None else [True] * len(durations)),
    )


@pytest.mark.parametrize(
    ("failures", "low", "high"),
    # Exact Poisson limits of the mean: Garwood 1936, as printed in Ulm 1990, table 1.
    [
        (1, 0.0253, 5.572),
        (2, 0.2422, 7.225),
        (5, 1.623, 11.668),
        (9, 4.115, 17.085),
        (21, 13.0, 32.1),
    ],
)
def test_the_interval_is_the_tables_when_failures_were_seen(
    failures: int, low: float, high: float
) -> None:
    found = estimate_mean_time_between(failures, 1000.0)
    assert found.value == pytest.approx(1000 / failures)
    assert found.low == pytest.approx(1000 / high, rel=2e-3)
    assert found.high == pytest.approx(1000 / low, rel=2e-3)


def test_only_a_lower_bound_is_given_when_nothing_failed() -> None:
    found = estimate_mean_time_between(0, 40_000)
    assert (found.value, found.high) == (None, None)
    assert round(found.low or 0) == 13_352
    assert found.low == pytest.approx(40_000 / 2.996, rel=1e-4)


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        estimate_mean_time_between(-1, 10)


@given(st.integers(1, 500), st.floats(1, 1e7))
def test_the_interval_holds_the_estimate_for_any_numbers(failures: int, hours: float) -> None:
    found = estimate_mean_time_between(failures, hours)
    assert found.low is not None
    assert found.value is not None
    assert found.high is not None
    assert found.low < found.value < found.high


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    seen = random.poisson(4.0, 20_000)
    limits = {n: estimate_mean_time_between(int(n), 400.0) for n in set(seen.tolist())}
    covers = [
        (limits[n].low or 0) <= 100.0 <= (limits[n].high or np.inf) for n in seen.tolist() if n > 0
    ]
    assert np.mean(covers) >= 0.95


def test_the_curve_is_the_textbooks_when_times_are_censored() -> None:
    curve = _curve(REMISSION, RELAPSED)  # type: ignore[arg-type]
    assert curve.times.tolist() == [6, 7, 10, 13, 16, 22, 23]
    assert curve.survival == pytest.approx(
        [0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448], abs=5e-4
    )
    # R: survfit(Surv(t, e) ~ 1, conf.type = "log-log") gives 23, 13, NA. Nine ended.
    assert estimate_median(curve) == Estimate(23.0, 13.0, None)


@given(_times, st.data())
def test_the_curve_agrees_with_scipy_for_any_censored_times(
    times: list[int], data: st.DataObject
) -> None:
    ended = data.draw(st.lists(st.booleans(), min_size=len(times), max_size=len(times)))
    values, flags = np.array(times, float), np.array(ended)
    curve = compute_kaplan_meier(values, flags)
    if not flags.any():
        assert curve.times.size == 0
        return
    stats = _load_scipys_statistics()
    sample = stats.CensoredData.right_censored(values, ~flags)
    theirs = stats.ecdf(sample).sf
    assert curve.survival == pytest.approx(theirs.evaluate(curve.times), abs=1e-12)
    usable = np.isfinite(curve.hazard_variance) & (curve.survival > 0)
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # scipy says that the variance after the last end is unknown
        limits = theirs.confidence_interval(method="log-log")
    for ours, scipys in zip(compute_bands(curve), (limits.low, limits.high), strict=True):
        assert ours[usable] == pytest.approx(scipys.evaluate(curve.times)[usable], abs=1e-9)


@given(_times)
def test_the_median_is_the_samples_when_nothing_is_censored(times: list[int]) -> None:
    ordered = sorted(times)
    assert estimate_median(_curve(times)).value == ordered[(len(ordered) - 1) // 2]  # type: ignore[arg-type]


def test_the_median_is_not_reached_when_most_still_last() -> None:
    assert estimate_median(_curve([1, 9, 9, 9], [True, False, False, False])) == Estimate(
        None, None, None
    )


@pytest.mark.parametrize(("ended", "is_told"), [(5, False), (6, True)])
def test_a_median_has_no_interval_of_fewer_than_six_repairs(ended: int, is_told: bool) -> None:
    times = [float(n) for n in range(1, ended + 4)]
    found = estimate_median(_curve(times, [True] * ended + [False] * 3))
    assert (found.low is not None) is is_told


@pytest.mark.parametrize(("ended", "is_told"), [(19, False), (20, True)])
def test_a_mean_has_no_interval_of_fewer_than_twenty_repairs(ended: int, is_told: bool) -> None:
    found, _ = estimate_restricted_mean(_curve([float(n) for n in range(1, ended + 1)]), 100.0)
    assert found.value == pytest.approx((ended + 1) / 2)
    assert (found.low is not None) is is_told


def test_no_interval_has_zero_width_however_many_repairs_took_the_same() -> None:
    curve = _curve([1.0] * 48)
    assert estimate_median(curve) == Estimate(1.0, None, None)
    assert estimate_restricted_mean(curve, 100.0)[0] == Estimate(1.0, None, None)


def test_the_median_has_no_value_when_nothing_has_ended() -> None:
    assert estimate_median(_curve([5.0, 7.0], [False, False])) == Estimate(None, None, None)


@given(_times)
def test_the_restricted_mean_is_the_mean_of_the_cut_times_when_nothing_is_censored(
    times: list[int],
) -> None:
    found, horizon = estimate_restricted_mean(_curve(times), 20.0)  # type: ignore[arg-type]
    assert horizon == 20.0
    assert found.value == pytest.approx(np.minimum(times, 20).mean())


def test_the_restricted_mean_is_higher_than_the_mean_of_closed_repairs_when_some_are_open() -> None:
    found, _ = estimate_restricted_mean(_curve([1, 2, 3, 400], [True, True, True, False]), 100.0)
    assert found.value == pytest.approx((1 + 2 + 3 + 100) / 4)


def test_the_horizon_is_cut_back_when_nothing_was_watched_that_long() -> None:
    found, horizon = estimate_restricted_mean(_curve([2, 10], [True, False]), 100.0)
    assert horizon == 10.0
    assert found.value == pytest.approx((2 + 10) / 2)


def test_the_restricted_means_interval_is_the_textbooks() -> None:
    # Without censoring the squared error is the variance over n, with n in both places (Klein and
    # Moeschberger 4.5).
    times = [2.0, 4.0, 5.0, 9.0, 12.0] * 4
    found, _ = estimate_restricted_mean(_curve(times), 100.0)
    error = np.std(times) / np.sqrt(len(times))
    assert found.high == pytest.approx(np.mean(times) + 1.959964 * error, rel=1e-6)


@pytest.mark.parametrize(
    ("times", "direction"),
    [
        ([10, 20, 30], Direction.TOO_FEW),
        ([10, 30, 50, 70, 90], Direction.NONE),
        ([80, 85, 90, 95, 99], Direction.RISING),
        ([1, 5, 10, 15, 20], Direction.FALLING),
    ],
)
def test_the_trend_is_told_before_one_number_is(times: list[float], direction: Direction) -> None:
    assert evaluate_trend(np.array(times, float), 0.0, 100.0).direction is direction


def test_laplaces_score_is_the_textbooks() -> None:
    trend = evaluate_trend(np.array([80, 85, 90, 95, 99], float), 0.0, 100.0)
    assert trend.score == pytest.approx((89.8 - 50) / (100 * np.sqrt(1 / 60)))


def test_the_clock_of_exposure_runs_with_the_number_of_units_in_service() -> None:
    starts = np.array([np.nan, -50.0, 40.0, 200.0])
    found = compute_exposure_at(np.array([-5.0, 0.0, 10.0, 40.0, 50.0, 100.0]), starts, 0.0)
    assert found.tolist() == [0, 0, 20, 80, 110, 260]
    assert found[-1] == compute_exposure(starts, 0.0, 100.0)


@pytest.mark.parametrize("grown", [2, 10])
def test_a_fleet_that_grows_fails_more_often_and_shows_no_trend(grown: int) -> None:
    """The truth is one rate per unit; by the calendar every second fleet that doubles would show a
    trend."""
    random = np.random.default_rng(7)
    starts = np.concatenate((np.full(20, np.nan), np.full(20 * (grown - 1), 50.0)))
    end = float(compute_exposure_at(np.array([100.0]), starts, 0.0)[0])
    found = [
        evaluate_trend(np.sort(random.uniform(0, end, 30)), 0.0, end).direction for _ in range(400)
    ]
    assert found.count(Direction.NONE) >= 0.92 * len(found)


@given(st.lists(st.floats(0, 100), min_size=4, max_size=40))
def test_the_trend_turns_when_time_runs_backwards(times: list[float]) -> None:
    forwards, backwards = (
        evaluate_trend(t, 0.0, 100.0) for t in (np.array(times), 100 - np.array(times))
    )
    assert forwards.score == pytest.approx(-(backwards.score or 0), abs=1e-9)


def test_units_count_from_their_own_start_and_unknown_ones_from_the_windows() -> None:
    assert (
        compute_exposure(np.array([np.nan, -50.0, 40.0, 200.0]), 0.0, 100.0) == 100 + 100 + 60 + 0
    )


def test_an_hour_out_of_service_counts_once_however_many_reasons_it_has() -> None:
    owners = np.array([0, 0, 0, 1])
    found = compute_covered_hours(
        owners, np.array([10.0, 20, 50, 10]), np.array([30.0, 25, 60, 15]), 0.0, 100.0
    )
    assert found == pytest.approx(20 + 10 + 5)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(-20, 120), st.integers(-20, 120)), max_size=40
    ),
)
def test_time_out_of_service_agrees_with_counting_hour_by_hour(
    spans: list[tuple[int, int, int]],
) -> None:
    owners, starts, ends = (
        (np.array(column) for column in zip(*spans, strict=True)) if spans else (np.array([]),) * 3
    )
    hours = {
        (owner, hour) for owner, start, end in spans for hour in range(max(start, 0), min(end, 100))
    }
    found = compute_covered_hours(
        owners.astype(np.int64), starts.astype(float), ends.astype(float), 0.0, 100.0
    )
    assert found == pytest.approx(len(hours))


@given(successes=st.integers(0, 500), failures=st.integers(0, 500))
def test_a_shares_interval_is_scipys_wilson_interval(successes: int, failures: int) -> None:
    assume(successes + failures > 0)
    ours = estimate_wilson(successes, successes + failures)
    stats = _load_scipys_statistics()
    theirs = stats.binomtest(successes, successes + failures).proportion_ci(0.95, method="wilson")
    assert ours.value == successes / (successes + failures)
    assert (ours.low, ours.high) == (
        pytest.approx(theirs.low, abs=1e-12),
        pytest.approx(theirs.high, abs=1e-12),
    )


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (3, 2), (-1, 2)])
def test_a_share_without_trials_or_of_more_than_all_is_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="trials"):
        estimate_wilson(successes, trials)
