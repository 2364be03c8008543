"""Numbers as a person would say them."""

from __future__ import annotations

import pytest

from incidents.reliability import texts as words
from incidents.reliability.proportions import Estimate


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        (0, "0 s"),
        (0.02, "72 s"),
        (0.15, "9 min"),
        (1.5, "90 min"),
        (5.2, "5.2 h"),
        (47.9, "47.9 h"),
        (144, "6.0 d"),
    ],
)
def test_a_repairs_length_is_said_in_its_own_unit(hours: float, said: str) -> None:
    assert words.format_span(hours) == said


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        (Estimate(24_240.1, 12_768.9, 53_011.2), "24,240 h (12,769 to 53,011)"),
        (Estimate(None, 13_352.4, None), "above 13,352 h"),
        (Estimate(None, None, None), "-"),
    ],
)
def test_a_mean_time_between_failures_never_stands_without_its_interval(
    estimate: Estimate, said: str
) -> None:
    assert words.format_between_failures(estimate) == said


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        (Estimate(0.15, 0.1, 0.7), "9 min (6 min to 42 min)"),
        (Estimate(0.15, 0.1, None), "9 min (6 min to not reached)"),
        (Estimate(144, None, None), "6.0 d"),
        (Estimate(None, 3.0, None), "not reached (at least 3.0 h)"),
        (Estimate(None, None, None), "not reached"),
    ],
)
def test_a_time_to_restore_may_be_not_reached_and_says_so(estimate: Estimate, said: str) -> None:
    assert words.format_to_restore(estimate) == said
