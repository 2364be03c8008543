"""Folding: nothing is lost or counted twice, order survives, repeats wait longer and longer, memory
is bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.faults import Action, Component, EventKind, FaultEvent, Severity
from detectors.logs.signatures import Fact
from detectors.provenance import Provenance
from detectors.receivers.folding import (
    BURST,
    LONGEST_HOLD_S,
    STORM_EVENTS_PER_S,
    Folded,
    Folder,
    fold_event,
)

AT = datetime(2025, 1, 12, 3, 4, 5, tzinfo=UTC)


def occurrence(
    number: int = 0, *, event: EventKind = EventKind.RAISED, key: str = "", count: int = 1
) -> Folded:
    fact = Fact(
        fault_type="switch.port.down",
        event=event,
        resource=f"switch/leaf-{number:02d}/port/Ethernet8",
        host=f"leaf-{number:02d}",
        occurred_at=AT,
        severity=Severity.MAJOR,
        action=Action.CHECK_CABLE,
        component=Component.INTERCONNECT_SWITCH,
        code=None,
        qualifier="",
        source_key=key,
        count=count,
        excerpt="",
        meaning="",
    )
    return Folded(fact, AT, b"the line", key, count)


def test_an_event_that_came_by_another_way_than_a_line_goes_out_as_it_came() -> None:
    event = FaultEvent(
        event_id="",
        fault_type="switch.port.down",
        event=EventKind.RAISED,
        resource="switch/leaf-07/port/Ethernet8",
        source="trap",
        occurred_at=AT,
        observed_at=AT,
        severity=Severity.MAJOR,
        action=Action.CHECK_CABLE,
        component=Component.INTERCONNECT_SWITCH,
        qualifier="rx",
        source_key="k",
        count=3,
        code=7,
        excerpt="linkDown",
        attributes={"oid": "1.3.6.1.6.3.1.1.5.3"},
        provenance=Provenance(program="snmptrapd"),
    )
    assert fold_event(event).build_event(AT) == event
    assert fold_event(event).fact.host == "leaf-07"


def feed(folder: Folder, number: int, new: Folded, now: float) -> None:
    """As the intake does: the short way where it serves."""
    identity = (number, new.fact.event)
    if not folder.repeat(identity, new.count, now=now):
        folder.add(identity, new, now=now)


STEP = st.tuples(
    st.integers(0, 3),
    st.sampled_from(EventKind),
    st.booleans(),
    st.integers(1, 3),
    st.floats(0, 3, allow_nan=False),
)


@settings(max_examples=50)
@given(st.lists(STEP, max_size=80))
def test_every_occurrence_comes_out_once_and_the_last_state_comes_last(
    steps: list[tuple[int, EventKind, bool, int, float]],
) -> None:
    folder, now, out = Folder(), 0.0, []
    sent: dict[int, int] = {}
    last: dict[int, EventKind] = {}
    for position, (number, event, has_key, count, wait) in enumerate(steps):
        feed(
            folder,
            number,
            occurrence(number, event=event, key=f"k{position}" * has_key, count=count),
            now,
        )
        sent[number] = sent.get(number, 0) + count
        last[number] = event
        now += wait
        if wait > 1:
            out += folder.take(now)
    out += folder.take(now, everything=True)
    for number, total in sent.items():
        mine = [folded for folded in out if folded.fact.host == f"leaf-{number:02d}"]
        assert sum(folded.count for folded in mine) == total
        assert mine[-1].fact.event is last[number]
    keys = [folded.source_key for folded in out if folded.source_key]
    assert len(keys) == len(set(keys))
    assert not folder.is_waiting


def test_down_up_down_stays_three_events_when_they_come_at_once() -> None:
    folder = Folder()
    for event in (EventKind.RAISED, EventKind.CLEARED, EventKind.RAISED):
        feed(folder, 0, occurrence(event=event), 1.0)
    events = [folded.fact.event for folded in folder.take(1.0)]
    assert events == [EventKind.RAISED, EventKind.CLEARED, EventKind.RAISED]


def test_identical_lines_without_a_key_fold_and_those_with_keys_stay_apart() -> None:
    folder = Folder()
    for key in ("", "", "a", "b"):
        feed(folder, int(bool(key)), occurrence(int(bool(key)), key=key), 1.0)
    assert [(folded.count, folded.source_key) for folded in folder.take(1.0)] == [
        (2, ""),
        (1, "a"),
        (1, "b"),
    ]


def test_repeats_are_held_twice_as_long_each_time_up_to_two_seconds() -> None:
    folder, now, taken_at = Folder(), 0.0, []
    while now < 30:
        feed(folder, 0, occurrence(), now)
        if folder.take(now):
            taken_at.append(now)
        now += 0.01
    gaps = [later - earlier for earlier, later in pairwise(taken_at)]
    assert all(gap < 0.02 for gap in gaps[: BURST - 1])
    assert gaps[BURST - 1 : BURST + 4] == sorted(gaps[BURST - 1 : BURST + 4])
    assert LONGEST_HOLD_S <= max(gaps) < LONGEST_HOLD_S + 0.05


def test_a_line_goes_out_at_once_again_when_it_was_quiet() -> None:
    folder = Folder()
    for tick in range(300):
        feed(folder, 0, occurrence(), tick / 100)
        folder.take(tick / 100)
    folder.take(20.0)
    feed(folder, 0, occurrence(), 20.0)
    assert folder.ready == 1


def test_repeats_are_held_from_the_second_on_when_there_is_a_storm() -> None:
    folder = Folder()
    for _ in range(2):
        for number in range(STORM_EVENTS_PER_S + 1):
            feed(folder, number, occurrence(number), 0.5)
        folder.take(0.5)
    assert folder.get_next_due() == 0.5 + LONGEST_HOLD_S
    assert sum(folded.count for folded in folder.take(9.0)) == STORM_EVENTS_PER_S + 1


def test_memory_is_bounded_when_every_line_is_another() -> None:
    folder = Folder(capacity=100)
    for number in range(1000):
        feed(folder, number, occurrence(number), number / 1000)
        if number % 50 == 0:
            folder.take(number / 1000)
    assert folder.remembered <= 100
    assert sum(folded.count for folded in folder.take(1.0, everything=True)) == 49
