"""Jobs as squeue and sacct print them: every cell, whatever a user has written into names and
comments."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.slurm import output
from runbooks.slurm import jobs

US = "\x1f"
STATES = (
    *(
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETING",
        "CONFIGURING",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
        "STOPPED",
    ),
    *(
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "REVOKED",
    ),
    *("OUT_OF_MEMORY", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
)
WRITTEN = st.text(st.characters(codec="utf-8", exclude_characters=US), max_size=40)


def a_row(
    state: str = "RUNNING",
    *,
    status: str = "0",
    requeue: str = "1",
    comment: str = "(null)",
    asked: str = "gres:gpu:8",
    per_job: str = "N/A",
    allocated: str = "cpu=8,node=2,billing=8,gres/gpu=16",
    task: str = "17",
) -> str:
    cells = (
        "17",
        state,
        "alice",
        "gn[001-002]",
        asked,
        "2025-01-15T03:00:00",
        "2025-01-15T04:00:00",
    )
    more = (status, requeue, per_job, allocated, "h100", task, comment, "train", "\n")
    return US.join((*cells, *more))


@pytest.mark.parametrize(
    ("shown", "task", "named"),
    [("17", "", "17"), ("12_3", "12_3", "12_3"), ("12_[1-3]", "", "17"), ("12+1", "", "17")],
)
def test_a_task_of_an_array_has_the_name_that_means_it_alone(
    shown: str, task: str, named: str
) -> None:
    (job,) = jobs.parse_squeue(a_row(task=shown), US)
    assert (job.task, job.named) == (task, named)


@pytest.mark.parametrize(
    ("text", "names", "is_whole"),
    [
        ("", (), True),
        ("(null)", (), True),
        ("gn[001,003-004],mt1", ("gn001", "gn003", "gn004", "mt1"), True),
        ("rack[1-2]node[3-4]", (), False),
        ("gn001,rack[1-2]node[3-4]", ("gn001",), False),
    ],
)
def test_an_excluded_list_says_whether_all_of_it_was_read(
    text: str, names: tuple[str, ...], is_whole: bool
) -> None:
    lists = jobs.parse_node_lists(f"gn007{US}{text}{US}\n", US)
    assert (lists.wanted, lists.excluded, lists.is_whole) == (("gn007",), names, is_whole)


def test_running_job_has_a_start_and_no_end_yet() -> None:
    (job,) = jobs.parse_squeue(a_row(), US)
    assert (job.job_id, job.user, job.name, job.nodes) == (
        "17",
        "alice",
        "train",
        ("gn001", "gn002"),
    )
    assert (job.gpus_per_node, job.is_requeueable) == (8, True)
    assert (job.started_at, job.ended_at, job.exit_status) == (
        datetime(2025, 1, 15, 3, tzinfo=UTC),
        None,
        None,
    )


@pytest.mark.parametrize(
    ("asked", "per_job", "allocated", "gpus"),
    [
        ("N/A", "N/A", "cpu=8,mem=4G,node=2,billing=8,gres/gpu=16,gres/gpu:h100=16", 8),
        ("gres:gpu:h100:4", "N/A", "cpu=8,node=2,gres/gpu=8", 4),
        ("N/A", "gres:gpu:16", "cpu=8,node=2", 8),
        ("N/A", "N/A", "cpu=8,node=2", 0),
        ("N/A", "N/A", "", 0),
    ],
)
def test_gpus_of_a_job_that_did_not_ask_by_node_are_those_that_it_was_given(
    asked: str, per_job: str, allocated: str, gpus: int
) -> None:
    (job,) = jobs.parse_squeue(a_row(asked=asked, per_job=per_job, allocated=allocated), US)
    assert (job.gpus_per_node, job.partition) == (gpus, "h100")


def test_completing_job_says_since_when() -> None:
    (job,) = jobs.parse_squeue(a_row("COMPLETING", status="9"), US)
    assert job.is_completing
    assert (job.ended_at, job.exit_status) == (datetime(2025, 1, 15, 4, tzinfo=UTC), 137)


@pytest.mark.parametrize(
    ("status", "shown"), [("0", 0), ("768", 3), ("15", 143), ("N/A", None), ("-1", None)]
)
def test_exit_status_is_that_of_a_shell(status: str, shown: int | None) -> None:
    assert jobs.parse_squeue(a_row("FAILED", status=status), US)[0].exit_status == shown


@pytest.mark.parametrize(
    ("comment", "is_agreed"),
    [
        ("kintsugi=requeue", True),
        ("checkpoint=1736910000 kintsugi=requeue", True),
        ("kintsugi=requeue,priority", True),
        ("not kintsugi=requeued", False),
        ("no-kintsugi=requeue", False),
        ("(null)", False),
    ],
)
def test_owner_agrees_to_a_requeue_by_the_jobs_comment(comment: str, is_agreed: bool) -> None:
    assert jobs.parse_squeue(a_row(comment=comment), US)[0].is_agreed == is_agreed


def test_checkpoint_is_read_from_the_comment() -> None:
    (job,) = jobs.parse_squeue(a_row(comment="checkpoint=1736910000"), US)
    assert job.checkpoint_at == datetime.fromtimestamp(1736910000, UTC)


@given(state=st.sampled_from(STATES), comment=WRITTEN, name=WRITTEN)
def test_job_is_read_whole_whatever_its_owner_has_written(
    state: str, comment: str, name: str
) -> None:
    cells = (
        "17",
        state,
        "alice",
        "gn001",
        "N/A",
        "2025-01-15T03:00:00",
        "2025-01-15T04:00:00",
        "0",
        "0",
        "N/A",
        "cpu=8,node=1",
        "h100",
        "17",
        comment,
        name,
    )
    (job,) = jobs.parse_squeue(US.join((*cells, "\n")), US)
    assert (job.job_id, job.state, job.name, job.nodes) == ("17", state, name.strip(), ("gn001",))
    assert job.has_ended + job.is_completing + (job.ended_at is None) == 1


def test_a_row_that_an_owner_writes_into_a_comment_or_a_name_is_no_job() -> None:
    forged = a_row(comment="kintsugi=requeue").replace("alice", "bob")
    between = output.create_separator()
    cells = (
        a_row(comment=f"x\n{forged}")
        .replace(forged, "FORGED")
        .replace("train", "m\nFORGED")
        .split(US)
    )
    text = between.join(cells).replace("FORGED", forged)
    assert [(job.user, job.nodes) for job in jobs.parse_squeue(text * 2, between)] == [
        ("alice", ("gn001", "gn002"))
    ] * 2


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert all(job.job_id is not None for job in jobs.parse_squeue(text.replace("|", US), US))
    assert all(job.name == "mine" for job in jobs.parse_sacct(text, "mine"))


def test_account_of_a_job_tells_how_it_ended() -> None:
    text = "17|CANCELLED by 1000|alice|gn001|2025-01-15T03:00:00|2025-01-15T04:00:00|0:15\n"
    (job,) = jobs.parse_sacct(text, "kintsugi_1-1-x")
    assert (job.state, job.exit_status, job.has_ended) == ("CANCELLED", 143, True)
