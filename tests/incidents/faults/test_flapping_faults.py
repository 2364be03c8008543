"""A fault that flaps is one fault while it lasts: told when it begins, and when it is over."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from incidents import services
from incidents.models import Fault, Incident, TimelineEntry
from incidents.vocabulary.lifecycle import Trigger
from tests.builders import NOW, a_clear, a_node, an_event

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
NIC = "node/gn042/nic/mlx5_5"


@pytest.fixture(autouse=True)
def node() -> None:
    a_node()


def down(at: timedelta) -> str:
    return told("nic.link.down", at, is_raised=True)


def up(at: timedelta) -> str:
    return told("nic.link.down", at, is_raised=False)


def told(fault_type: str, at: timedelta, *, is_raised: bool) -> str:
    make = an_event if is_raised else a_clear
    event = make(fault_type, NIC, at=NOW + at)
    return " ".join(change.text for change in services.ingest([event], now=event.observed_at))


def flap(times: int, every: timedelta = 20 * SECOND) -> timedelta:
    """So many losses of 5 s each; returns when the next would come."""
    for number in range(times):
        down(every * number)
        up(every * number + 5 * SECOND)
    return every * times


def swept(at: timedelta) -> Fault:
    services.sweep(now=NOW + at)
    return Fault.objects.get()


def entries(kind: str) -> int:
    return TimelineEntry.objects.filter(kind=kind).count()


def test_a_link_that_is_lost_twice_does_not_flap_yet() -> None:
    flap(2)
    fault = Fault.objects.get()
    assert (fault.is_active, fault.is_flapping) == (False, False)
    assert fault.flap_percent == pytest.approx(23.4, abs=0.1)


@pytest.mark.parametrize("every", [20 * SECOND, 7 * MINUTE, 15 * MINUTE, 30 * MINUTE])
def test_a_link_flaps_with_its_third_loss_within_an_hour(every: timedelta) -> None:
    at = flap(2, every)
    assert not Incident.objects.exists()
    down(at)
    assert Fault.objects.get(is_active=True).is_flapping
    assert Incident.objects.count() == 1


def test_a_link_that_flaps_is_one_fault_and_its_rate_stands_in_it() -> None:
    flap(10)
    fault = Fault.objects.get()
    assert (fault.is_active, fault.is_flapping, fault.count) == (True, True, 10)
    assert fault.flap_percent > 90
    assert len(fault.changes_at) == 20
    assert Incident.objects.count() == 1


def test_people_are_told_once_when_it_begins_and_once_when_it_is_over() -> None:
    flap(10)
    assert (entries("flapping"), entries("steady")) == (1, 0)
    for minute in range(3, 70):
        services.sweep(now=NOW + minute * MINUTE)
    assert (entries("flapping"), entries("steady")) == (1, 1)
    assert not Fault.objects.get().is_active


def test_it_ended_when_it_changed_last() -> None:
    last = flap(10) - 15 * SECOND
    fault = swept(timedelta(hours=2))
    assert (fault.is_active, fault.cleared_at) == (False, NOW + last)
    assert "steady since" in fault.cleared_reason


def test_ends_that_are_told_again_and_again_do_not_keep_it_from_being_over() -> None:
    """A poll says each minute that the link is up."""
    flap(4)
    for minute in range(2, 70):
        assert "its end is known" in up(minute * MINUTE) or not Fault.objects.get().is_active
        services.sweep(now=NOW + minute * MINUTE)
    assert not Fault.objects.get().is_active


def test_it_stands_when_it_is_steady_but_was_down_last() -> None:
    down(flap(4))
    assert swept(10 * MINUTE).is_flapping
    fault = swept(timedelta(hours=1))
    assert (fault.is_active, fault.is_flapping) == (True, False)
    assert entries("steady") == 1
    assert Incident.objects.get().state == "open"


def test_a_steady_fault_is_over_with_its_next_end() -> None:
    down(flap(4))
    swept(timedelta(hours=1))
    up(timedelta(hours=1, minutes=1))
    assert not Fault.objects.get().is_active


def test_losses_forty_minutes_apart_are_told_each_time() -> None:
    for number in range(6):
        down(number * 40 * MINUTE)
        services.sweep(now=NOW + number * 40 * MINUTE + 2 * MINUTE)
        up(number * 40 * MINUTE + 3 * MINUTE)
    assert not Fault.objects.filter(is_flapping=True).exists()
    assert entries("flapping") == 0


def test_a_link_that_is_lost_every_quarter_of_an_hour_for_hours_is_one_incident() -> None:
    for number in range(16):
        down(number * 15 * MINUTE)
        up(number * 15 * MINUTE + 5 * SECOND)
        for minute in (1, 6, 11):
            services.sweep(now=NOW + (number * 15 + minute) * MINUTE)
    assert Incident.objects.count() == 1
    assert (entries("flapping"), entries("steady")) == (1, 0)


def test_a_link_that_was_lost_on_two_days_has_two_incidents() -> None:
    for day in (0, 1):
        at = timedelta(days=day)
        down(at)
        services.sweep(now=NOW + at + 2 * MINUTE)
        up(at + 3 * MINUTE)
        services.sweep(now=NOW + at + timedelta(hours=1))
    assert [incident.state for incident in Incident.objects.all()] == ["resolved", "resolved"]


def test_a_line_that_repeats_a_flapping_fault_takes_no_placement_lock() -> None:
    at = flap(4)
    down(at)
    with CaptureQueriesContext(connection) as queries:
        assert "stands already" in down(at + SECOND)
    said = [query["sql"] for query in queries]
    assert not [sql for sql in said if "pg_advisory" in sql or 'FROM "incidents_incident"' in sql]


def test_a_fault_flaps_on_when_a_person_has_resolved_its_incident() -> None:
    at = flap(5)
    incident = Incident.objects.get()
    services.act(incident.pk, Trigger.RESOLVE, actor="ada", now=NOW + at)
    down(at + 20 * SECOND)
    assert Fault.objects.get(is_active=True).is_flapping
    assert Incident.objects.latest("pk").follows == incident


def test_the_faults_page_tells_its_rate_and_its_clock(admin_client: Client) -> None:
    flap(10)
    fault = Fault.objects.get()
    Fault.objects.filter(pk=fault.pk).update(clock="ours", lag_s=-3600.0)
    page = admin_client.get(f"/incidents/fault/{fault.pk}/change/").content.decode()
    assert f"flapping, {fault.flap_percent:.0f} %" in page
    assert "the device dates it 1 h after we saw it" in page
