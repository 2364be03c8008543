"""Jobs that a run starts anew elsewhere: each keeps away from the node until that is given back.

The drain keeps them away already; the list holds where the node is put back by somebody else before
the repair, and shows the owner why. It goes with the return of the node, for a job that needs the
whole partition would never start. Pure.
"""

from __future__ import annotations

from runbooks.errors import WorldError
from runbooks.slurm.protocol import SlurmJob
from runbooks.step import Context

EXCLUDED = "excluded_jobs"
"""The fact of a run: ids of jobs to whose list it has added its node."""


def requeue_elsewhere(ctx: Context, job: SlurmJob) -> None:
    """A job that was requeued and cannot be told of the node waits all the same: the node is
    drained."""
    writer = ctx.world.slurm_writer
    writer.requeue(job.job_id)
    try:
        is_added = writer.exclude_node(job.job_id, ctx.node)
    except WorldError:
        return
    if is_added:
        ctx.facts[EXCLUDED] = [*ctx.facts.get(EXCLUDED, []), job.job_id]


def admit_requeued_jobs(ctx: Context) -> None:
    """As the node is given back. What does not answer now keeps nothing from being given back."""
    for job_id in ctx.facts.get(EXCLUDED, []):
        try:
            ctx.world.slurm_writer.admit_node(job_id, ctx.node)
        except WorldError:
            continue
    ctx.facts.pop(EXCLUDED, None)


def describe(ctx: Context, job: SlurmJob) -> str:
    """A sentence after another; nothing where the job's list is as it was."""
    if job.job_id not in ctx.facts.get(EXCLUDED, []):
        return ""
    return f" Job {job.job_id} keeps away from {ctx.node} until Kintsugi gives that back."
