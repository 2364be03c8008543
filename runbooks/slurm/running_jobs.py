"""Which jobs run on which nodes now, as Slurm shows them."""

from __future__ import annotations

from collections.abc import Collection

from runbooks.slurm.protocol import SlurmError, SlurmReader, SlurmRefusal

# Of the states of jobs, those in which a node works or ends its work:
# https://slurm.schedmd.com/squeue.html.
_RUNS = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "STOPPED", "SIGNALING", "SUSPENDED"})


def get_running_jobs(
    names: Collection[str], slurm: SlurmReader
) -> dict[str, frozenset[str]] | None:
    """The jobs that run on each of these nodes; None when Slurm cannot be asked."""
    running = {}
    for name in names:
        try:
            jobs = slurm.list_jobs(name)
        except (SlurmError, SlurmRefusal):
            return None
        running[name] = frozenset(job.job_id for job in jobs if job.state in _RUNS)
    return running
