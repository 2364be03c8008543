"""What is remembered of jobs: each start once, its end never taken back, and who ran where at a
time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from detectors.slurm.job_records import JobRecord
from incidents.jobs import jobs
from incidents.models import Job, JobNode
from tests.incidents.builders import T0, an_incident

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def a_record(job_id: str = "4711", **changes: Any) -> JobRecord:
    """A job of alice that runs on gn001 and gn002 since an hour."""
    values: dict[str, Any] = {
        "state": "RUNNING",
        "started_at": T0 - timedelta(hours=1),
        "nodes": ("gn001", "gn002"),
        "user": "alice",
        "name": "train",
        "partition": "gpu",
        "gpus": 16,
    }
    return JobRecord(job_id, **{**values, **changes})


def ended(job_id: str = "4711", *, at: datetime = T0, **changes: Any) -> JobRecord:
    return a_record(job_id, **{"state": "FAILED", "ended_at": at, **changes})


def only_job() -> Job:
    return Job.objects.get()


def test_a_start_is_one_row_when_it_is_told_again() -> None:
    assert jobs.store_jobs([a_record(), a_record()], T0) == 1
    assert jobs.store_jobs([a_record()], T0 + MINUTE) == 0
    assert JobNode.objects.count() == 2
    assert only_job().seen_at == T0 + MINUTE


def test_the_end_is_kept_when_an_older_list_still_shows_the_job_as_running() -> None:
    jobs.store_jobs([ended(state="NODE_FAIL")], T0)
    jobs.store_jobs([a_record()], T0 + MINUTE)
    assert (only_job().state, only_job().ended_at) == ("NODE_FAIL", T0)


def test_the_end_is_taken_when_one_list_tells_both() -> None:
    jobs.store_jobs([ended(), a_record()], T0)
    assert only_job().ended_at == T0
    assert set(JobNode.objects.values_list("ended_at", flat=True)) == {T0}


def test_a_requeued_job_is_a_second_row_when_it_starts_again() -> None:
    jobs.store_jobs([a_record()], T0)
    jobs.store_jobs([a_record(started_at=T0 + MINUTE, nodes=("gn003",))], T0 + 2 * MINUTE)
    first, second = Job.objects.order_by("started_at")
    assert (first.state, first.ended_at) == ("REQUEUED", T0)
    assert second.ended_at is None


def test_the_accounts_say_how_it_ended_when_only_its_requeue_was_seen() -> None:
    jobs.store_jobs([a_record()], T0)
    jobs.store_jobs([a_record(started_at=T0 + MINUTE)], T0 + 2 * MINUTE)
    jobs.store_jobs([ended(state="NODE_FAIL", at=T0 + MINUTE / 2)], T0 + 3 * MINUTE)
    first = Job.objects.earliest("started_at")
    assert (first.state, first.ended_at) == ("NODE_FAIL", T0 + MINUTE / 2)


def test_a_job_ends_in_an_unknown_way_when_a_whole_list_no_longer_holds_it() -> None:
    jobs.store_jobs([a_record("1"), a_record("2")], T0)
    jobs.store_jobs([a_record("2")], T0 + MINUTE, whole_of="slurm")
    gone = Job.objects.get(job_id="1")
    assert (gone.state, gone.ended_at) == (jobs.UNKNOWN_END, T0)
    assert Job.objects.get(job_id="2").ended_at is None


def test_a_job_runs_on_when_the_list_that_lacks_it_is_of_a_part_or_of_another_cluster() -> None:
    jobs.store_jobs([a_record()], T0)
    jobs.store_jobs([a_record("2")], T0 + MINUTE)
    jobs.store_jobs([a_record("3", cluster="other")], T0 + MINUTE, whole_of="other")
    assert Job.objects.get(job_id="4711").ended_at is None


def test_a_job_runs_again_when_it_is_listed_after_a_list_that_lacked_it() -> None:
    jobs.store_jobs([a_record()], T0)
    jobs.store_jobs([], T0 + MINUTE, whole_of="slurm")
    jobs.store_jobs([a_record()], T0 + 2 * MINUTE, whole_of="slurm")
    assert (only_job().state, only_job().ended_at) == ("RUNNING", None)
    assert set(JobNode.objects.values_list("ended_at", flat=True)) == {None}


def test_nodes_stay_known_when_a_job_goes_on_without_one_and_are_added_when_it_grows() -> None:
    jobs.store_jobs([a_record()], T0)
    jobs.store_jobs([a_record(nodes=("gn001",))], T0 + MINUTE)
    assert only_job().node_count == 2
    jobs.store_jobs([a_record(nodes=("gn001", "gn002", "gn003"))], T0 + 2 * MINUTE)
    assert set(JobNode.objects.values_list("node", flat=True)) == {"gn001", "gn002", "gn003"}


def test_the_latest_checkpoint_counts_when_several_are_told() -> None:
    jobs.store_jobs([a_record(checkpoint_at=T0)], T0)
    jobs.store_jobs([a_record(checkpoint_at=T0 - MINUTE)], T0 + MINUTE)
    assert only_job().checkpoint_at == T0


def test_who_runs_on_a_machine_is_told_with_all_machines_of_the_job() -> None:
    jobs.store_jobs([a_record(), a_record("2", nodes=("gn009",))], T0)
    on, of = jobs.get_running_on({"node/gn001", "switch/leaf-01"}, at=T0, around=MINUTE)
    assert on == {"node/gn001": frozenset({"site/slurm/job/4711"})}
    assert of == {"site/slurm/job/4711": frozenset({"node/gn001", "node/gn002"})}


@pytest.mark.parametrize(
    ("end", "is_there"),
    [
        (None, True),
        (T0 - 10 * MINUTE, True),
        (T0 - 11 * MINUTE, False),
        (T0 + timedelta(days=1), True),
    ],
)
def test_a_job_counts_when_it_had_not_ended_before_the_time_around(
    end: datetime | None, is_there: bool
) -> None:
    jobs.store_jobs([a_record() if end is None else ended(at=end)], T0 + timedelta(days=1))
    on, _ = jobs.get_running_on(["node/gn001"], at=T0, around=10 * MINUTE)
    assert bool(on) is is_there


def test_a_job_does_not_count_when_it_started_after_the_time_around() -> None:
    jobs.store_jobs([a_record(started_at=T0 + 2 * MINUTE)], T0 + 3 * MINUTE)
    assert jobs.get_running_on(["node/gn001"], at=T0, around=MINUTE) == ({}, {})
    assert jobs.get_running_on([], at=T0, around=MINUTE) == ({}, {})


def test_questions_to_the_database_do_not_grow_with_the_machines(
    django_assert_num_queries: Any,
) -> None:
    names = [f"gn{number:04d}" for number in range(1, 1001)]
    jobs.store_jobs(
        [
            a_record(str(number), nodes=tuple(names[number : number + 4]))
            for number in range(0, 1000, 4)
        ],
        T0,
    )
    with django_assert_num_queries(2):
        on, of = jobs.get_running_on([f"node/{name}" for name in names], at=T0, around=MINUTE)
    assert (len(on), len(of)) == (1000, 250)


def test_old_jobs_are_forgotten_unless_an_incident_touched_them() -> None:
    long_ago = T0 - jobs.KEPT - timedelta(days=2)
    old = {"started_at": long_ago, "ended_at": long_ago + MINUTE, "state": "FAILED"}
    jobs.store_jobs([a_record("1", **old), a_record("2", **old), a_record("3")], T0)
    an_incident().jobs.create(job=Job.objects.get(job_id="2"), recorded_at=T0)
    assert jobs.forget(T0) == 1
    assert sorted(Job.objects.values_list("job_id", flat=True)) == ["2", "3"]
