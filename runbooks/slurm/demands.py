"""How many nodes each job needs, running or waiting, as Slurm's queue shows it. Pure; total on any
text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# What jobs need, in squeue's words: for a waiting job %D is the least number of nodes that it asks
# for (squeue(1)).
SQUEUE = ("squeue", "--all", "--noheader", "--states=PENDING,RUNNING", "--format=%A|%T|%D|%P|%r")
# Waiting for a person, not for nodes: https://slurm.schedmd.com/job_reason_codes.html.
_HELD = frozenset(
    {
        "JobHeldUser",
        "JobHeldAdmin",
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "JobArrayTaskLimit",
    }
)
_CELLS = 5
# No cluster has more nodes than fit in seven digits.
_LITTLE = re.compile(r"[0-9]{1,7}")


@dataclass(frozen=True)
class Demand:
    """A job and what it needs. `partitions`: any of these may serve it."""

    job_id: str
    nodes: int
    partitions: tuple[str, ...]
    is_running: bool

    def __str__(self) -> str:
        return (
            f"{'running' if self.is_running else 'waiting'} job {self.job_id} ({self.nodes} nodes)"
        )


def parse_demands(text: str) -> list[Demand]:
    """The lines of SQUEUE; a line that is none of them is left out, and so are jobs that somebody
    holds."""
    rows = (line.strip().split("|", _CELLS - 1) for line in text.splitlines())
    return [
        _parse_demand(row)
        for row in rows
        if len(row) == _CELLS and _LITTLE.fullmatch(row[2]) and not _is_held(row)
    ]


def _parse_demand(row: list[str]) -> Demand:
    partitions = tuple(name for name in row[3].split(",") if name)
    return Demand(row[0], int(row[2]), partitions, is_running=row[1] == "RUNNING")


def _is_held(row: list[str]) -> bool:
    return row[1] == "PENDING" and row[4] in _HELD


def get_largest(demands: Iterable[Demand]) -> list[Demand]:
    """Of each set of partitions the largest that runs and the largest that waits: the others need
    less."""
    found: dict[tuple[tuple[str, ...], bool], Demand] = {}
    for demand in demands:
        key = (demand.partitions, demand.is_running)
        if key not in found or demand.nodes > found[key].nodes:
            found[key] = demand
    return list(found.values())
