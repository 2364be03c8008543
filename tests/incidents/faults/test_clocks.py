"""Whose time counts: the device's within a minute of ours, else ours; and the order of things is
kept all the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.faults import EventKind, FaultEvent
from incidents import services
from incidents.faults import clocks
from incidents.faults.clocks import TOLERANCE, Whose
from incidents.models import Fault, Incident
from tests.builders import NOW, a_node, an_event

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
NIC = "node/gn042/nic/mlx5_5"


def seen(
    at: timedelta, *, behind: timedelta = timedelta(0), kind: EventKind = EventKind.RAISED
) -> FaultEvent:
    """An event of a link that we see at NOW + `at`, by a clock that is `behind` (ahead when
    negative)."""
    return an_event("nic.link.down", NIC, at=NOW + at - behind, observed_at=NOW + at, kind=kind)


def told(event: FaultEvent) -> str:
    """What ingest made of it."""
    return ", ".join(
        change.kind.value for change in services.ingest([event], now=event.observed_at)
    )


@pytest.mark.parametrize(
    ("occurred_at", "at", "order_at", "whose"),
    [
        (NOW, NOW, NOW, Whose.DEVICE),
        (NOW - TOLERANCE, NOW - TOLERANCE, NOW - TOLERANCE, Whose.DEVICE),
        (NOW + TOLERANCE, NOW + TOLERANCE, NOW + TOLERANCE, Whose.DEVICE),
        # Ahead: nothing is seen before it happens.
        (NOW + HOUR, NOW, NOW, Whose.OURS),
        (datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC), NOW, NOW, Whose.OURS),
        (datetime.max.replace(tzinfo=UTC), NOW, NOW, Whose.OURS),
        # Behind: late, or a slow clock. Its order is its own date's.
        (NOW - HOUR, NOW, NOW - HOUR, Whose.OURS),
        # A date that nothing in a cluster has.
        (datetime(1970, 1, 1, tzinfo=UTC), NOW, NOW, Whose.OURS),
        (datetime.min.replace(tzinfo=UTC), NOW, NOW, Whose.OURS),
    ],
)
def test_the_devices_time_counts_within_the_tolerance_and_ours_beyond(
    occurred_at: datetime, at: datetime, order_at: datetime, whose: Whose
) -> None:
    found = clocks.get_date(replace(an_event(), occurred_at=occurred_at, observed_at=NOW))
    assert (found.at, found.order_at, found.whose) == (at, order_at, whose)


def test_what_is_known_to_be_live_is_put_in_order_by_our_clock() -> None:
    found = clocks.get_date(an_event(at=NOW - HOUR, observed_at=NOW), is_live=True)
    assert (found.at, found.order_at, found.lag) == (NOW, NOW, HOUR)


@given(st.datetimes(timezones=st.just(UTC)))
def test_no_time_that_counts_lies_further_from_ours_than_the_tolerance(
    occurred_at: datetime,
) -> None:
    found = clocks.get_date(replace(an_event(), occurred_at=occurred_at, observed_at=NOW))
    assert abs(found.at - NOW) <= TOLERANCE
    assert found.order_at <= NOW + TOLERANCE


@pytest.fixture
def node(db: None) -> None:
    a_node()


def the_fault() -> Fault:
    return Fault.objects.get()


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    "behind", [-HOUR, HOUR, timedelta(days=20_000), -timedelta(days=5_000), timedelta(0)]
)
def test_a_link_that_ends_is_over_whatever_the_devices_clock_says(behind: timedelta) -> None:
    told(seen(timedelta(0), behind=behind))
    assert told(seen(5 * MINUTE, behind=behind, kind=EventKind.CLEARED)) == "cleared"
    assert not the_fault().is_active


@pytest.mark.usefixtures("node")
def test_the_choice_of_the_clock_is_recorded_with_the_fault() -> None:
    told(seen(timedelta(0), behind=-HOUR))
    fault = the_fault()
    assert (fault.clock, fault.raised_at, fault.lag_s) == ("ours", NOW, -3600.0)
    told(an_event(at=NOW, observed_at=NOW + SECOND))
    other = Fault.objects.get(fault_type="gpu.xid.79")
    assert (other.clock, other.raised_at, other.lag_s) == ("device", NOW, 1.0)


@pytest.mark.usefixtures("node")
def test_an_incident_begins_by_our_clock_when_the_devices_is_an_hour_ahead() -> None:
    told(an_event(at=NOW + HOUR, observed_at=NOW))
    assert Incident.objects.get().onset_at == NOW


@pytest.mark.usefixtures("node")
def test_a_fault_ends_when_the_clock_has_jumped_back_by_an_hour_since_it_was_raised() -> None:
    told(seen(timedelta(0), behind=-HOUR))
    told(seen(MINUTE, behind=-HOUR))
    assert told(seen(5 * MINUTE, kind=EventKind.CLEARED)) == "cleared"
    assert told(seen(6 * MINUTE)) == "recorded"


@pytest.mark.usefixtures("node")
def test_repeats_by_a_clock_that_is_ahead_are_last_seen_by_ours() -> None:
    told(seen(timedelta(0), behind=-HOUR))
    assert told(seen(MINUTE, behind=-HOUR)) == "repeated"
    assert the_fault().last_seen_at == NOW + MINUTE


@pytest.mark.usefixtures("node")
def test_repeats_by_a_clock_that_is_behind_are_last_seen_by_ours() -> None:
    told(seen(timedelta(0), behind=HOUR))
    assert told(seen(5 * MINUTE, behind=HOUR)) == "repeated"
    assert the_fault().last_seen_at == NOW + 5 * MINUTE


@pytest.mark.usefixtures("node")
def test_a_late_line_reopens_nothing_when_its_fault_has_ended_since() -> None:
    told(seen(timedelta(0)))
    told(seen(5 * MINUTE, kind=EventKind.CLEARED))
    assert told(seen(HOUR, behind=58 * MINUTE)) == "ignored"
    assert not the_fault().is_active


@pytest.mark.usefixtures("node")
def test_a_late_end_ends_nothing_that_was_seen_again_since() -> None:
    told(seen(timedelta(0)))
    told(seen(50 * MINUTE))
    assert told(seen(HOUR, behind=55 * MINUTE, kind=EventKind.CLEARED)) == "ignored"
    assert the_fault().is_active


@pytest.mark.usefixtures("node")
def test_a_relays_whole_queue_is_put_in_order_by_its_dates() -> None:
    """Two hours late: down, up after five minutes, and an old copy of the first line last."""
    down, again = seen(2 * HOUR, behind=2 * HOUR), seen(2 * HOUR, behind=2 * HOUR - SECOND)
    up = seen(2 * HOUR, behind=2 * HOUR - 5 * MINUTE, kind=EventKind.CLEARED)
    services.ingest([down, up, again], now=NOW + 2 * HOUR)
    fault = the_fault()
    assert (fault.is_active, fault.count) == (False, 1)
    assert fault.cleared_at is not None
    assert fault.raised_at <= fault.cleared_at
    assert not Incident.objects.exists()
