"""Wait until no job is left on the drained node: a job that still computes is worth more than a
repair.

A job is put elsewhere only where its owner has agreed to that in Slurm itself, and Slurm may start
it anew. Jobs that have ended and whose processes cannot be ended are not waited for: only a boot
takes those away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.catalog import rows
from incidents.state.outbox import JOBS_IN_THE_WAY
from runbooks.guards.table import Act
from runbooks.node import drains, witnesses
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
    to_iso,
)

# How long nobody is asked about jobs where a runbook does not say. On a node that is of no use they
# compute nothing, or die: 30 minutes is what Google's Site Reliability Engineering (chapter 11)
# gives a person to answer. Elsewhere they compute: a day, our choice.
LONGEST_IF_UNFIT, LONGEST = timedelta(minutes=30), timedelta(hours=24)
_ASKED_AT = "jobs_asked_at"
# Whether a job that runs for a week has ended need not be known sooner. Our choice.
_LONGEST_LOOK = timedelta(minutes=5)
_NAMED = 3


def _parse_duration(value: object) -> timedelta:
    reasons: list[str] = []
    found = rows.duration("longest", value, reasons)
    if reasons or not found:
        raise ValueError(value)
    return found


class WaitForJobs(Base):
    """Past `longest` a person is asked, and it goes on waiting all the same."""

    name: ClassVar[str] = "wait_for_jobs"
    plan: ClassVar[str] = "wait until its jobs have ended"
    effect: ClassVar[StepEffect] = StepEffect.DISRUPTIVE
    act: ClassVar[Act | None] = Act.REQUEUE
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "longest": Parameter(_parse_duration, "a number and s, m, h or d, such as 12h or 7d")
    }

    def is_done(self, ctx: Context) -> Done | None:
        if not isinstance(drains.evaluate_hold(ctx), Held):
            return None
        jobs = ctx.world.slurm.jobs(ctx.node)
        if not jobs and ctx.state.is_drained:
            requeued = ctx.facts.get("requeued", [])
            return Done(" ".join([f"No job is left on {ctx.node}.", *requeued]))
        if jobs and all(job.is_completing for job in jobs):
            return _find_unkillable(ctx, jobs)
        return None

    def blocked(self, ctx: Context) -> Wait | None:
        jobs = ctx.world.slurm.jobs(ctx.node)
        agreed = any(_may_requeue(job) for job in jobs)
        return None if agreed else _build_wait(ctx, jobs)

    def run(self, ctx: Context) -> Result:
        agreed = [job for job in ctx.world.slurm.jobs(ctx.node) if _may_requeue(job)]
        for job in agreed:
            ctx.world.slurm_writer.requeue(job.job_id)
        requeued = [_format_requeued(job, ctx.now) for job in agreed]
        ctx.facts["requeued"] = [*ctx.facts.get("requeued", []), *requeued]
        text = " ".join(requeued) or f"{ctx.node} is looked at again."
        return Wait(text, timedelta(seconds=2))


def _format_requeued(job: SlurmJob, now: datetime) -> str:
    checkpoint = format_checkpoint(job, now)
    agreed = f"as its owner has agreed to ({checkpoint})"
    return f"Job {job.job_id} of {job.user} was requeued, {agreed}."


def format_checkpoint(job: SlurmJob, now: datetime) -> str:
    """How much a job loses that is started anew, as far as it has said so."""
    if job.checkpoint_at is None:
        return "no checkpoint known"
    return f"last checkpoint {_format_age(now - job.checkpoint_at)} ago"


def _may_requeue(job: SlurmJob) -> bool:
    return job.is_agreed and job.is_requeueable and job.state == "RUNNING"


def _find_unkillable(ctx: Context, jobs: Sequence[SlurmJob]) -> Done | None:
    """All that is left are processes of jobs that have ended, past what Slurm itself waits for
    them."""
    ends = [job.ended_at for job in jobs if job.ended_at is not None]
    limit = node_states.get_unkillable_delay(ctx.world.slurm.config())
    if len(ends) < len(jobs) or ctx.now - max(ends) <= limit:
        return None
    ctx.facts["unkillable_jobs"] = [job.job_id for job in jobs]
    text = (
        f"{ctx.node} cannot end what is left of {_format_jobs(jobs)} since"
        f" {max(ends):%Y-%m-%d %H:%M:%S %Z}"
        " (past UnkillableStepTimeout): processes hang in a driver or a file system. No one"
        " computes there any more; a reboot through Slurm would wait for them for ever, and only a"
        " power cycle takes them away."
    )
    left = (f"{job.job_id} {job.user} {job.state} {job.ended_at}" for job in jobs)
    return Done(text, evidence={"jobs left": "\n".join(left)})


def _build_wait(ctx: Context, jobs: Sequence[SlurmJob]) -> Wait:
    power_saving = node_states.format_power_saving(ctx.state)
    if not jobs and power_saving:
        text = f"{power_saving} Kintsugi goes on when it is up."
        ask = _format_switch_on_ask(ctx)
        return Wait(text, timedelta(minutes=1), ask=ask, is_told=True)
    if not jobs:
        return Wait(f"{ctx.node} is finishing its last job.", timedelta(seconds=2))
    left = [job for job in jobs if not job.is_completing]
    if not left:
        text = f"{ctx.node} is finishing its last job ({_format_jobs(jobs)})."
        return Wait(text, timedelta(seconds=10))
    since = fact_time(ctx, "drained_at")
    count = "1 job is" if len(left) == 1 else f"{len(left)} jobs are"
    text = f"{count} still on {ctx.node} ({_format_jobs(left)}). Kintsugi waits for the end."
    again_in = get_backoff(since, ctx.now, longest=_LONGEST_LOOK)
    due_in = since + _get_longest(ctx) - ctx.now if since is not None else again_in
    if due_in > timedelta(0):
        return Wait(text, min(again_in, due_in), is_told=True)
    ask = ctx.facts.get("asked", "") if _ASKED_AT in ctx.facts else ""
    if ask:
        return Wait(text, again_in, ask=ask, is_told=True)
    ctx.facts[_ASKED_AT] = to_iso(ctx.now)
    ask = _format_ask(ctx, left)
    kind = JOBS_IN_THE_WAY if witnesses.leaves_unusable(ctx.fault_type) else "run_waiting"
    return Wait(f"{text} {ask}", again_in, ask=ask, is_told=True, kind=kind)


def _get_longest(ctx: Context) -> timedelta:
    """As the runbook says, else by what the fault leaves of the node."""
    given: timedelta | None = ctx.params.get("longest")
    if given is not None:
        return given
    return LONGEST_IF_UNFIT if witnesses.leaves_unusable(ctx.fault_type) else LONGEST


def _format_ask(ctx: Context, jobs: Sequence[SlurmJob]) -> str:
    """What to do with the first job, and what its owner can do."""
    job = jobs[0]
    can = "it cannot be started anew (Requeue=0)"
    if job.is_requeueable:
        can = (
            f"scontrol update JobId={job.job_id} Comment=kintsugi=requeue lets Kintsugi start it"
            " anew elsewhere"
        )
    checkpoint = format_checkpoint(job, ctx.now)
    return f"Ask {job.user} about job {job.job_id} on {ctx.node} ({checkpoint}): {can}."


def _format_switch_on_ask(ctx: Context) -> str:
    return (
        f"Switch {ctx.node} on when it is to be mended: scontrol update NodeName={ctx.node}"
        " State=POWER_UP"
    )


def _format_jobs(jobs: Sequence[SlurmJob]) -> str:
    names = ", ".join(f"{job.job_id} of {job.user}" for job in jobs[:_NAMED])
    return f"{names} ..." if len(jobs) > _NAMED else names


def _format_age(span: timedelta) -> str:
    minutes = max(0, round(span.total_seconds() / 60))
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
