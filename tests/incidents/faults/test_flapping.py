"""Flapping begins above one threshold and ends below another, whenever looks come."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incidents.faults import flapping
from incidents.faults.flapping import PLACES, USUAL, FlapLimits
from tests.builders import NOW

SECOND = timedelta(seconds=1)
LOOK = USUAL.look


def every(gap: timedelta, number: int) -> list[datetime]:
    """So many changes, the last of them now."""
    return [NOW - gap * back for back in reversed(range(number))]


@pytest.mark.parametrize(
    ("gap", "number", "percent"),
    [
        (SECOND, 0, 0.0),
        (SECOND, 1, 6.0),
        # The seven newest places: 1.2 + 1.179 + ... + 1.074, of 20.
        (SECOND, 7, 39.8),
        # Every place is a change: the weights are 1 in the mean.
        (LOOK, PLACES, 100.0),
        # Every second place, every fourth.
        (2 * LOOK, PLACES, 50.5),
        (4 * LOOK, PLACES, 25.8),
    ],
)
def test_the_rate_is_the_weighted_share_of_places(
    gap: timedelta, number: int, percent: float
) -> None:
    assert flapping.compute_percent(every(gap, number), NOW) == pytest.approx(percent, abs=0.05)


def test_a_change_weighs_half_as_much_again_when_it_is_the_newest() -> None:
    newest, oldest = (
        flapping.compute_percent([NOW], NOW),
        flapping.compute_percent([NOW], NOW + (PLACES - 1) * LOOK),
    )
    assert newest / oldest == pytest.approx(1.5)


def test_a_change_is_forgotten_when_it_has_left_the_places() -> None:
    assert flapping.compute_percent([NOW], NOW + PLACES * LOOK) == 0.0


def test_flapping_begins_with_the_sixth_change_when_they_come_fast() -> None:
    assert not flapping.begins(every(SECOND, 5), NOW)
    assert flapping.begins(every(SECOND, 6), NOW)


def test_what_changes_every_ten_minutes_does_not_flap() -> None:
    assert not flapping.begins(every(timedelta(minutes=10), PLACES), NOW)


def test_what_begins_to_flap_does_not_end_at_the_same_rate() -> None:
    changes = every(SECOND, 5)
    assert not flapping.begins(changes, NOW)
    assert not flapping.is_over(changes, NOW)


def test_thresholds_and_look_are_those_of_the_type() -> None:
    slow = FlapLimits(start_percent=10.0, stop_percent=5.0, look=timedelta(hours=1))
    changes = every(timedelta(minutes=50), 2)
    assert flapping.begins(changes, NOW, slow)
    assert not flapping.begins(changes, NOW)


CHANGES = st.lists(st.integers(0, 7200), min_size=1, max_size=60).map(
    lambda seconds: [NOW + number * SECOND for number in sorted(seconds)]
)


@given(CHANGES, st.integers(0, 7200))
def test_the_rate_lies_between_0_and_100_and_falls_while_nothing_changes(
    changes: list[datetime], later: int
) -> None:
    kept = changes[-PLACES:]
    first = flapping.compute_percent(kept, kept[-1])
    after = flapping.compute_percent(kept, kept[-1] + later * SECOND)
    assert 0.0 <= after <= first <= 100.0 + 1e-9


@given(CHANGES)
def test_flapping_is_over_at_the_time_that_is_told_and_not_a_look_before(
    changes: list[datetime],
) -> None:
    kept = changes[-PLACES:]
    at = flapping.get_end(kept)
    assert flapping.is_over(kept, at)
    assert at == kept[-1] or not flapping.is_over(kept, at - LOOK)


@given(CHANGES)
def test_changes_are_kept_in_order_and_no_more_than_places_whatever_order_they_come_in(
    changes: list[datetime],
) -> None:
    kept: list[datetime] = []
    for at in reversed(changes):
        kept = flapping.add_change(kept, at)
    assert kept == sorted(kept)
    assert len(kept) == min(len(changes), PLACES)
