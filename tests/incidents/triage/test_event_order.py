"""Whatever order events come in, and however often: the same faults stand, nothing is lost, nothing
old is raised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.faults import EventKind, FaultEvent
from incidents import services
from incidents.models import Fault, Incident
from tests.builders import NOW, a_clear, a_node, an_event

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
LATER = NOW + timedelta(minutes=1)
# Two types whose end the device reports, one that goes quiet, one that ends with a boot.
ENDING = ("nic.link.down", "switch.port.down")
LASTING = ("gpu.xid.79", "pcie.replays", "nvlink.link_inactive")
PLACES = {
    "nic.link.down": "node/gn042/nic/mlx5_5",
    "switch.port.down": "switch/leaf-01/port/Ethernet0",
    "gpu.xid.79": "node/gn042/gpu/0000:19:00.0",
    "pcie.replays": "node/gn042/gpu/0000:19:00.0",
    "nvlink.link_inactive": "node/gn042/gpu/0000:3b:00.0",
}


@contextmanager
def fresh_site() -> Iterator[None]:
    """Each example begins with one node and no event."""
    with transaction.atomic():
        a_node()
        yield
        transaction.set_rollback(True)


def event(
    number: int, fault_type: str, second: int, *, is_raised: bool, count: int = 1
) -> FaultEvent:
    """Seen by us within the minute after which it happened, like all others."""
    return an_event(
        fault_type,
        PLACES[fault_type],
        at=NOW + second * SECOND,
        kind=EventKind.RAISED if is_raised else EventKind.CLEARED,
        observed_at=LATER,
        event_id=f"{number:032x}",
        count=count,
    )


def standing() -> set[str]:
    return set(Fault.objects.filter(is_active=True).values_list("fault_type", flat=True))


def told(batches: Sequence[Sequence[FaultEvent]]) -> None:
    for batch in batches:
        services.ingest(batch, now=LATER)


# Fewer changes than flapping takes: what flaps stands until it is steady, whatever came last.
ENDS = st.lists(
    st.tuples(st.sampled_from(ENDING), st.booleans()), min_size=1, max_size=5, unique_by=lambda each: id(each)
).map(
    lambda drawn: [event(n, kind, 2 * n + 1, is_raised=is_raised) for n, (kind, is_raised) in enumerate(drawn)]
)  # fmt: skip


@settings(max_examples=60)
@given(ENDS, st.data())
def test_the_same_faults_stand_in_whatever_order_and_however_often_events_come(
    events: list[FaultEvent], data: st.DataObject
) -> None:
    """What was said last by its own date decides."""
    last = {one.fault_type: one.event for one in events}
    with fresh_site():
        arrivals = data.draw(
            st.permutations([*events, *data.draw(st.lists(st.sampled_from(events), max_size=4))])
        )
        cut = data.draw(st.integers(0, len(arrivals)))
        told([arrivals[:cut], arrivals[cut:]])
        assert standing() == {kind for kind, said in last.items() if said is EventKind.RAISED}


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(LASTING), st.integers(0, 50), st.integers(1, 5)),
        min_size=1,
        max_size=12,
    ),
    st.data(),
)
def test_no_count_is_lost_in_whatever_order_batches_and_copies_come(
    drawn: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    events = [
        event(n, kind, second, is_raised=True, count=count)
        for n, (kind, second, count) in enumerate(drawn)
    ]
    with fresh_site():
        arrivals = data.draw(
            st.permutations([*events, *data.draw(st.lists(st.sampled_from(events), max_size=6))])
        )
        size = data.draw(st.integers(1, 6))
        told([arrivals[start : start + size] for start in range(0, len(arrivals), size)])
        counts = dict(
            Fault.objects.filter(fault_type__in=LASTING).values_list("fault_type", "count")
        )
        wanted: dict[str, int] = {}
        for kind, _, count in drawn:
            wanted[kind] = wanted.get(kind, 0) + count
        assert counts == wanted


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from((*ENDING[:1], *LASTING)), st.booleans(), st.integers(0, 59)),
        min_size=1,
        max_size=8,
    )
)
def test_nothing_from_before_the_boot_is_raised_however_much_of_it_comes(
    drawn: list[tuple[str, bool, int]],
) -> None:
    with fresh_site():
        services.record_node_restart("gn042", booted_at=LATER, boot_id="b2", now=LATER)
        told(
            [
                [
                    event(n, kind, second, is_raised=is_raised)
                    for n, (kind, is_raised, second) in enumerate(drawn)
                ]
            ]
        )
        assert standing() == set()
        assert not Incident.objects.exists()


def test_a_fault_whose_end_came_first_is_raised_by_what_is_dated_after_that_end() -> None:
    a_node()
    link = PLACES["nic.link.down"]
    told(
        [
            [a_clear("nic.link.down", link, at=NOW + 5 * SECOND)],
            [an_event("nic.link.down", link, at=NOW)],
        ]
    )
    assert standing() == set()
    told([[an_event("nic.link.down", link, at=NOW + 6 * SECOND)]])
    assert standing() == {"nic.link.down"}


def test_a_poll_that_finds_all_well_makes_no_line_before_it_stale() -> None:
    a_node()
    gpu = PLACES["nvlink.link_inactive"]
    told(
        [
            [a_clear("nvlink.link_inactive", gpu, at=NOW + 5 * SECOND)],
            [an_event("nvlink.link_inactive", gpu, at=NOW)],
        ]
    )
    assert standing() == {"nvlink.link_inactive"}
