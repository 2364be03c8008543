"""Whether one node fails jobs more often than chance explains, against the same cluster's other
nodes. Pure.

The trial is a script on a node: of all jobs that one user ran there under one name (digits aside,
so that the members of a sweep are one script) the latest one, failed or completed. One broken
script run a hundred times is one trial.

The chance of a failure is taken from all other nodes, with half a failure added, so that a cluster
without failures does not make the first one impossible: p = (k + 1/2) / (n + 1). The chance of at
least as many failures as the node has is the tail of the binomial distribution. It is multiplied by
the number of nodes (Bonferroni: one of a thousand nodes is unlucky soon), and told as -log10: 2
means that a cluster without a bad node shows this in one day of 100, as the window is a day. Jobs
over many nodes count on each of them; what is not independent thereby are the nodes, and
Bonferroni's bound does not ask for that. Failures of one user alone say nothing: someone is
debugging. Python 3.9, standard library alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

_DIGITS = re.compile(r"\d+")
# Beyond this more certainty changes nothing.
_MOST = 99.0


@dataclass(frozen=True)
class EndedJob:
    """A job that came to its end, completed or failed. `ended_at` is UTC."""

    job_id: str
    is_failed: bool
    ended_at: datetime
    user: str
    nodes: tuple[str, ...]
    name: str

    @property
    def script(self) -> tuple[str, str]:
        return self.user, _DIGITS.sub("#", self.name)


@dataclass(frozen=True)
class Excess:
    """`value`: -log10 of the chance. `failed` of `tried` scripts, against `rate` elsewhere."""

    value: float
    failed: int
    tried: int
    rate: float


def compute_excess(jobs: Iterable[EndedJob], since: Mapping[str, datetime]) -> dict[str, Excess]:
    """By node that ran something. `since`: what ended on a node before (its boot) is told of a
    machine that was."""
    latest: dict[tuple[str, tuple[str, str]], EndedJob] = {}
    for job in jobs:
        for node in job.nodes:
            begins = since.get(node)
            known = latest.get((node, job.script))
            if (begins is None or job.ended_at > begins) and (
                known is None or known.ended_at < job.ended_at
            ):
                latest[node, job.script] = job
    trials: dict[str, list[EndedJob]] = {}
    for (node, _), job in latest.items():
        trials.setdefault(node, []).append(job)
    tried = sum(map(len, trials.values()))
    failed = sum(job.is_failed for jobs in trials.values() for job in jobs)
    return {
        node: _compute_excess(jobs, tried=tried, failed=failed, nodes=len(trials))
        for node, jobs in trials.items()
    }


def _compute_excess(jobs: list[EndedJob], *, tried: int, failed: int, nodes: int) -> Excess:
    """Of one node, against the rate of all others."""
    failures = [job for job in jobs if job.is_failed]
    rate = (failed - len(failures) + 0.5) / (tried - len(jobs) + 1)
    users = {job.user for job in failures}
    chance = compute_tail(len(failures), len(jobs), rate) * nodes if len(users) > 1 else 1.0
    return Excess(round(_compute_surprise(chance), 3), len(failures), len(jobs), rate)


def _compute_surprise(chance: float) -> float:
    """The power of ten by which it is unlikely, from 0 to the most."""
    if chance >= 1:
        return 0.0
    return _MOST if chance <= 10**-_MOST else -math.log10(chance)


def compute_tail(least: int, trials: int, chance: float) -> float:
    """P(X >= least) of a binomial distribution. Sums from `least` on, in logarithms, so that
    nothing underflows."""
    if least <= 0 or chance >= 1:
        return 1.0
    if chance <= 0 or least > trials:
        return 0.0
    whole = math.lgamma(trials + 1)
    total = 0.0
    for hits in range(least, trials + 1):
        misses = trials - hits
        ways = whole - math.lgamma(hits + 1) - math.lgamma(misses + 1)
        total += math.exp(ways + hits * math.log(chance) + misses * math.log1p(-chance))
    return min(1.0, total)
