"""Which jobs run on which nodes now, as Slurm shows them."""

from __future__ import annotations

from collections.abc import Collection

from runbooks.slurm.protocol import SlurmError, SlurmReader, SlurmRefusal

# Of the states of jobs, those in which a node works or ends its work:
# https://slurm.schedmd.com/squeue.html.
_RUNS = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "STOPPED", "SIGNALING", "SUSPENDED"})


def jobs_on(names: Collection[str], slurm: SlurmReader) -> dict[str, frozenset[str]] | None:
    """The jobs that run on each of these nodes; None when Slurm cannot be asked."""
    try:
        return {
            name: frozenset(job.job_id for job in slurm.jobs(name) if job.state in _RUNS)
            for name in names
        }
    except (SlurmError, SlurmRefusal):
        return None
