"""How many nodes each job needs, running or waiting, as Slurm's queue shows it. Pure; total on any
text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

# What jobs need, in squeue's words: for a waiting job %D is the least number of nodes that it asks
# for, and %S when Slurm expects to start it (squeue(1)).
SQUEUE = (
    "squeue",
    "--all",
    "--noheader",
    "--states=PENDING,RUNNING",
    "--format=%A|%T|%D|%P|%S|%r",
)
# A job that waits for nodes, or for its turn, by the first words of its reason
# (https://slurm.schedmd.com/job_reason_codes.html). One that waits for a person, another job, a
# limit or a licence would not start if every node were free.
_WAITS_FOR_NODES = (
    *("None", "Resources", "Priority", "Cleaning", "Prolog", "WaitingForScheduling"),
    *("ReqNodeNotAvail", "NodeDown", "Nodes required for job", "Nodes_required_for_job"),
)
# These wait for an hour that somebody has named: it is told as the expected start.
_WAITS_FOR_A_TIME = ("BeginTime", "Reservation")
_CELLS = 6
# No cluster has more nodes than fit in seven digits.
_LITTLE = re.compile(r"[0-9]{1,7}")


@dataclass(frozen=True)
class Demand:
    """A job and what it needs. `partitions`: any of these may serve it. `starts_at` is when Slurm
    expects to start one that waits, None where it has not said."""

    job_id: str
    nodes: int
    partitions: tuple[str, ...]
    is_running: bool
    starts_at: datetime | None = None

    def __str__(self) -> str:
        return (
            f"{'running' if self.is_running else 'waiting'} job {self.job_id} ({self.nodes} nodes)"
        )


def parse_demands(text: str) -> list[Demand]:
    """The lines of SQUEUE, run with TZ=UTC. Left out are lines that are none of them, and jobs that
    wait for something else than nodes."""
    rows = (line.strip().split("|", _CELLS - 1) for line in text.splitlines())
    cells = (row for row in rows if len(row) == _CELLS and _LITTLE.fullmatch(row[2]))
    demands = ((_parse_demand(row), row[5]) for row in cells)
    return [demand for demand, reason in demands if _counts(demand, reason)]


def _parse_demand(row: list[str]) -> Demand:
    partitions = tuple(name for name in row[3].split(",") if name)
    is_running = row[1] == "RUNNING"
    starts_at = None if is_running else _parse_time(row[4])
    return Demand(row[0], int(row[2]), partitions, is_running=is_running, starts_at=starts_at)


def _counts(demand: Demand, reason: str) -> bool:
    if demand.is_running or reason.startswith(_WAITS_FOR_NODES):
        return True
    return reason.startswith(_WAITS_FOR_A_TIME) and demand.starts_at is not None


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


def get_largest(demands: Iterable[Demand]) -> list[Demand]:
    """Of each set of partitions the largest that runs and the largest that waits: the others need
    less."""
    found: dict[tuple[tuple[str, ...], bool], Demand] = {}
    for demand in demands:
        key = (demand.partitions, demand.is_running)
        if key not in found or demand.nodes > found[key].nodes:
            found[key] = demand
    return list(found.values())
