"""A number with its interval, and the interval of a share.

Pure, of the standard library alone: a worker that shows a share does not load scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95
Z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2)


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval. None: not reached, or unbounded on that side."""

    value: float | None
    low: float | None
    high: float | None


def estimate_wilson(successes: float, trials: float) -> Estimate:
    """A share of independent trials (E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209). ValueError
    without trials."""
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"{successes} successes of {trials} trials")
    share = successes / trials
    over = Z * Z / trials
    middle = (share + over / 2) / (1 + over)
    variance = share * (1 - share) / trials + over / (4 * trials)
    half_width = Z / (1 + over) * math.sqrt(variance)
    low = max(0.0, middle - half_width)
    high = min(1.0, middle + half_width)
    return Estimate(share, low, high)


def estimate_clopper_pearson(successes: int, trials: int) -> Estimate:
    """The exact 95 % interval of a share of independent trials, each limit with 2.5 % beyond it
    (C. J. Clopper and E. S. Pearson, Biometrika 26 (1934) 404). Without trials: anything from 0
    to 1. ValueError where there are more successes than trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    if trials == 0:
        return Estimate(None, 0.0, 1.0)
    low, high = 0.0, 1.0
    if successes > 0:
        low = _solve(lambda share: _compute_upper_tail(successes, trials, share))
    if successes < trials:
        high = 1.0 - _solve(lambda share: _compute_upper_tail(trials - successes, trials, share))
    return Estimate(successes / trials, low, high)


def _compute_upper_tail(least: int, trials: int, share: float) -> float:
    """The probability of `least` successes or more of so many trials."""
    all_orders = math.lgamma(trials + 1)
    log_success, log_failure = math.log(share), math.log1p(-share)
    terms = []
    for successes in range(least, trials + 1):
        failures = trials - successes
        log_orders = all_orders - math.lgamma(successes + 1) - math.lgamma(failures + 1)
        log_chance = log_orders + successes * log_success + failures * log_failure
        terms.append(math.exp(log_chance))
    return math.fsum(terms)


def _solve(rising: Callable[[float], float]) -> float:
    """The share at which it reaches 2.5 %, by halving: fifty times leave 1e-15 of it."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        is_below = rising(middle) < (1 - CONFIDENCE) / 2
        low, high = (middle, high) if is_below else (low, middle)
    return (low + high) / 2
