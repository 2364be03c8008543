"""Estimators of reliability: rates with exact intervals, times with censoring, trend. Pure numpy
and scipy.

No clock, no database, no Django. Times are hours unless a name says otherwise; confidence is 95 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from scipy import special  # scipy.stats is the same functions behind a second of imports

from incidents.reliability.proportions import CONFIDENCE, Estimate, Z

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_ALPHA = 1 - CONFIDENCE
# Zero failures: -ln(0.05) = 2.996, the upper 95 % bound of a Poisson mean when nothing was seen.
ZERO_FAILURES_DIVISOR = float(-np.log(_ALPHA))
# The normal approximation of Laplace's test is adequate at 5 % from four events on (Ascher and
# Feingold 1984).
ENOUGH_FOR_TREND = 4
# The interval of a median by ranks: with five values both ends together miss it in 2 / 2^5, more
# than 5 %.
ENOUGH_FOR_MEDIAN = 6
# Our choice: repairs are minutes or weeks, and below 20 the mean's interval held the truth in three
# cases of four at best when such repairs were drawn at random.
ENOUGH_FOR_MEAN = 20
# Products of fractions end a few ulp beside 0.5; a median must not move by a step for that.
_TOLERANCE = 1e-9


class Direction(StrEnum):
    NONE = "none"
    RISING = "rising"
    FALLING = "falling"
    TOO_FEW = "too_few"


@dataclass(frozen=True)
class Trend:
    """Laplace's test: `score` is standard normal when failures come at a constant rate."""

    direction: Direction
    score: float | None
    p_value: float | None


@dataclass(frozen=True)
class Curve:
    """Kaplan-Meier: after each of `times`, the fraction `survival` still lasts.

    `hazard_variance` is Greenwood's running sum d / (n (n - d)), infinite where everything has
    ended. `last` is the longest time seen, ended or not; `ended` is how many have.
    """

    times: Floats
    survival: Floats
    hazard_variance: Floats
    last: float
    ended: int


def estimate_mean_time_between(failures: int, exposure: float) -> Estimate:
    """Exposure per failure with the exact Poisson (chi-square) interval of a window that ends by
    the calendar.

    No failure: no value, and the one-sided bound exposure / 2.996.
    """
    if exposure < 0 or failures < 0:
        raise ValueError(f"failures {failures} and exposure {exposure} must not be negative")
    if failures == 0:
        return Estimate(None, exposure / ZERO_FAILURES_DIVISOR, None)
    most_failures = float(special.chdtri(2 * failures + 2, _ALPHA / 2))
    fewest_failures = float(special.chdtri(2 * failures, 1 - _ALPHA / 2))
    low = 2 * exposure / most_failures
    high = 2 * exposure / fewest_failures
    return Estimate(exposure / failures, low, high)


def compute_kaplan_meier(durations: Floats, is_ended: Flags) -> Curve:
    """The curve of durations of which some had not ended when we stopped looking. Both arrays have
    one shape (n,).

    An end and a censoring at one time: the end comes first, as usual.
    """
    if durations.shape != is_ended.shape:
        raise ValueError(f"{durations.shape} durations and {is_ended.shape} flags")
    ended = np.sort(durations[is_ended])
    times, first = np.unique(ended, return_index=True)
    ends = np.diff(np.append(first, ended.size)).astype(float)
    shorter = np.searchsorted(np.sort(durations), times, side="left")
    at_risk = durations.size - shorter.astype(float)
    with np.errstate(divide="ignore"):
        variance = np.cumsum(ends / (at_risk * (at_risk - ends)))
    survival = np.cumprod(1 - ends / at_risk)
    longest = float(durations.max(initial=0.0))
    return Curve(times, survival, variance, longest, int(ended.size))


def estimate_median(curve: Curve) -> Estimate:
    """The first time at which half has ended, with Brookmeyer and Crowley's interval on the log-log
    scale.

    None stands for "not reached". Where everything has ended the variance has no estimate: the band
    stays as it was. No interval from fewer than `ENOUGH_FOR_MEDIAN` ends, and none of no width.
    """
    low, high = compute_bands(curve)
    value_at_half = _find_first_at_half(curve.times, curve.survival)
    low_at_half = _find_first_at_half(curve.times, low)
    high_at_half = _find_first_at_half(curve.times, high)
    found = Estimate(value_at_half, low_at_half, high_at_half)
    return _add_interval(found, is_known=curve.ended >= ENOUGH_FOR_MEDIAN)


