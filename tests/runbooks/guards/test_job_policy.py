"""The job policy: its file says what is wrong with it, and of each job one deed is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.guards import job_policy
from runbooks.guards.job_policy import CaredJob, Deed, JobPolicy, JobPolicyError, Then
from runbooks.slurm.jobs import SlurmJob

SEEN = datetime(2025, 1, 15, 3, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DONE = CaredJob(is_told=True, is_signalled=True)
WHOLE = JobPolicy(
    ("gpu",),
    tells=True,
    signal="USR1",
    requeues_at_checkpoint=True,
    longest=30 * MINUTE,
    then=Then.REQUEUE,
)


def a_job(*, saved_at: datetime | None = None, is_requeueable: bool = True) -> SlurmJob:
    return SlurmJob(
        "77",
        "alice",
        "train",
        "RUNNING",
        ("gn001",),
        8,
        checkpoint_at=saved_at,
        is_requeueable=is_requeueable,
        partition="gpu",
    )


def choose(
    job: SlurmJob, *, policy: JobPolicy = WHOLE, cared: CaredJob = DONE, after: timedelta = MINUTE
) -> Deed:
    return job_policy.choose_deed(job, policy, cared, seen_at=SEEN, now=SEEN + after)


def test_a_file_is_read_by_partition_and_by_all_others(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        """
        [[partition]]
        names = ["train", "large"]
        tell = true
        signal = "B:USR1"
        requeue_at_checkpoint = true
        longest = "90m"
        then = "requeue"

        [[partition]]
        names = ["*"]
        tell = true
        """
    )
    policies = job_policy.load(path)
    assert job_policy.find_policy(policies, "large") == JobPolicy(
        ("train", "large"),
        tells=True,
        signal="USR1",
        is_batch=True,
        requeues_at_checkpoint=True,
        longest=90 * MINUTE,
        then=Then.REQUEUE,
    )
    assert job_policy.find_policy(policies, "debug") == JobPolicy(("*",), tells=True)
    assert job_policy.find_policy(policies[:1], "debug") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[partitions]]\nnames = ["gpu"]', "[[partition]] tables and nothing else"),
        ('[[partition]]\nnames = "gpu"', "no list of partitions"),
        ("[[partition]]\ntell = true", "no list of partitions"),
        ('[[partition]]\nnames = ["gpu"]\nsignal = "KILL"', "USR1, USR2, HUP or URG"),
        ('[[partition]]\nnames = ["gpu"]\nsignal = "USR1; reboot"', "USR1, USR2, HUP or URG"),
        ('[[partition]]\nnames = ["gpu"]\nthen = "kill"', "one of ask, requeue"),
        ('[[partition]]\nnames = ["gpu"]\ntell = "yes"', "true or false"),
        ('[[partition]]\nnames = ["gpu"]\nlongest = 30', "a duration"),
        ('[[partition]]\nnames = ["gpu"]\nkill = true', "other keys"),
        ('[[partition]]\nnames = ["a"]\n[[partition]]\nnames = ["a"]', "stands in two tables"),
        ("names = [", "cannot be read"),
    ],
)
def test_a_file_that_is_not_as_expected_is_refused_with_its_name(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(JobPolicyError) as caught:
        job_policy.load(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_the_owner_is_told_first_then_the_job_is_asked_for_a_checkpoint_then_it_is_waited_for() -> (
    None
):
    assert choose(a_job(), cared=CaredJob()) is Deed.TELL
    assert choose(a_job(), cared=CaredJob(is_told=True)) is Deed.SIGNAL
    assert choose(a_job()) is Deed.WAIT


def test_a_checkpoint_that_is_newer_than_what_was_seen_lets_the_job_start_anew() -> None:
    assert choose(a_job(saved_at=SEEN - MINUTE)) is Deed.WAIT
    assert choose(a_job(saved_at=SEEN + MINUTE)) is Deed.REQUEUE
    kept = a_job(saved_at=SEEN + MINUTE, is_requeueable=False)
    assert choose(kept) is Deed.WAIT


@pytest.mark.parametrize(
    ("then", "is_requeueable", "deed"),
    [
        (Then.REQUEUE, True, Deed.REQUEUE),
        (Then.REQUEUE, False, Deed.ASK),
        (Then.ASK, True, Deed.ASK),
    ],
)
def test_without_progress_the_policy_decides_at_its_end_and_not_before(
    then: Then, is_requeueable: bool, deed: Deed
) -> None:
    policy = JobPolicy(("gpu",), longest=30 * MINUTE, then=then)
    job = a_job(saved_at=SEEN + 10 * MINUTE, is_requeueable=is_requeueable)
    assert choose(job, policy=policy, after=39 * MINUTE) is Deed.WAIT
    assert choose(job, policy=policy, after=40 * MINUTE) is deed


@given(
    tells=st.booleans(),
    signal=st.sampled_from(["", "USR1"]),
    at_checkpoint=st.booleans(),
    then=st.sampled_from(Then),
    is_requeueable=st.booleans(),
    saved=st.one_of(st.none(), st.integers(-60, 60)),
    after=st.integers(0, 600),
    told=st.booleans(),
    signalled=st.booleans(),
)
def test_no_job_is_requeued_that_may_not_be_or_by_a_policy_that_only_asks(
    tells: bool,
    signal: str,
    at_checkpoint: bool,
    then: Then,
    is_requeueable: bool,
    saved: int | None,
    after: int,
    told: bool,
    signalled: bool,
) -> None:
    policy = JobPolicy(
        ("gpu",), tells=tells, signal=signal, requeues_at_checkpoint=at_checkpoint, then=then
    )
    saved_at = SEEN + saved * MINUTE if saved is not None else None
    job = a_job(saved_at=saved_at, is_requeueable=is_requeueable)
    deed = choose(job, policy=policy, cared=CaredJob(told, signalled), after=after * MINUTE)
    if deed is Deed.REQUEUE:
        assert is_requeueable
        assert at_checkpoint or then is Then.REQUEUE
    if deed is Deed.SIGNAL:
        assert signal
        assert not signalled
