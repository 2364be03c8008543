"""Which jobs run on which nodes now, as Slurm shows them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from runbooks.slurm.protocol import SlurmError, SlurmJob, SlurmReader, SlurmRefusal

# Of the states of jobs, those in which a node works or ends its work:
# https://slurm.schedmd.com/squeue.html.
_RUNS = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "STOPPED", "SIGNALING", "SUSPENDED"})


def list_running(names: Collection[str], slurm: SlurmReader) -> dict[str, list[SlurmJob]] | None:
    """The jobs that run on each of these nodes; None when Slurm cannot be asked."""
    running = {}
    for name in names:
        try:
            jobs = slurm.list_jobs(name)
        except (SlurmError, SlurmRefusal):
            return None
        running[name] = [job for job in jobs if job.state in _RUNS]
    return running


def get_running_jobs(
    names: Collection[str], slurm: SlurmReader
) -> dict[str, frozenset[str]] | None:
    """The ids of these."""
    running = list_running(names, slurm)
    if running is None:
        return None
    return {name: get_job_ids(jobs) for name, jobs in running.items()}


def get_job_ids(jobs: Iterable[SlurmJob]) -> frozenset[str]:
    """Their ids."""
    return frozenset(job.job_id for job in jobs)


def find_last_end(jobs: Iterable[SlurmJob]) -> datetime | None:
    """When the last of them ends at the latest, by their time limits; None where one has none."""
    ends = [job.ends_at for job in jobs]
    known = [end for end in ends if end is not None]
    return max(known, default=None) if len(known) == len(ends) else None