def estimate_restricted_mean(curve: Curve, horizon: float) -> tuple[Estimate, float]:
    """The mean of min(duration, horizon), with its interval, and the horizon that holds.

    The horizon is cut back to the longest time seen while something still lasts there: beyond it
    nothing is known. No interval from fewer than `ENOUGH_FOR_MEAN` ends, and none of no width.
    """
    lasts = curve.survival.size == 0 or curve.survival[-1] > _TOLERANCE
    reach = min(horizon, curve.last) if lasts else horizon
    inside = curve.times < reach
    edges = np.concatenate(([0.0], curve.times[inside], [reach]))
    steps = np.concatenate(([1.0], curve.survival[inside]))
    areas = np.diff(edges) * steps
    mean = float(areas.sum())
    after = np.cumsum(areas[::-1])[::-1][1:]  # the area to the right of each end
    variances = np.concatenate(([0.0], curve.hazard_variance[inside]))
    increments = np.diff(variances)
    usable = np.isfinite(increments)
    terms = after[usable] ** 2 * increments[usable]
    half_width = Z * float(np.sqrt(np.sum(terms)))
    low = max(0.0, mean - half_width)
    high = min(reach, mean + half_width)
    found = Estimate(mean, low, high)
    return _add_interval(found, is_known=curve.ended >= ENOUGH_FOR_MEAN), reach


def _add_interval(found: Estimate, *, is_known: bool) -> Estimate:
    """The estimate, bare where its interval would claim to know more than the data do."""
    has_width = found.low is None or found.high is None or found.high > found.low
    return found if is_known and has_width else Estimate(found.value, None, None)


def evaluate_trend(times: Floats, start: float, end: float) -> Trend:
    """Whether failures at `times` in (start, end) come ever faster or slower; positive scores:
    faster.

    By the clock of exposure (`compute_exposure_at`): by the calendar a fleet that grows seems to
    decay.
    """
    if times.size < ENOUGH_FOR_TREND or end <= start:
        return Trend(Direction.TOO_FEW, None, None)
    length = end - start
    from_middle = times.mean() - start - length / 2
    standard_error = length * np.sqrt(1 / (12 * times.size))
    score = float(from_middle / standard_error)
    p_value = float(2 * special.ndtr(-abs(score)))
    if p_value >= _ALPHA:
        return Trend(Direction.NONE, score, p_value)
    direction = Direction.RISING if score > 0 else Direction.FALLING
    return Trend(direction, score, p_value)


def compute_exposure(starts: Floats, since: float, until: float) -> float:
    """Unit-hours in the window of units that entered service at `starts`; not a number: before the
    window."""
    began = np.maximum(np.nan_to_num(starts, nan=since), since)
    return float(np.maximum(until - began, 0.0).sum())


def compute_exposure_at(times: Floats, starts: Floats, since: float) -> Floats:
    """Unit-hours that the units had behind them at each of `times`, counted from `since`: the clock
    of exposure.

    `starts` as for `compute_exposure`, which this equals at the window's end. Sorts once; no pass
    per unit.
    """
    began = np.sort(np.maximum(np.nan_to_num(starts, nan=since), since))
    in_service = np.searchsorted(began, times, side="right")
    sums = np.concatenate(([0.0], np.cumsum(began)))
    return in_service * times - sums[in_service]


def compute_covered_hours(
    owners: npt.NDArray[np.int64], starts: Floats, ends: Floats, since: float, until: float
) -> float:
    """Hours in the window during which owners were out, each hour of an owner counted once however
    many reasons.

    Arrays of one shape (n,); `owners` are small whole numbers. Sorts once, then one pass without a
    loop.
    """
    begun = np.clip(starts, since, until)
    ended = np.clip(ends, since, until)
    is_real = ended > begun
    if not is_real.any():
        return 0.0
    # Each owner gets a stretch of its own on one line, so that one pass merges all of them.
    stretch = 2 * (until - since)
    shift = owners[is_real].astype(float) * stretch
    begun = begun[is_real] - since + shift
    ended = ended[is_real] - since + shift
    order = np.argsort(begun, kind="stable")
    begun = begun[order]
    ended = ended[order]
    reach = np.maximum.accumulate(ended)
    is_new = np.concatenate(([True], begun[1:] > reach[:-1]))
    before_each_new = np.flatnonzero(is_new)[1:] - 1
    last_of_each = np.append(before_each_new, begun.size - 1)
    lengths = reach[last_of_each] - begun[is_new]
    return float(lengths.sum())


def compute_bands(curve: Curve) -> tuple[Floats, Floats]:
    """Pointwise log-log limits of the survival. Where the variance is infinite the last finite
    limit is carried."""
    usable = np.isfinite(curve.hazard_variance) & (curve.survival > 0) & (curve.survival < 1)
    logs = np.log(np.where(usable, curve.survival, 0.5))
    variances = np.where(usable, curve.hazard_variance, 0.0)
    spread = np.exp(Z * np.sqrt(variances) / np.abs(logs))
    low = np.exp(logs * spread)
    high = np.exp(logs / spread)
    places = np.where(usable, np.arange(usable.size), -1)
    last_usable = np.maximum.accumulate(places)
    missing = last_usable < 0
    carried_low = np.where(missing, 1.0, low[last_usable])
    carried_high = np.where(missing, 1.0, high[last_usable])
    return carried_low, carried_high


def _find_first_at_half(times: Floats, values: Floats) -> float | None:
    reached = values <= 0.5 + _TOLERANCE
    return float(times[np.argmax(reached)]) if reached.any() else None
