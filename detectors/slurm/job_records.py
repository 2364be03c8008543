"""A job as Slurm's lists and accounts show it, with its times, and the readers of both. Pure; total
on any text.

What a line does not say is left empty, never guessed. Python 3.9, standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Optional

from detectors.slurm import output

# Of the states of jobs, those in which a node works or ends its work:
# https://slurm.schedmd.com/squeue.html.
RUNNING = frozenset(
    {
        "RUNNING",
        "COMPLETING",
        "STAGE_OUT",
        "STOPPED",
        "SIGNALING",
        "SUSPENDED",
        "CONFIGURING",
        "RESIZING",
    }
)
# What a job's comment may say of its last checkpoint, in seconds since 1970 or as ISO 8601: the
# last one counts.
_CHECKPOINT = re.compile(r"\bcheckpoint=(?P<at>[0-9][0-9T:.Z+-]{0,40})")
_TOTAL = re.compile(r"\bgres/gpu=(\d{1,7})\b")
_TYPED = re.compile(r"\bgres/gpu:[^=,]{1,64}=(\d{1,7})\b")
# Of the cells that `slurm_queries.JOB_TOTALS` asks for.
TOTALS_WIDTHS = (20, 200, 60, 60, 12)
_COUNT = re.compile(r"[0-9]{1,7}")
_ASKED = re.compile(r"\bgpu(?::[A-Za-z][\w.-]{0,60})?[:=](\d{1,6})\b")
_EPOCH = re.compile(r"\d{9,11}")
_CELLS = 10

CountGpus = Callable[[str, str, int], int]
"""Of a job by its number, its TRES and how many nodes it has."""


@dataclass(frozen=True)
class JobRecord:
    """One start of one job. `state` is Slurm's own word, upper case and alone: CANCELLED, not
    `CANCELLED by 1000`.

    `gpus` is of all its nodes together, 0 where Slurm does not say; `ended_at` is None while it
    runs.
    """

    job_id: str
    state: str
    started_at: datetime
    nodes: tuple[str, ...]
    user: str = ""
    name: str = ""
    partition: str = ""
    gpus: int = 0
    ended_at: Optional[datetime] = None
    checkpoint_at: Optional[datetime] = None
    cluster: str = "slurm"


class Accounts(Enum):
    """What the accounting said: `NONE_KEPT` is the site's choice, `SILENT` an error that passes."""

    TOLD = "told"
    NONE_KEPT = "none_kept"
    SILENT = "silent"


@dataclass(frozen=True)
class RecentJobs:
    """All jobs that run, and those that ended lately as far as slurmctld and the accounts still
    know them."""

    records: list[JobRecord] = field(default_factory=list)
    accounts: Accounts = Accounts.TOLD
    complaint: str = ""


def parse_listed_jobs(
    text: str, totals: str = "", *, between: str, cluster: str = "slurm"
) -> list[JobRecord]:
    """What `slurm_queries.jobs(between)` prints, and in `totals` what `slurm_queries.JOB_TOTALS`
    does.

    GPUs are those that Slurm gave the job, where it keeps count of them (AccountingStorageTRES),
    else those that it asked for: per node, in all, or per task. Who gets them by `--exclusive`
    alone is seen in the first case only.
    """
    rows = [_cut(line, TOTALS_WIDTHS) for line in totals.splitlines()]
    totals_by_job = {job_id: cells for job_id, *cells in rows}

    def count_gpus(job_id: str, tres: str, nodes: int) -> int:
        given, of_job, of_task, tasks = totals_by_job.get(job_id, ("", "", "", ""))
        return (
            _count_all_gpus(given)
            or _count_asked(tres) * nodes
            or _count_asked(of_job)
            or _count_asked(of_task) * _parse_count(tasks)
        )

    return _parse(text, between, cluster, count_gpus)


def _cut(line: str, widths: Sequence[int]) -> list[str]:
    """A line of cells of these widths."""
    cells, start = [], 0
    for width in widths:
        cells.append(line[start : start + width].strip())
        start += width
    return cells


def _parse_count(text: str) -> int:
    """0 for what is no number of at most seven digits."""
    return int(text) if _COUNT.fullmatch(text) else 0


def parse_ended_jobs(text: str, *, between: str, cluster: str = "slurm") -> list[JobRecord]:
    """What `slurm_queries.job_accounts` prints."""
    return _parse(text, between, cluster, lambda job_id, tres, nodes: _count_all_gpus(tres))


def parse_checkpoint(comment: str) -> Optional[datetime]:
    """The time that a job's comment gives for its last checkpoint, UTC where it names no zone."""
    found = [match["at"] for match in _CHECKPOINT.finditer(comment)]
    if not found:
        return None
    if _EPOCH.fullmatch(found[-1]):
        return datetime.fromtimestamp(int(found[-1]), timezone.utc)
    return _parse_moment(found[-1].replace("Z", "+00:00"))


def _parse(text: str, between: str, cluster: str, count_gpus: CountGpus) -> list[JobRecord]:
    """Rows of ten cells; the last two, name and comment, may hold anything. Jobs past MOST_PLACES
    are left out."""
    records: list[JobRecord] = []
    places = 0
    for cells in output.iterate_rows(text, between, _CELLS):
        record = _parse_row(cells, cluster, count_gpus)
        if record is None:
            continue
        places += len(record.nodes)
        if places > output.MOST_PLACES:
            break
        records.append(record)
    return records


def _parse_row(cells: Sequence[str], cluster: str, count_gpus: CountGpus) -> Optional[JobRecord]:
    """None for a job that has not begun, has ended at no known time, or has no node."""
    job_id, state_text, user, partition, start, end, tres, hosts, name, comment = cells
    state = state_text.split(" ", 1)[0].strip().upper()
    started_at = _parse_moment(start)
    ended_at = None if state in RUNNING else _parse_moment(end)
    if started_at is None or (ended_at is None and state not in RUNNING):
        return None
    nodes = tuple(output.iterate_hosts(hosts))
    if not nodes or nodes == ("None assigned",):
        return None
    gpus = count_gpus(job_id, tres, len(nodes))
    checkpoint_at = parse_checkpoint(comment)
    record = JobRecord(job_id[:64], state[:32], started_at, nodes, cluster=cluster)
    return replace(
        record,
        user=user[:150],
        name=name[:255],
        partition=partition[:64],
        gpus=gpus,
        ended_at=ended_at,
        checkpoint_at=checkpoint_at,
    )


def _count_all_gpus(tres: str) -> int:
    """`billing=16,cpu=16,gres/gpu=16,gres/gpu:h100=16,node=2`: the plain number, else those of the
    types."""
    total = _TOTAL.search(tres)
    return int(total[1]) if total else sum(int(count) for count in _TYPED.findall(tres))


def _count_asked(text: str) -> int:
    """`gres:gpu:h100:8` of 22.05, `gres/gpu:8` or `gres/gpu=8` of later ones, or `N/A`."""
    found = _ASKED.search(text)
    return int(found[1]) if found else 0


def _parse_moment(text: str) -> Optional[datetime]:
    """`Unknown`, `N/A` and Slurm's zero are no time."""
    try:
        at = datetime.fromisoformat(text.strip())
        at = at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
    return at if at > _ZERO else None


_ZERO = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(days=1)
