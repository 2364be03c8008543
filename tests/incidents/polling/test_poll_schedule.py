"""When polls come: spread, never doubled, slower for the dead, and never all at once after a
stop."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.detector import Sample
from detectors.evaluation.judge import Memory, Streak
from incidents.models import PlannedWork, Poll
from incidents.polling import polling
from incidents.polling.polling import CHUNK, LEASE, Chunk, PollPace
from tests.builders import NOW

MINUTE, TICK = timedelta(minutes=1), timedelta(seconds=5)
pytestmark = pytest.mark.django_db


def a_pace(count: int = 120, *, detector: str = "gpu", every: timedelta = MINUTE) -> PollPace:
    return PollPace(detector, "node", every, frozenset(f"gn{number:05}" for number in range(count)))


def rung(pace: PollPace, now: datetime) -> list[Chunk]:
    return polling.claim([pace], now, tick=TICK)


def answer(pace: PollPace, chunk: Chunk, now: datetime, *, failures: int = 0) -> Chunk:
    """The poll is made and written; returns what was held."""
    held = polling.begin(chunk, now)
    kept = polling.get_poll_states(held, held.targets)
    for one in kept.values():
        one.failures = failures
    polling.finish(list(kept.values()), pace.every, now, lease=held.lease)
    return held


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
    at = [row.next_poll_at for row in Poll.objects.all()]
    assert min(at) > NOW
    assert max(at) <= NOW + MINUTE
    by_tick = Counter(int((moment - NOW) / TICK) for moment in at)
    assert max(by_tick.values()) < 2 * 600 / 12


def test_every_target_is_polled_once_a_period() -> None:
    pace = a_pace()
    polling.plan([pace], NOW)
    made = let_pass(pace, NOW, 10 * MINUTE)
    counts = Counter(target for _, chunk in made for target in chunk.targets)
    assert set(counts) == pace.targets
    assert set(counts.values()) <= {9, 10}


def test_a_poll_always_falls_on_the_same_moment_of_its_period() -> None:
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
    assert Poll.objects.filter(polled_at__lt=restart).count() == 0


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
    kept = polling.get_poll_states(slow, slow.targets)
    late = NOW + MINUTE + LEASE + TICK
    (again,) = rung(pace, late)
    quick = polling.begin(again, late)
    polling.finish(list(kept.values()), MINUTE, late, lease=slow.lease)
    assert Poll.objects.get().leased_until == quick.lease
    assert polling.get_poll_states(slow, slow.targets) == {}


def test_chunks_are_bounded_and_dead_targets_have_their_own() -> None:
    pace = a_pace(70)
    polling.plan([pace], NOW)
    Poll.objects.filter(target__in=["gn00001", "gn00002"]).update(failures=4)
    Poll.objects.update(next_poll_at=NOW)
    chunks = [chunk for tick in range(3) for chunk in rung(pace, NOW + tick * TICK)]
    assert all(len(chunk.targets) <= CHUNK for chunk in chunks)
    assert {"gn00001", "gn00002"} in [set(chunk.targets) for chunk in chunks]


def test_a_dead_target_is_asked_ever_more_seldom_up_to_five_minutes() -> None:
    pace = a_pace(1)
    polling.plan([pace], NOW)
    now, waits = NOW + MINUTE, []
    for failures in range(1, 9):
        (chunk,) = rung(pace, now)
        answer(pace, chunk, now, failures=failures)
        soonest = Poll.objects.get().next_poll_at
        waits.append(round((soonest - now) / MINUTE))
        now = soonest
    assert waits == [1, 1, 1, 2, 4, 5, 5, 5]


def test_a_slow_detector_is_not_slowed_further_by_dead_targets() -> None:
    pace = a_pace(1, every=timedelta(minutes=10))
    polling.plan([pace], NOW)
    now = NOW + timedelta(minutes=10)
    (chunk,) = rung(pace, now)
    answer(pace, chunk, now, failures=9)
    assert Poll.objects.get().next_poll_at - now <= timedelta(minutes=15)


def test_a_target_that_answers_again_is_looked_at_by_all_detectors_soon() -> None:
    paces = [a_pace(2), a_pace(2, detector="nic")]
    polling.plan(paces, NOW)
    Poll.objects.update(failures=6, next_poll_at=NOW + timedelta(minutes=5))
    polling.answered("node", ["gn00000"], NOW)
    assert {row.target for row in Poll.objects.filter(next_poll_at__lte=NOW)} == {"gn00000"}
    assert Poll.objects.filter(failures=0).count() == 2


def test_targets_that_have_gone_are_no_longer_polled_and_memories_of_the_others_stay() -> None:
    polling.plan([a_pace(3)], NOW)
    Poll.objects.filter(target="gn00000").update(memory=b"kept")
    polling.plan([a_pace(2)], NOW)
    assert list(Poll.objects.order_by("target").values_list("target", "memory")) == [
        ("gn00000", b"kept"),
        ("gn00001", b""),
    ]


def test_a_detector_that_has_gone_is_forgotten() -> None:
    polling.plan([a_pace(2), a_pace(2, detector="old")], NOW)
    polling.plan([a_pace(2)], NOW)
    assert set(Poll.objects.values_list("detector", flat=True)) == {"gpu"}


def test_what_cannot_be_read_of_a_memory_is_begun_anew() -> None:
    assert polling.unpacked(b"\x00rubbish") == Memory()
    assert polling.unpacked(polling.packed(Memory())[:-3]) == Memory()


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
    assert polling.unpacked(polling.packed(memory)) == memory


def standing() -> dict[str, object]:
    return dict(PlannedWork.objects.values_list("node", "until"))


def test_planned_work_is_what_slurm_said_last() -> None:
    polling.learn_plans({"gn001": "reboot", "gn002": "", "gn003": "reboot"}, NOW)
    assert standing() == {"gn001": NOW + polling.PLANNED_FOR, "gn003": NOW + polling.PLANNED_FOR}
    later = NOW + MINUTE
    polling.learn_plans({"gn001": "", "gn002": "", "gn003": "reboot"}, later)
    assert standing() == {"gn001": later + polling.SETTLES, "gn003": later + polling.PLANNED_FOR}
    polling.learn_plans({"gn001": "", "gn003": "power saving"}, later + polling.SETTLES)
    row = PlannedWork.objects.get()
    assert (row.node, row.why, row.since) == ("gn003", "power saving", NOW)


def test_what_slurm_does_not_speak_of_is_neither_begun_nor_ended() -> None:
    polling.learn_plans({"gn001": "reboot"}, NOW)
    polling.learn_plans({"gn002": ""}, NOW + MINUTE)
    assert standing() == {"gn001": NOW + polling.PLANNED_FOR}
