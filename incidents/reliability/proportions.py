"""A number with its interval, and the interval of a share.

Pure, of the standard library alone: a worker that shows a share does not load scipy.
"""

from __future__ import annotations

import math
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


def wilson(successes: float, trials: float) -> Estimate:
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
