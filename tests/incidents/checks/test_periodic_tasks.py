"""Periodic work is claimed in the database: one process does it once a period, a dead one is taken
over from."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services
from incidents.checks import periodic_tasks
from incidents.checks.periodic_tasks import LATE, LEASE
from incidents.models import Fault, Incident, PeriodicTask
from tests.builders import NOW
from tests.incidents.test_races import at_once

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def claimed(at: timedelta, *, every: timedelta = MINUTE) -> bool:
    return periodic_tasks.claim("compare", NOW + at, every=every)


@pytest.mark.django_db
class TestClaim:
    def test_it_is_given_once_a_period(self) -> None:
        assert claimed(0 * SECOND)
        periodic_tasks.release("compare", NOW)
        assert not claimed(56 * SECOND)
        assert claimed(MINUTE)

    def test_a_call_that_comes_a_little_early_is_not_left_out(self) -> None:
        assert claimed(0 * SECOND)
        periodic_tasks.release("compare", NOW)
        assert claimed(58 * SECOND)

    def test_work_under_way_is_begun_by_nobody_else_until_its_lease_ends(self) -> None:
        assert claimed(0 * SECOND)
        assert not claimed(MINUTE)
        assert not claimed(LEASE - SECOND)
        assert claimed(LEASE)

    def test_whoever_lost_its_lease_does_not_release_its_heir(self) -> None:
        assert claimed(0 * SECOND)
        assert claimed(LEASE)
        periodic_tasks.release("compare", NOW)
        assert PeriodicTask.objects.get().leased_until == NOW + 2 * LEASE

    def test_a_clock_that_was_set_back_stops_nothing(self) -> None:
        assert claimed(timedelta(hours=3))
        assert claimed(0 * SECOND)

    def test_work_that_fails_is_released(self) -> None:
        def fail() -> None:
            raise ValueError("of Slurm's answer")

        with pytest.raises(ValueError, match="answer"):
            periodic_tasks.run_once("compare", fail, clock=lambda: NOW, every=MINUTE)
        assert PeriodicTask.objects.get().leased_until is None
        assert claimed(MINUTE)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
def test_of_twenty_beats_one_does_it() -> None:
    done: list[int] = []

    def call() -> bool:
        return periodic_tasks.run_once(
            "compare", lambda: done.append(1), clock=lambda: NOW, every=MINUTE
        )

    outcomes = at_once([call] * 20)
    assert (outcomes.count(True), done) == (1, [1])


@pytest.mark.django_db
def test_work_that_nobody_begins_is_a_fault_of_our_own_until_it_is_done_again() -> None:
    periodic_tasks.claim("compare", NOW, every=MINUTE)
    assert periodic_tasks.get_late(["compare"], NOW + LATE - SECOND) == []
    assert periodic_tasks.get_late(["compare", "update_jobs"], NOW + LATE) == [
        "compare",
        "update_jobs",
    ]
    for _ in range(2):
        services.ingest(periodic_tasks.evaluate_lateness(["compare"], NOW + LATE), now=NOW + LATE)
    fault = Fault.objects.get()
    assert (fault.fault_type, fault.is_active, fault.count) == (periodic_tasks.FAULT_TYPE, True, 1)
    assert "compare" in fault.evidence.get().excerpt
    assert Incident.objects.get().owner == "kintsugi/clock"
    later = NOW + 2 * LATE
    services.ingest(periodic_tasks.evaluate_lateness([], later), now=later)
    assert not Fault.objects.get().is_active
