"""When polls come: spread, never doubled, slower for the dead, and never all at once after a
stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from detectors.detector import Sample
from detectors.evaluation.judge import Memory, Streak
from incidents.models import PlannedWork, Poll, PollChunk
from incidents.polling import poll_pauses, polling
from incidents.polling.polling import CHUNK, LEASE, Chunk, PollPace, PollState
from tests.builders import NOW

MINUTE, TICK = timedelta(minutes=1), timedelta(seconds=5)
pytestmark = pytest.mark.django_db


def a_pace(count: int = 120, *, detector: str = "gpu", every: timedelta = MINUTE) -> PollPace:
    return PollPace(detector, "node", every, frozenset(f"gn{number:05}" for number in range(count)))


def rung(pace: PollPace, now: datetime) -> list[Chunk]:
    return polling.claim([pace], now, tick=TICK)


def answer(
    pace: PollPace, chunk: Chunk, now: datetime, *, silent: Mapping[str, int] | None = None
) -> Chunk:
    """The poll is made and written; returns what was held. `silent`: with how many failures."""
    held = polling.begin(chunk, now)
    states = polling.get_poll_states(held, held.targets)
    for state in states.values():
        state.failures = (silent or {}).get(state.target, 0)
        see(state, now)
    write(pace, held, states, now)
    return held


def see(state: PollState, now: datetime, value: int = 1) -> None:
    """A look that saw one counter."""
    sample = Sample(value, now)
    state.seen_at, state.memory = now, Memory({("r", "m"): sample}, looked_at=now)


def write(pace: PollPace, held: Chunk, states: Mapping[str, PollState], now: datetime) -> None:
    polling.finish(list(states.values()), pace.every, now, chunk=held)
    polling.end(held, pace.every, now)


def let_pass(pace: PollPace, start: datetime, duration: timedelta) -> list[tuple[datetime, Chunk]]:
    """A worker that answers every ring at once."""
    made = []
    for number in range(round(duration / TICK)):
        now = start + number * TICK
        for chunk in rung(pace, now):
            made.append((now, answer(pace, chunk, now)))
    return made


def test_new_targets_are_spread_over_one_period() -> None:
    pace = a_pace(600)
    polling.plan([pace], NOW)
    at = [row.next_poll_at for row in PollChunk.objects.all() for _ in row.names]
    assert min(at) > NOW
    assert max(at) <= NOW + MINUTE
    by_tick = Counter(int((moment - NOW) / TICK) for moment in at)
    assert max(by_tick.values()) <= 2 * 600 / 12


def test_few_targets_come_in_smaller_chunks_at_more_moments() -> None:
    polling.plan([a_pace(100)], NOW)
    assert [row.size for row in PollChunk.objects.all()] == [10] * 10
    polling.plan([a_pace(5_000, detector="nic"), a_pace(100)], NOW)
    assert {row.size for row in PollChunk.objects.filter(detector="nic")} == {CHUNK}


def test_every_target_is_polled_once_a_period() -> None:
    pace = a_pace()
    polling.plan([pace], NOW)
    made = let_pass(pace, NOW, 10 * MINUTE)
    counts = Counter(target for _, chunk in made for target in chunk.targets)
    assert set(counts) == pace.targets
    assert set(counts.values()) <= {9, 10}


def test_a_chunk_always_falls_on_the_same_moment_of_its_period() -> None:
    pace = a_pace(1)
    polling.plan([pace], NOW)
    moments = [at for at, _ in let_pass(pace, NOW, 6 * MINUTE)]
    assert {after - before for before, after in pairwise(moments)} == {MINUTE}


def test_after_a_stop_the_overdue_come_spread_and_no_faster_than_one_and_a_half_times() -> None:
    pace = a_pace(2400)
    polling.plan([pace], NOW)
    restart = NOW + timedelta(hours=3)
    per_tick = Counter(at for at, chunk in let_pass(pace, restart, MINUTE) for _ in chunk.targets)
    assert max(per_tick.values()) <= 1.5 * 2400 * (TICK / MINUTE)
    assert sum(per_tick.values()) >= 2400  # and the period is enough to have asked them all
    assert not PollChunk.objects.exclude(polled_at__gte=restart).exists()


def test_a_poll_that_is_under_way_is_not_started_twice() -> None:
    pace = a_pace(10)
    polling.plan([pace], NOW)
    first = rung(pace, NOW + MINUTE)
    assert sum(len(chunk.targets) for chunk in first) == 10
    assert rung(pace, NOW + MINUTE + TICK) == []
    assert rung(pace, NOW + 2 * MINUTE) == []


def test_a_ring_that_was_lost_is_made_good_when_its_lease_has_run_out() -> None:
    pace = a_pace(10)
    polling.plan([pace], NOW)
    rung(pace, NOW + MINUTE)
    late = NOW + MINUTE + LEASE
    assert sum(len(chunk.targets) for chunk in rung(pace, late)) == 10


def test_a_ring_that_comes_twice_is_answered_once() -> None:
    pace = a_pace(10)
    polling.plan([pace], NOW)
    (chunk,) = rung(pace, NOW + MINUTE)
    assert len(polling.begin(chunk, NOW + MINUTE).targets) == 10
    assert polling.begin(chunk, NOW + MINUTE).targets == ()


def test_a_ring_that_waited_past_its_lease_is_not_answered() -> None:
    pace = a_pace(10)
    polling.plan([pace], NOW)
    (chunk,) = rung(pace, NOW + MINUTE)
    assert polling.begin(chunk, NOW + MINUTE + LEASE).targets == ()


def test_a_worker_that_lost_its_lease_writes_nothing() -> None:
    pace = a_pace(1)
    polling.plan([pace], NOW)
    (chunk,) = rung(pace, NOW + MINUTE)
    slow = polling.begin(chunk, NOW + MINUTE)
    states = polling.get_poll_states(slow, slow.targets)
    late = NOW + MINUTE + LEASE + TICK
    (again,) = rung(pace, late)
    quick = polling.begin(again, late)
    assert polling.is_overtaken(slow, states.values(), MINUTE, late)
    assert polling.get_poll_states(slow, slow.targets) == {}
    polling.end(slow, MINUTE, late)
    assert PollChunk.objects.get().leased_until == quick.lease


class TestOutOfStep:
    """Who is silent, late or paused leaves its chunk, and comes back with its first answer."""

    def test_the_silent_come_in_chunks_of_their_own_and_the_others_go_on(self) -> None:
        pace = a_pace(70)
        polling.plan([pace], NOW)
        silent = {"gn00001": 1, "gn00002": 1}
        begun = NOW + MINUTE
        for chunk in claimed_all(pace, begun):
            answer(pace, chunk, begun, silent=silent)
        taken = let_pass(pace, begun + TICK, 3 * MINUTE)
        alone = [chunk for _, chunk in taken if chunk.number is None]
        assert {name for chunk in alone for name in chunk.targets} == set(silent)
        polls = Counter(name for _, chunk in taken for name in chunk.targets)
        assert set(polls) == pace.targets
        assert set(polls.values()) <= {2, 3}

    def test_who_answers_is_in_step_again(self) -> None:
        pace = a_pace(10)
        polling.plan([pace], NOW)
        (chunk,) = rung(pace, NOW + MINUTE)
        answer(pace, chunk, NOW + MINUTE, silent={"gn00001": 1})
        assert Poll.objects.filter(next_poll_at__isnull=False).count() == 1
        let_pass(pace, NOW + MINUTE + TICK, 2 * MINUTE)
        assert not Poll.objects.filter(next_poll_at__isnull=False).exists()
        (_, last), *_ = let_pass(pace, NOW + 4 * MINUTE, MINUTE)
        assert set(last.targets) == pace.targets

    def test_chunks_of_the_silent_are_bounded(self) -> None:
        pace = a_pace(120)
        polling.plan([pace], NOW)
        silent = dict.fromkeys(pace.targets, 4)
        for chunk in claimed_all(pace, NOW + MINUTE):
            answer(pace, chunk, NOW + MINUTE, silent=silent)
        Poll.objects.update(next_poll_at=NOW)
        chunks = [chunk for tick in range(3) for chunk in rung(pace, NOW + tick * TICK)]
        assert all(len(chunk.targets) <= CHUNK for chunk in chunks)
        assert {name for chunk in chunks for name in chunk.targets} == pace.targets

    def test_a_dead_target_is_asked_ever_more_seldom_up_to_five_minutes(self) -> None:
        assert waits_of_a_dead_target(MINUTE, 8) == [1, 1, 1, 2, 4, 5, 5, 5]

    def test_a_slow_detector_is_not_slowed_further_by_dead_targets(self) -> None:
        assert max(waits_of_a_dead_target(timedelta(minutes=10), 9)) <= 15

    def test_one_that_answers_again_is_looked_at_by_all_detectors_soon(self) -> None:
        polling.plan([a_pace(2), a_pace(2, detector="nic")], NOW)
        for name in ("gpu", "nic"):
            for target in ("gn00000", "gn00001"):
                later = NOW + timedelta(minutes=5)
                key = {"detector": name, "kind": "node", "target": target}
                Poll.objects.create(**key, failures=6, next_poll_at=later)
        polling.schedule_answering("node", ["gn00000"], NOW)
        assert {row.target for row in Poll.objects.filter(next_poll_at__lte=NOW)} == {"gn00000"}
        assert Poll.objects.filter(failures=0).count() == 2

    def test_one_that_answers_later_than_a_period_holds_its_chunk_up_once(self) -> None:
        pace = a_pace(10)
        polling.plan([pace], NOW)
        (chunk,) = rung(pace, NOW + MINUTE)
        held = polling.begin(chunk, NOW + MINUTE)
        states = polling.get_poll_states(held, held.targets)
        late = NOW + MINUTE + timedelta(seconds=100)
        hanging = {"gn00003": states.pop("gn00003")}
        for state in [*states.values(), *hanging.values()]:
            see(state, NOW + MINUTE)
        polling.finish(list(states.values()), MINUTE, NOW + MINUTE + TICK, chunk=held)
        write(pace, held, hanging, late)
        apart = Poll.objects.get(next_poll_at__isnull=False)
        assert (apart.target, apart.failures) == ("gn00003", 0)
        made = let_pass(pace, late, 5 * MINUTE)
        polls = Counter(name for _, chunk in made for name in chunk.targets)
        assert set(polls) == pace.targets
        assert set(polls.values()) <= {4, 5}


def claimed_all(pace: PollPace, now: datetime) -> list[Chunk]:
    chunks: list[Chunk] = []
    while more := rung(pace, now):
        chunks += more
    return chunks


def waits_of_a_dead_target(every: timedelta, rounds: int) -> list[int]:
    """Minutes between its polls."""
    pace = a_pace(1, every=every)
    polling.plan([pace], NOW)
    now, waits = NOW + every, []
    for failures in range(1, rounds + 1):
        for chunk in rung(pace, now):
            answer(pace, chunk, now, silent=dict.fromkeys(pace.targets, failures))
        soonest = Poll.objects.get().next_poll_at
        assert soonest is not None
        waits.append(round((soonest - now) / MINUTE))
        now = soonest
    return waits


class TestMemories:
    def test_one_that_says_nothing_new_is_not_written(self) -> None:
        pace = a_pace(10)
        polling.plan([pace], NOW)
        let_pass(pace, NOW, 2 * MINUTE)
        before = set(Poll.objects.values_list("pk", "polled_at", "memory"))
        assert len(before) == 10
        let_pass(pace, NOW + 2 * MINUTE, 5 * MINUTE)
        assert set(Poll.objects.values_list("pk", "polled_at", "memory")) == before

    def test_what_was_not_written_is_of_the_last_round(self) -> None:
        pace = a_pace(1)
        polling.plan([pace], NOW)
        made = let_pass(pace, NOW, 5 * MINUTE)
        last_at, _ = made[-1]
        ((_, _, sample),) = polling.iterate_samples(["gpu"], "node", ["gn00000"])
        assert sample == Sample(1, last_at)
        assert polling.get_last_polled("gn00000", "node") == {"gpu": last_at}

    def test_one_that_changed_is_written_of_its_target_alone(self) -> None:
        pace = a_pace(10)
        polling.plan([pace], NOW)
        let_pass(pace, NOW, 2 * MINUTE)
        later = NOW + 3 * MINUTE
        (chunk,) = rung(pace, later)
        held = polling.begin(chunk, later)
        states = polling.get_poll_states(held, held.targets)
        for state in states.values():
            see(state, later, value=2 if state.target == "gn00004" else 1)
        write(pace, held, states, later)
        assert [row.target for row in Poll.objects.filter(polled_at=later)] == ["gn00004"]

    def test_of_a_paused_node_is_of_the_round_before_its_pause(self) -> None:
        pace = a_pace(2)
        polling.plan([pace], NOW)
        last_at, _ = let_pass(pace, NOW, 2 * MINUTE)[-1]
        later = NOW + 30 * MINUTE
        poll_pauses.pause(
            "gn00000", ["gpu"], holder="run 1", why="a test", until=later, now=last_at
        )
        let_pass(pace, last_at + TICK, 5 * MINUTE)
        assert polling.get_last_polled("gn00000", "node") == {"gpu": last_at}
        ((_, _, sample),) = polling.iterate_samples(["gpu"], "node", ["gn00000"])
        assert sample.at == last_at
        assert polling.get_last_polled("gn00001", "node")["gpu"] > last_at

    def test_those_of_targets_that_have_gone_go_and_the_others_stay(self) -> None:
        polling.plan([a_pace(3)], NOW)
        let_pass(a_pace(3), NOW, 2 * MINUTE)
        kept = dict(Poll.objects.values_list("target", "memory"))
        polling.plan([a_pace(2)], NOW)
        assert dict(Poll.objects.values_list("target", "memory")) == {
            name: kept[name] for name in ("gn00000", "gn00001")
        }
        assert PollChunk.objects.get().names == ["gn00000", "gn00001"]


def test_new_targets_fill_the_places_of_those_that_have_gone() -> None:
    names = sorted(a_pace(4).targets)
    polling.plan([PollPace("gpu", "node", MINUTE, frozenset(names[:3]))], NOW)
    polling.plan([PollPace("gpu", "node", MINUTE, frozenset(names[1:]))], NOW)
    assert [row.names for row in PollChunk.objects.all()] == [names[1:]]


def test_a_detector_that_has_gone_is_forgotten() -> None:
    polling.plan([a_pace(2), a_pace(2, detector="old")], NOW)
    polling.plan([a_pace(2)], NOW)
    assert set(PollChunk.objects.values_list("detector", flat=True)) == {"gpu"}


def test_what_cannot_be_read_of_a_memory_is_begun_anew() -> None:
    assert polling.unpack(b"\x00rubbish", NOW) == Memory()
    assert polling.unpack(polling.pack(Memory(), NOW)[:-3], NOW) == Memory()
    of_a_look = polling.pack(Memory({("r", "m"): Sample(1, NOW)}), NOW)
    assert polling.unpack(of_a_look, None) == Memory()


@given(
    st.dictionaries(
        st.tuples(st.text(max_size=20), st.text(max_size=20)),
        st.one_of(
            st.integers(-(2**63), 2**64 - 1),
            st.text(max_size=20),
            st.booleans(),
            st.floats(allow_nan=False),
        ),
        max_size=8,
    )
)
def test_a_memory_survives_the_database(samples: dict[tuple[str, str], object]) -> None:
    memory = Memory(
        {
            key: Sample(value, NOW)
            for key, value in samples.items()
            if value not in (float("inf"), float("-inf"))
        },
        {("r", "m", "k"): Streak("faulty", 2, NOW)},
        {("r", "m", "k"): ((NOW, 3.0),)},
    )
    for looked_at in (None, NOW, NOW + MINUTE):
        assert polling.unpack(polling.pack(memory, looked_at), looked_at) == memory


def standing() -> dict[str, object]:
    return dict(PlannedWork.objects.values_list("node", "until"))


def test_planned_work_is_what_slurm_said_last() -> None:
    polling.store_plans({"gn001": "reboot", "gn002": "", "gn003": "reboot"}, NOW)
    assert standing() == {"gn001": NOW + polling.PLANNED_FOR, "gn003": NOW + polling.PLANNED_FOR}
    later = NOW + MINUTE
    polling.store_plans({"gn001": "", "gn002": "", "gn003": "reboot"}, later)
    assert standing() == {"gn001": later + polling.SETTLES, "gn003": later + polling.PLANNED_FOR}
    polling.store_plans({"gn001": "", "gn003": "power saving"}, later + polling.SETTLES)
    row = PlannedWork.objects.get()
    assert (row.node, row.why, row.since) == ("gn003", "power saving", NOW)


def test_what_slurm_does_not_speak_of_is_neither_begun_nor_ended() -> None:
    polling.store_plans({"gn001": "reboot"}, NOW)
    polling.store_plans({"gn002": ""}, NOW + MINUTE)
    assert standing() == {"gn001": NOW + polling.PLANNED_FOR}


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgresql
def test_no_disk_is_waited_for_by_a_lease_but_by_what_a_round_saw() -> None:
    """A database that crashes forgets no more than who held what, and it is due again."""
    waits: list[tuple[bool, str]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if sql.startswith(("UPDATE", "INSERT")):
            cursor = context["cursor"].cursor
            cursor.execute("SHOW synchronous_commit")
            waits.append((cursor.fetchone() == ("on",), sql.split('"')[1]))
        return execute(sql, params, many, context)

    pace = a_pace(1)
    polling.plan([pace], NOW)
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")
    try:
        with connection.execute_wrapper(note):
            (chunk,) = rung(pace, NOW + MINUTE)
            answer(pace, chunk, NOW + MINUTE)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET synchronous_commit")
    leases = [(False, "incidents_pollchunk")] * 2
    assert waits == [*leases, (True, "incidents_poll"), (True, "incidents_pollchunk")]
