"""Twenty-four simulated hours in one process: its memory does not grow once the site is as large as
it will be."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from runbooks.models import Run, RunState
from tests.simulation.day import FAULT_EVERY, HOUR, Day

pytestmark = [
    # SQLite's own memory would be measured too.
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(1800),
]
HOURS = 24
# Of what is there, an hour (our choice): what so few hours still tell from none.
MOST_GROWTH = 0.01


def grow(sizes: Sequence[float]) -> float:
    """The slope of the line through them, as a share of their mean."""
    slope, _ = statistics.linear_regression(range(len(sizes)), sizes)
    return slope / statistics.fmean(sizes)


def test_memory_of_a_day_grows_by_less_than_a_hundredth_an_hour_in_its_second_half(
    tmp_path: Path,
) -> None:
    day = Day(tmp_path / "history")
    day.play(HOURS)
    last = day.sizes[HOURS // 2 :]
    resident = grow([size.bytes for size in last])
    blocks = grow([size.blocks for size in last])
    print(f"growth an hour: resident {resident:.3%}, blocks {blocks:.3%}; {dict(day.done)}")
    print([(size.bytes >> 20, size.blocks) for size in day.sizes])
    assert resident < MOST_GROWTH
    assert blocks < MOST_GROWTH
    # The day was one: what broke was repaired, told and removed.
    broken = HOURS * HOUR // FAULT_EVERY
    states = Counter(Run.objects.values_list("state", flat=True))
    assert day.done["broken"] == broken
    assert day.done["incident"] > broken // 4, day.done
    assert states[RunState.SUCCEEDED] > 0, states
    assert day.notifier.count > broken
