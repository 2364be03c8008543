"""Jobs as squeue and sacct print them: what is read, what is left out, and that nothing breaks the
readers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.slurm import output
from detectors.slurm.job_records import (
    TOTALS_WIDTHS,
    parse_checkpoint,
    parse_ended_jobs,
    parse_listed_jobs,
)

BEGIN = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
US = "\x1f"


def cells(line: str) -> str:
    """A row as squeue and sacct of Slurm 22.05 print it: each cell ends with what parts them."""
    return line.replace("|", US) + f"{US}\n"


RUNS = cells(
    "17|RUNNING|alice|gpu|2025-01-15T03:00:00|2026-01-15T03:00:00|gres:gpu:h100:8|gn[001-002]|train|(null)"
)
ENDED = cells(
    "17|CANCELLED by 1000|alice|gpu|2025-01-15T03:00:00|2025-01-15T04:00:00|"
    "billing=2,cpu=2,gres/gpu=16,gres/gpu:h100=16,node=2|gn[001-002]|train|checkpoint=1736911800"
)


def test_a_running_job_has_no_end_when_squeue_prints_its_time_limit() -> None:
    (job,) = parse_listed_jobs(RUNS, between=US)
    assert (job.job_id, job.state, job.user, job.partition) == ("17", "RUNNING", "alice", "gpu")
    assert (job.started_at, job.ended_at, job.nodes, job.gpus) == (
        BEGIN,
        None,
        ("gn001", "gn002"),
        16,
    )


def test_an_ended_job_has_its_state_alone_its_end_and_its_checkpoint() -> None:
    (job,) = parse_ended_jobs(ENDED, between=US)
    assert (job.state, job.gpus) == ("CANCELLED", 16)
    assert job.ended_at == datetime(2025, 1, 15, 4, 0, tzinfo=UTC)
    assert job.checkpoint_at == datetime(2025, 1, 15, 3, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("per_node", "tres", "gpus"),
    [
        ("gres:gpu:8", "", 16),
        ("gres/gpu:8", "cpu=2,node=2,billing=2", 16),
        ("N/A", "cpu=2,gres/gpu=3,node=2", 3),
        ("N/A", "cpu=2,gres/gpu:h100=2,gres/gpu:a100=4", 6),
        ("N/A", "cpu=2,node=2", 0),
        ("gres:gpu_mem:80", "", 0),
    ],
)
def test_gpus_are_those_of_the_whole_job_or_not_known(per_node: str, tres: str, gpus: int) -> None:
    (job,) = parse_listed_jobs(
        RUNS.replace("gres:gpu:h100:8", per_node), f"17                  {tres}\n", between=US
    )
    assert job.gpus == gpus


@pytest.mark.parametrize(
    "line",
    [
        "17|CANCELLED|alice|gpu|Unknown|2025-01-15T04:00:00||None assigned|train|",
        "17|CANCELLED|alice|gpu|2025-01-15T03:00:00|Unknown||gn001|train|",
        "17|PENDING|alice|gpu|N/A|N/A|N/A||train|(null)",
        "slurm_load_jobs error: Unable to contact slurm controller",
        "",
    ],
)
def test_a_line_is_left_out_when_it_tells_no_start_no_end_or_no_node(line: str) -> None:
    assert parse_listed_jobs(cells(line), between=US) == []
    assert parse_ended_jobs(cells(line), between=US) == []


@pytest.mark.parametrize(
    ("comment", "at"),
    [
        ("checkpoint=2025-01-15T03:30:00Z", datetime(2025, 1, 15, 3, 30, tzinfo=UTC)),
        ("checkpoint=2025-01-15T12:30:00+09:00", datetime(2025, 1, 15, 3, 30, tzinfo=UTC)),
        (
            "step 7 checkpoint=1736910000 checkpoint=1736911800",
            datetime(2025, 1, 15, 3, 30, tzinfo=UTC),
        ),
        ("checkpoint=soon", None),
        ("checkpoint=12", None),
        ("", None),
    ],
)
def test_the_last_checkpoint_is_what_the_comment_says(comment: str, at: datetime | None) -> None:
    assert parse_checkpoint(comment) == at


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert isinstance(parse_listed_jobs(text, text, between=US), list)
    assert isinstance(parse_ended_jobs(f"{ENDED}\n{text}", between=US), list)


@given(st.lists(st.text(alphabet="|0123456789-T:=abN[],", max_size=30), min_size=10, max_size=10))
def test_any_cells_are_read_without_an_error(written: list[str]) -> None:
    text = "".join(f"{cell}{US}" for cell in written)
    for job in (*parse_listed_jobs(text, between=US), *parse_ended_jobs(text, between=US)):
        assert job.nodes


@pytest.mark.parametrize("at", [8, 9])
def test_a_row_that_a_user_writes_into_a_name_or_comment_is_no_job_of_another(at: int) -> None:
    forged = cells(
        "4|FAILED|bob|gpu|2025-01-15T03:00:00|2025-01-15T04:00:00|gres/gpu=8|gn009|train|"
    )
    between = output.create_separator()
    written = RUNS.split(US)
    written[at] = f"x\n{forged}"
    for read in (parse_listed_jobs, parse_ended_jobs):
        assert [job.user for job in read(between.join(written) * 2, between=between)] == [
            "alice",
            "alice",
        ]


@pytest.mark.parametrize(
    ("of_job", "of_task", "tasks", "gpus"),
    [
        # sbatch --gpus=3, as squeue of 22.05 and of 24.11 prints it
        ("gres:gpu:3", "N/A", "1", 3),
        ("gres/gpu:3", "N/A", "1", 3),
        # sbatch --ntasks=2 --gpus-per-task=1
        ("N/A", "gres:gpu:1", "2", 2),
        ("N/A", "gres/gpu=1", "2", 2),
        ("N/A", "N/A", "1", 0),
        ("N/A", "gres/gpu=1", "many", 0),
    ],
)
def test_gpus_are_what_a_job_asked_for_where_slurm_keeps_no_count_of_those_it_gave(
    of_job: str, of_task: str, tasks: str, gpus: int
) -> None:
    allocated = "cpu=1,node=1,billing=1"
    widths = TOTALS_WIDTHS
    cells_of_job = ("17", allocated, of_job, of_task, tasks)
    totals = "".join(cell.ljust(width) for cell, width in zip(cells_of_job, widths, strict=True))
    line = "17|RUNNING|alice|gpu|2025-01-15T03:00:00|N/A|N/A|gn001|train|(null)"
    (job,) = parse_listed_jobs(cells(line), totals, between=US)
    assert job.gpus == gpus
