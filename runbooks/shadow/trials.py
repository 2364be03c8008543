"""How many more right drains would bring the share of wrong ones below a limit. Pure."""

from __future__ import annotations

from incidents.reliability import proportions
from runbooks.shadow.report import Share


def count_missing(share: Share, most: float) -> int:
    """The fewest further trials, none of them wrong, after which its exact upper limit is `most` or
    less. Zero: it is already. `most` is above zero."""
    if _is_shown(share, most, 0):
        return 0
    low, high = 0, 1
    while not _is_shown(share, most, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _is_shown(share, most, middle):
            high = middle
        else:
            low = middle
    return high


def _is_shown(share: Share, most: float, more: int) -> bool:
    limit = proportions.estimate_clopper_pearson(share.count, share.of + more).high
    return limit is not None and limit <= most
