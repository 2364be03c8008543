"""Wait until no job is left on the drained node: a job that still computes is worth more than a
repair.

A job is put elsewhere only where its owner has agreed to that in Slurm itself, and Slurm may start
it anew. Jobs that have ended and whose processes cannot be ended are not waited for: only a boot
takes those away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from detectors.catalog import rows
from runbooks.guards.table import Act
from runbooks.node import drains
from runbooks.slurm import node_states
from runbooks.slurm.ownership import Held
from runbooks.slurm.protocol import SlurmJob
from runbooks.step import (
    Base,
    Context,
    Done,
    Parameter,
    Result,
    StepEffect,
    Wait,
    fact_time,
    get_backoff,
)

# Whether a job that runs for a week has ended need not be known sooner. Our choice.
_LONGEST_LOOK = timedelta(minutes=5)
_NAMED = 3


def _duration(value: object) -> timedelta:
    reasons: list[str] = []
    found = rows.duration("longest", value, reasons)
    if reasons or not found:
        raise ValueError(value)
    return found


class WaitForJobs(Base):
    """Without `longest` there is no limit; past it a person is asked, and it goes on waiting all
    the same."""

    name: ClassVar[str] = "wait_for_jobs"
    plan: ClassVar[str] = "wait until its jobs have ended"
    effect: ClassVar[StepEffect] = StepEffect.DISRUPTIVE
    act: ClassVar[Act | None] = Act.REQUEUE
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "longest": Parameter(_duration, "a number and s, m, h or d, such as 12h or 7d")
    }

    def is_done(self, ctx: Context) -> Done | None:
        if not isinstance(drains.hold(ctx), Held):
            return None
        jobs = ctx.world.slurm.jobs(ctx.node)
        if not jobs and ctx.state.is_drained:
            return Done(
                " ".join([f"No job is left on {ctx.node}.", *ctx.facts.get("requeued", [])])
            )
        return _unkillable(ctx, jobs) if jobs and all(job.is_completing for job in jobs) else None

    def blocked(self, ctx: Context) -> Wait | None:
        jobs = ctx.world.slurm.jobs(ctx.node)
        agreed = any(_may_go(job) for job in jobs)
        return None if agreed else _waiting(ctx, jobs)

    def run(self, ctx: Context) -> Result:
        agreed = [job for job in ctx.world.slurm.jobs(ctx.node) if _may_go(job)]
        for job in agreed:
            ctx.world.slurm_writer.requeue(job.job_id)
        told = [
            f"Job {job.job_id} of {job.user} was requeued, as its owner has agreed to"
            f" ({checkpoint(job, ctx.now)})."
            for job in agreed
        ]
        ctx.facts["requeued"] = [*ctx.facts.get("requeued", []), *told]
        return Wait(" ".join(told) or f"{ctx.node} is looked at again.", timedelta(seconds=2))


def checkpoint(job: SlurmJob, now: datetime) -> str:
    """How much a job loses that is started anew, as far as it has said so."""
    if job.checkpoint_at is None:
        return "no checkpoint known"
    return f"last checkpoint {_age(now - job.checkpoint_at)} ago"


def _may_go(job: SlurmJob) -> bool:
    return job.is_agreed and job.is_requeueable and job.state == "RUNNING"


def _unkillable(ctx: Context, jobs: Sequence[SlurmJob]) -> Done | None:
    """All that is left are processes of jobs that have ended, past what Slurm itself waits for
    them."""
    ends = [job.ended_at for job in jobs if job.ended_at is not None]
    limit = node_states.unkillable_after(ctx.world.slurm.config())
    if len(ends) < len(jobs) or ctx.now - max(ends) <= limit:
        return None
    names = _names(jobs)
    ctx.facts["unkillable_jobs"] = [job.job_id for job in jobs]
    return Done(
        f"{ctx.node} cannot end what is left of {names} since {max(ends):%Y-%m-%d %H:%M:%S %Z}"
        " (past UnkillableStepTimeout): processes hang in a driver or a file system. No one"
        " computes there any more; a reboot through Slurm would wait for them for ever, and only a"
        " power cycle takes them away.",
        evidence={
            "jobs left": "\n".join(
                f"{job.job_id} {job.user} {job.state} {job.ended_at}" for job in jobs
            )
        },
    )


def _waiting(ctx: Context, jobs: Sequence[SlurmJob]) -> Wait:
    off = node_states.switched_off(ctx.state)
    if not jobs and off:
        return Wait(
            f"{off} Kintsugi goes on when it is up.",
            timedelta(minutes=1),
            ask=_on(ctx),
            is_told=True,
        )
    completing = [job for job in jobs if job.is_completing]
    if len(completing) == len(jobs):
        names = f" ({_names(jobs)})" if jobs else ""
        return Wait(
            f"{ctx.node} is finishing its last job{names}.",
            timedelta(seconds=2 if not jobs else 10),
        )
    left = [job for job in jobs if not job.is_completing]
    count = "1 job is" if len(left) == 1 else f"{len(left)} jobs are"
    since = fact_time(ctx, "drained_at")
    text = f"{count} still on {ctx.node} ({_names(left)}). Kintsugi waits for the end."
    return Wait(
        text,
        get_backoff(since, ctx.now, longest=_LONGEST_LOOK),
        ask=_ask(ctx, left, since),
        is_told=True,
    )


def _ask(ctx: Context, jobs: Sequence[SlurmJob], since: datetime | None) -> str:
    """Past `longest`: what to do with the first job, and what its owner can do."""
    longest: Any = ctx.params.get("longest")
    if longest is None or since is None or ctx.now - since <= longest:
        return ""
    job = jobs[0]
    can = (
        f"scontrol update JobId={job.job_id} Comment=kintsugi=requeue lets Kintsugi start it anew"
        " elsewhere"
        if job.is_requeueable
        else "it cannot be started anew (Requeue=0)"
    )
    return (
        f"Ask {job.user} about job {job.job_id} on {ctx.node} ({checkpoint(job, ctx.now)}): {can}."
    )


def _on(ctx: Context) -> str:
    return (
        f"Switch {ctx.node} on when it is to be mended: scontrol update NodeName={ctx.node}"
        " State=POWER_UP"
    )


def _names(jobs: Sequence[SlurmJob]) -> str:
    return ", ".join(f"{job.job_id} of {job.user}" for job in jobs[:_NAMED]) + (
        " ..." if jobs[_NAMED:] else ""
    )


def _age(span: timedelta) -> str:
    minutes = max(0, round(span.total_seconds() / 60))
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
