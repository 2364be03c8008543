"""Which jobs a fault touched and what that cost: tables of cases, and what no case may break."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.faults import Severity
from incidents.evaluation.impact_rules import (
    LIFTS,
    LOST,
    FaultSpan,
    Harm,
    ImpactTally,
    JobSpan,
    compute_loss,
    compute_shares,
    find_lifted_severity,
    sum_known,
    touch,
)
from tests.incidents.builders import T0

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LATER = T0 + 2 * HOUR


def a_job(
    ended_after: timedelta | None = MINUTE, state: str = "FAILED", **changes: object
) -> JobSpan:
    """Sixteen GPUs on two nodes, begun an hour before the fault at T0."""
    ended_at = None if ended_after is None else T0 + ended_after
    values = {
        "started_at": T0 - HOUR,
        "ended_at": ended_at,
        "state": state if ended_at else "RUNNING",
    }
    return JobSpan(**{**values, "nodes": 2, "gpus": 16, **changes})  # type: ignore[arg-type]


def a_fault(**changes: object) -> FaultSpan:
    return FaultSpan(**{"began_at": T0, **changes})  # type: ignore[arg-type]


DISABLING = a_fault(is_disabling=True)


@pytest.mark.parametrize(
    ("ended_after", "is_harmed"),
    [(-5 * MINUTE, True), (timedelta(0), True), (10 * MINUTE, True), (11 * MINUTE, False)],
)
def test_a_job_is_lost_to_a_fault_that_began_10_min_before_to_5_min_after_its_end(
    ended_after: timedelta, is_harmed: bool
) -> None:
    found = touch(a_job(ended_after), [a_fault()], LATER)
    assert found is not None
    assert found.is_harmed is is_harmed


def test_a_job_is_not_met_when_it_ended_over_five_minutes_before_the_fault() -> None:
    assert touch(a_job(-6 * MINUTE), [DISABLING], LATER) is None


@pytest.mark.parametrize("state", sorted(LOST))
def test_a_job_is_lost_when_it_ended_in_one_of_these_states(state: str) -> None:
    found = touch(a_job(state=state), [a_fault()], LATER)
    assert found is not None
    assert (found.is_harmed, found.outcome) == (True, state)


@pytest.mark.parametrize("state", ["COMPLETED", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE"])
def test_nothing_is_lost_when_a_job_ended_in_another_way(state: str) -> None:
    found = touch(a_job(state=state), [DISABLING], LATER)
    assert found is not None
    assert (found.is_harmed, found.gpu_hours, found.is_estimate) == (False, 0.0, False)


def test_a_loss_is_not_known_when_nobody_saw_the_end() -> None:
    found = touch(a_job(state="UNKNOWN"), [DISABLING], LATER)
    assert found is not None
    assert (found.is_harmed, found.gpu_hours) == (False, None)


def test_a_job_that_hung_until_it_was_cancelled_is_lost_however_late_when_the_part_stayed_unusable() -> (
    None
):
    job = a_job(90 * MINUTE, "CANCELLED")
    found = touch(job, [DISABLING], LATER)
    assert found is not None
    assert (found.is_harmed, found.gpu_hours) == (True, 16 * 1.5)
    ended = a_fault(is_disabling=True, ended_at=T0 + HOUR)
    assert not touch(job, [ended], LATER).is_harmed  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fault", "changes", "hangs"),
    [
        (DISABLING, {}, True),
        (a_fault(), {}, False),
        (a_fault(is_disabling=True, ended_at=T0 + MINUTE), {}, False),
        (DISABLING, {"is_whole": False}, False),
        (DISABLING, {"checkpoint_at": T0 + MINUTE}, False),
        (DISABLING, {"checkpoint_at": T0 - MINUTE}, True),
    ],
)
def test_a_running_job_hangs_when_what_it_needs_is_unusable_and_it_wrote_nothing_since(
    fault: FaultSpan, changes: dict[str, object], hangs: bool
) -> None:
    found = touch(a_job(None, **changes), [fault], LATER)
    assert found is not None
    assert (found.is_hanging, found.outcome) == (hangs, "")


def test_a_job_on_one_node_is_not_met_by_a_fault_between_nodes() -> None:
    fault = a_fault(is_disabling=True, is_between_nodes=True)
    assert touch(a_job(nodes=1), [fault], LATER) is None
    assert touch(a_job(nodes=2), [fault], LATER) is not None


def test_a_job_that_began_under_a_fault_is_met_when_the_fault_stood_then() -> None:
    late = a_job(5 * MINUTE, started_at=T0 + MINUTE)
    assert touch(late, [a_fault()], LATER).is_harmed  # type: ignore[union-attr]
    assert touch(late, [a_fault(ended_at=T0 + MINUTE / 2)], LATER) is None


def test_the_earliest_fault_that_harmed_counts_when_several_met_the_job() -> None:
    first, second = a_fault(began_at=T0 - 30 * MINUTE), a_fault(began_at=T0 - 2 * MINUTE)
    found = touch(a_job(), [second, a_fault(), first], LATER)
    assert found is not None
    assert found.fault_at == second.began_at


@pytest.mark.parametrize(
    ("changes", "hours", "is_estimate"),
    [
        ({}, 16 * 0.5, True),
        ({"checkpoint_at": T0 - 30 * MINUTE}, 16 * 1.0, False),
        ({"checkpoint_at": T0 + 15 * MINUTE}, 16 * 0.25, False),
        ({"checkpoint_at": T0 - 9 * HOUR}, 16 * 1.5, False),
        ({"checkpoint_at": T0 + 9 * HOUR}, 0.0, False),
        ({"gpus": 0}, None, True),
    ],
)
def test_a_loss_is_the_hang_and_the_work_since_the_last_checkpoint(
    changes: dict[str, object], hours: float | None, is_estimate: bool
) -> None:
    assert compute_loss(a_job(30 * MINUTE, **changes), T0, LATER) == (hours, is_estimate)


_TIMES = st.integers(-10_000, 10_000).map(lambda seconds: T0 + timedelta(seconds=seconds))
_MAYBE = st.none() | _TIMES


@given(_TIMES, _MAYBE, _MAYBE, _TIMES, st.integers(0, 64), _TIMES)
def test_a_loss_is_never_negative_and_never_more_than_the_job_had(
    start: datetime,
    end: datetime | None,
    checkpoint: datetime | None,
    fault: datetime,
    gpus: int,
    now: datetime,
) -> None:
    ended_at = None if end is None else max(start, end)
    job = JobSpan(start, ended_at, "FAILED" if end else "RUNNING", 2, gpus, checkpoint)
    hours, _ = compute_loss(job, fault, now)
    ran = max(timedelta(0), (now if ended_at is None else ended_at) - start)
    assert hours is None if not gpus else 0 <= hours <= gpus * (ran / HOUR) + 1e-9  # type: ignore[operator]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 8), st.floats(0, 1e6)), max_size=30))
def test_no_loss_is_counted_twice_when_incidents_share_jobs(
    rows: list[tuple[int, int, float]],
) -> None:
    unique = list(
        {(incident, job): (incident, job, hours) for incident, job, hours in rows}.values()
    )
    largest: dict[int, float] = {}
    for _, job, hours in unique:
        largest[job] = max(hours, largest.get(job, 0.0))
    assert sum(compute_shares(unique).values()) == pytest.approx(sum(largest.values()))


def test_a_sum_is_not_known_when_no_part_of_it_is() -> None:
    assert sum_known([None, None]) is None
    assert sum_known([]) is None
    assert sum_known([None, 1.5, 0.0]) == 1.5


@pytest.mark.parametrize(
    ("harm", "rule", "severity"),
    [
        (Harm(jobs=1, people=1, largest_nodes=17), "large_job", Severity.MAJOR),
        (Harm(jobs=3, people=3, largest_nodes=1), "several_people", Severity.MAJOR),
        (Harm(out_share=0.10), "tenth_of_a_partition", Severity.CRITICAL),
        (Harm(jobs=9, people=2, largest_nodes=16, out_share=0.09), None, None),
    ],
)
def test_severity_rises_when_a_limit_is_reached(
    harm: Harm, rule: str | None, severity: Severity | None
) -> None:
    found = find_lifted_severity(Severity.MINOR, harm)
    assert (
        (rule, severity) == (None, None)
        if found is None
        else (found[1].name, found[0]) == (rule, severity)
    )


@given(
    st.sampled_from(Severity),
    st.builds(Harm, people=st.integers(0, 9), largest_nodes=st.integers(0, 99)),
)
def test_severity_never_sinks_by_impact(own: Severity, harm: Harm) -> None:
    found = find_lifted_severity(own, harm)
    assert found is None or found[0].rank > own.rank


def test_every_rule_of_severity_has_a_limit_and_says_where_it_is_from() -> None:
    for rule in LIFTS:
        assert rule.people or rule.largest_nodes or rule.out_share
        assert rule.source
        assert rule.because
    assert len({rule.name for rule in LIFTS}) == len(LIFTS)


@pytest.mark.parametrize(
    ("tally", "words"),
    [
        (
            ImpactTally(3, 2, 2, 64, 12.5, is_estimate=True, is_over=False),
            "3 jobs of 2 people, 64 nodes, 2 lost or hanging; at least 12.5 GPU-hours lost so far",
        ),
        (
            ImpactTally(1, 1, 1, 1, 1200.0, is_estimate=False, is_over=True),
            "1 job of 1 person, 1 node, 1 lost or hanging; 1,200.0 GPU-hours lost",
        ),
        (
            ImpactTally(1, 0, 1, 2, 0.0, is_estimate=False, is_over=False),
            "1 job of 1 person, 2 nodes; none of them is known",
        ),
        (ImpactTally(1, 1, 1, 2, None, is_estimate=True, is_over=True), "GPU-hours lost not known"),
        (ImpactTally(1, 1, 1, 2, 0.0, is_estimate=True, is_over=True), "GPU-hours lost not known"),
        (
            ImpactTally(0, 0, 0, 2, None, is_estimate=False, is_over=False),
            "no job ran on its 2 nodes",
        ),
        (ImpactTally(0, 0, 0, 0, None, is_estimate=False, is_over=False), ""),
    ],
)
def test_an_impact_is_said_in_one_line(tally: ImpactTally, words: str) -> None:
    assert words in tally.format_words()
    assert bool(words) == bool(tally.format_words())
