"""Jobs as the steps see them, read from squeue and sacct. Pure; what cannot be read is left out,
never guessed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from detectors.slurm import job_records, output

_COLUMNS = (
    *(
        "JobID",
        "State",
        "UserName",
        "NodeList",
        "tres-per-node",
        "StartTime",
        "EndTime",
        "exit_code",
        "Requeue",
    ),
    *("tres-per-job", "tres-alloc", "Partition", "JobArrayID", "Comment", "Name"),
)
_SACCT_COLUMNS = "JobIDRaw,State,User,NodeList,Start,End,ExitCode"
# How far back our own jobs are looked for in the accounts: our choice, longer than any test or
# burn-in of ours.
SACCT = (
    *(
        "sacct",
        "--allocations",
        "--noheader",
        "--parsable2",
        "--starttime=now-15days",
        "--endtime=now",
    ),
    f"--format={_SACCT_COLUMNS}",
)
_EXIT_CODE = re.compile(r"(\d{1,3}):(\d{1,3})")
_WAIT_STATUS = re.compile(r"\d{1,6}")
# One pair of brackets in a name, as `output.iterate_hosts` reads it.
_BRACKETS = re.compile(r"(?:^|,)[^\[\],]*\[[0-9,-]*\][^\[\],]*(?=,|$)")
# As many as one argument holds: 128 KiB (MAX_ARG_STRLEN, include/uapi/linux/binfmts.h).
_MOST_EXCLUDED = 8_000
_TASK = re.compile(r"[0-9]{1,10}_[0-9]{1,10}")
_AGREED = re.compile(r"(?<![\w=-])kintsugi=requeue(?![\w=-])")
_WORKS = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "CONFIGURING"})
_COMPLETES = frozenset({"COMPLETING", "STAGE_OUT"})
_WAITS = frozenset(
    {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)


@dataclass(frozen=True)
class SlurmJob:
    """`gpus_per_node` is 0 where Slurm does not say. Times are UTC.

    `ended_at` is set once the job's own processes were told to end: for a job that is COMPLETING,
    since when. `ends_at` is when its time limit ends one that runs, None where it has none.
    `exit_status` is the batch script's, as a shell tells it (128 and more: killed by a
    signal), None until it ended. `is_requeueable`: Slurm may start it anew. `checkpoint_at` is what
    its comment says of its last checkpoint. `is_agreed`: its comment says `kintsugi=requeue`, which
    only its owner and operators can write. `partition` is empty where Slurm does not say.

    `task` is what Slurm's programs call one task of a job array (17_3), empty for other jobs: the
    `job_id` of its last task means the whole array to them (seen in 22.05 and 24.11).
    """

    job_id: str
    user: str
    name: str
    state: str
    nodes: tuple[str, ...]
    gpus_per_node: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_status: int | None = None
    is_requeueable: bool = False
    checkpoint_at: datetime | None = None
    is_agreed: bool = False
    partition: str = ""
    task: str = ""
    ends_at: datetime | None = None

    @property
    def named(self) -> str:
        """As commands name it: this job, or this task and no other."""
        return self.task or self.job_id

    @property
    def is_completing(self) -> bool:
        """It has ended, and its node still has something of it: processes, an epilog."""
        return self.state in _COMPLETES

    @property
    def has_ended(self) -> bool:
        """Nothing of it is left anywhere, and it does not wait to be started."""
        return not (self.state in _WORKS or self.is_completing or self.state in _WAITS)


def build_squeue(between: str) -> tuple[str, ...]:
    """squeue(1), --Format: `type:suffix`, so that each cell ends with `between`
    (`slurm_output.secret_between`)."""
    return (
        "squeue",
        "--all",
        "--noheader",
        "--Format=" + ",".join(f"{column}:{between}" for column in _COLUMNS),
    )


def parse_squeue(text: str, between: str) -> list[SlurmJob]:
    """Output of `squeue`. Jobs past MOST_PLACES names of nodes are left out: no cluster has so many
    places."""
    found: list[SlurmJob] = []
    places = 0
    for cells in output.iterate_rows(text, between, len(_COLUMNS)):
        job = _parse_squeue_row(cells)
        places += len(job.nodes)
        if places > output.MOST_PLACES:
            break
        found.append(job)
    return found


@dataclass(frozen=True)
class NodeLists:
    """Nodes that a job asks for by name, and that it excludes: by name, and as Slurm writes
    them."""

    wanted: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    text: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the names are all that the text excludes: no part of it has a form that is not
        read."""
        if len(self.excluded) >= _MOST_EXCLUDED:
            return False
        closed = sum(1 for _ in _BRACKETS.finditer(self.text))
        return closed == self.text.count("[")


