"""Requeue the jobs that a lost GPU has killed, where the operator's policy allows that; the others
are waited for."""

from __future__ import annotations

from typing import ClassVar

from runbooks.guards.table import Act
from runbooks.node import exclusions, looking
from runbooks.slurm.protocol import SlurmJob
from runbooks.step import Base, Context, Done, Result, StepEffect
from runbooks.steps.wait_for_jobs import format_checkpoint

_LOST = frozenset({"gpu.lost"})


class RequeueDeadJobs(Base):
    """A job is provably dead when the node's own detector sees a GPU lost and the job holds every
    GPU of the node."""

    name: ClassVar[str] = "requeue_dead_jobs"
    plan: ClassVar[str] = "requeue the jobs that a lost GPU has killed, where the policy allows it"
    effect: ClassVar[StepEffect] = StepEffect.DISRUPTIVE
    act: ClassVar[Act | None] = Act.REQUEUE

    def find_done(self, ctx: Context) -> Done | None:
        if not ctx.world.policy.requeue_dead_jobs:
            return Done(
                "Jobs are waited for: the policy requeues none (KINTSUGI_REQUEUE_DEAD_JOBS).",
                is_told=False,
            )
        dead = _find_dead_jobs(ctx)
        if any(job.is_requeueable for job in dead):
            return None
        if dead:
            names = ", ".join(f"{job.job_id} ({job.user})" for job in dead)
            return Done(
                f"A GPU under {names} is lost, and Slurm may not start it anew (Requeue=0): it is"
                " waited for."
            )
        return Done(
            f"No job on {ctx.node} is provably dead: those that run are waited for.", is_told=False
        )

    def run(self, ctx: Context) -> Result:
        dead = [job for job in _find_dead_jobs(ctx) if job.is_requeueable]
        ctx.world.check_unchanged(ctx.node, ctx.state)  # the node itself was asked meanwhile
        for job in dead:
            exclusions.requeue_elsewhere(ctx, job)
        names = ", ".join(
            f"{job.job_id} ({job.user}, {format_checkpoint(job, ctx.now)})" for job in dead
        )
        kept_away = "".join(exclusions.describe(ctx, job) for job in dead)
        return Done(f"Requeued {names}: a GPU under it is lost.{kept_away}")


def _find_dead_jobs(ctx: Context) -> list[SlurmJob]:
    gpus = len(ctx.target.expected.gpus)
    running = [job for job in ctx.world.slurm.list_jobs(ctx.node) if job.state == "RUNNING"]
    on_every_gpu = [job for job in running if job.gpus_per_node == gpus > 0]
    if not on_every_gpu:
        return []
    inspection = looking.inspect_node(ctx, only=("gpu",))
    is_lost = any(event.fault_type in _LOST for event in inspection.raised)
    return on_every_gpu if is_lost else []
