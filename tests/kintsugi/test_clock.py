"""The database's time, carried on between two looks by seconds that nobody sets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from kintsugi import clock

DATABASE_TIME = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class Machine:
    """What a machine's two clocks and the database's say."""

    def __init__(self) -> None:
        self.uptime_s = 1000.0
        self.database_time = DATABASE_TIME
        self.answer_s = 0.0

    def ask_database(self) -> datetime:
        self.uptime_s += self.answer_s
        return self.database_time

    def let_pass(self, seconds: float) -> None:
        self.uptime_s += seconds
        self.database_time += seconds * SECOND


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    known = Machine()
    monkeypatch.setattr(clock, "_get_uptime_s", lambda: known.uptime_s)
    monkeypatch.setattr(clock, "_ask_database", known.ask_database)
    clock.forget()
    yield known
    clock.forget()


def test_before_the_database_was_asked_it_is_the_machines_own_time(machine: Machine) -> None:
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(minutes=1)
    assert clock.get_difference() is None


def test_it_is_the_databases_time_whatever_the_machines_clock_says(machine: Machine) -> None:
    clock.synchronise()
    machine.let_pass(7)
    assert clock.now() == DATABASE_TIME + 7 * SECOND
    difference = clock.get_difference()
    assert difference is not None
    assert difference > timedelta(days=300)


def test_a_database_whose_clock_was_set_back_is_followed_when_it_is_asked_again(
    machine: Machine,
) -> None:
    clock.synchronise()
    machine.database_time -= timedelta(hours=1)
    assert clock.now() == DATABASE_TIME
    clock.synchronise()
    assert clock.now() == DATABASE_TIME - timedelta(hours=1)


def test_an_answer_counts_for_the_middle_of_the_time_that_it_took(machine: Machine) -> None:
    machine.answer_s = 0.5
    clock.synchronise()
    assert clock.now() == DATABASE_TIME + 0.25 * SECOND


def test_an_answer_that_took_long_is_not_believed_where_a_better_one_is_known(
    machine: Machine,
) -> None:
    clock.synchronise()
    machine.answer_s = 30.0
    machine.database_time += timedelta(hours=1)
    clock.synchronise()
    assert clock.now() == DATABASE_TIME + 30 * SECOND


def test_it_is_old_after_a_second(machine: Machine) -> None:
    assert clock.is_old()
    clock.synchronise()
    machine.let_pass(0.9)
    assert not clock.is_old()
    machine.let_pass(0.2)
    assert clock.is_old()


@pytest.mark.django_db
def test_the_real_database_is_asked() -> None:
    try:
        clock.synchronise()
        difference = clock.get_difference()
    finally:
        clock.forget()
    assert difference is not None
    assert abs(difference) < timedelta(minutes=1)