def parse_node_lists(text: str, between: str) -> NodeLists:
    """Of one job, `squeue --format=%n%x`."""
    for wanted, excluded in output.iterate_rows(text, between, 2):
        written = "" if excluded == "(null)" else excluded
        return NodeLists(_parse_hosts(wanted), _parse_hosts(excluded), written)
    return NodeLists()


def parse_sacct(text: str, name: str) -> list[SlurmJob]:
    """Output of `SACCT` for jobs of one name, in its order: the oldest first."""
    rows = (line.split("|") for line in text.splitlines())
    return [
        _parse_sacct_row(row, name) for row in rows if len(row) == _SACCT_COLUMNS.count(",") + 1
    ]


def _parse_squeue_row(cells: Sequence[str]) -> SlurmJob:
    job_id, state, user, nodes, gpus, started, ended, status, requeue, *more = cells
    per_job, allocated, partition, task, comment, name = more
    has_begun = state not in _WAITS
    has_ended = has_begun and state not in _WORKS
    hosts = _parse_hosts(nodes)
    # What it was given is shown where AccountingStorageTRES names gres/gpu.
    of_all_nodes = output.count_gpus(allocated) or output.count_gpus(per_job)
    gpus_per_node = output.count_gpus(gpus) or of_all_nodes // max(1, len(hosts))
    started_at = _parse_time(started) if has_begun else None
    ends_at = _parse_time(ended) if has_begun else None
    ended_at = ends_at if has_ended else None
    exit_status = _parse_exit(status) if has_ended else None
    checkpoint_at = job_records.parse_checkpoint(comment)
    is_requeueable = requeue == "1"
    is_agreed = has_agreement(comment)
    array_task = task if _TASK.fullmatch(task) else ""
    limit_at = None if has_ended else ends_at
    return SlurmJob(
        job_id,
        user,
        name,
        state,
        hosts,
        gpus_per_node,
        started_at,
        ended_at,
        exit_status,
        is_requeueable=is_requeueable,
        checkpoint_at=checkpoint_at,
        is_agreed=is_agreed,
        partition=partition,
        task=array_task,
        ends_at=limit_at,
    )


def _parse_sacct_row(cells: Sequence[str], name: str) -> SlurmJob:
    job_id, state, user, nodes, started, ended, status = cells
    word = state.split(" ", 1)[0].upper()
    has_ended = word not in _WORKS and word not in _WAITS
    hosts, started_at = _parse_hosts(nodes), _parse_time(started)
    ended_at = _parse_time(ended) if has_ended else None
    exit_status = _parse_exit(status) if has_ended else None
    return SlurmJob(
        job_id,
        user,
        name,
        word,
        hosts,
        started_at=started_at,
        ended_at=ended_at,
        exit_status=exit_status,
    )


def _parse_exit(text: str) -> int | None:
    """`status:signal` as sacct prints it, and squeue of 23.02 and later; what wait(2) gave as
    squeue of 22.05 prints it: 768 is status 3, 9 is killed by signal 9."""
    pair = _EXIT_CODE.fullmatch(text)
    if pair is not None:
        return _compute_shell_status(int(pair[1]), int(pair[2]))
    if not _WAIT_STATUS.fullmatch(text):
        return None
    number = int(text)
    return _compute_shell_status(number >> 8, number & 127)


def _compute_shell_status(status: int, signal: int) -> int:
    if status or not signal:
        return status
    return 128 + signal


def has_agreement(comment: str) -> bool:
    """Whether a job's owner lets Kintsugi start it anew elsewhere."""
    return _AGREED.search(comment) is not None


def _parse_hosts(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)", "None assigned") else tuple(output.iterate_hosts(text))


def _parse_time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
    return at if at.year > 1970 else None
