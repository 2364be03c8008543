"""Wait until no job is left on the drained node: a job that still computes is worth more than a
repair.

A job is put elsewhere only where its owner has agreed to that in Slurm itself, and Slurm may start
it anew; or where the site's policy for its partition says so, of a job that holds what was seen
broken. Jobs that have ended and whose processes cannot be ended are not waited for: only a boot
takes those away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.catalog import catalog, rows
from incidents.state.outbox import JOBS_IN_THE_WAY
from runbooks.guards import job_policy
from runbooks.guards.job_policy import CaredJob, Deed, JobPolicy, Then
from runbooks.guards.table import Act
from runbooks.node import drains, exclusions, witnesses
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
    format_iso,
    get_backoff,
    get_fact_time,
)

# How long nobody is asked about jobs where a runbook does not say. On a node that is of no use they
# compute nothing, or die: 30 minutes is what Google's Site Reliability Engineering (chapter 11)
# gives a person to answer. Elsewhere they compute: a day, our choice.
LONGEST_IF_UNFIT, LONGEST = timedelta(minutes=30), timedelta(hours=24)
_ASKED_AT = "jobs_asked_at"
# The fact of a run: by job and start, what was done about it.
_CARED = "jobs_cared_for"
_ACTS = (Deed.TELL, Deed.SIGNAL, Deed.REQUEUE)
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

    def find_done(self, ctx: Context) -> Done | None:
        if not isinstance(drains.evaluate_hold(ctx), Held):
            return None
        jobs = ctx.jobs
        if not jobs and ctx.state.is_drained:
            requeued = ctx.facts.get("requeued", [])
            return Done(" ".join([f"No job is left on {ctx.node}.", *requeued]))
        if jobs and all(job.is_completing for job in jobs):
            return _find_unkillable(ctx, jobs)
        return None

    def find_obstacle(self, ctx: Context) -> Wait | None:
        jobs = ctx.jobs
        agreed = any(_may_requeue(job) for job in jobs)
        deeds = _choose_deeds(ctx, jobs)
        if agreed or any(deed in _ACTS for _, deed in deeds):
            return None
        is_due = any(deed is Deed.ASK for _, deed in deeds)
        return _build_wait(ctx, jobs, is_due=is_due)

    def run(self, ctx: Context) -> Result:
        jobs = ctx.world.slurm.list_jobs(ctx.node)
        ctx.world.check_unchanged(ctx.node, ctx.state)
        agreed = [job for job in jobs if _may_requeue(job)]
        for job in agreed:
            exclusions.requeue_elsewhere(ctx, job)
        texts = [_format_requeued(ctx, job, "its owner has agreed to") for job in agreed]
        ctx.facts["requeued"] = [*ctx.facts.get("requeued", []), *texts]
        others = [job for job in jobs if job not in agreed]
        deeds = [(job, deed) for job, deed in _choose_deeds(ctx, others) if deed in _ACTS]
        texts += [_do(ctx, job, deed) for job, deed in deeds]
        text = " ".join(texts) or f"{ctx.node} is looked at again."
        return Wait(text, timedelta(seconds=2), is_told=bool(deeds), is_report=True)


def _choose_deeds(ctx: Context, jobs: Sequence[SlurmJob]) -> list[tuple[SlurmJob, Deed]]:
    """What the site's policy calls for, of jobs that hold what was seen broken on the node."""
    seen_at = get_fact_time(ctx, witnesses.CONFIRMED_AT)
    policies = ctx.world.policy.job_policies
    if not policies or seen_at is None or not witnesses.leaves_unusable(ctx.fault_type):
        return []
    found = []
    for job in jobs:
        policy = job_policy.find_policy(policies, job.partition)
        if policy is not None and job.state == "RUNNING" and _holds_broken_part(ctx, job):
            cared = CaredJob(**ctx.facts.get(_CARED, {}).get(_get_start(job), {}))
            deed = job_policy.choose_deed(job, policy, cared, seen_at=seen_at, now=ctx.now)
            found.append((job, deed))
    return found


def _holds_broken_part(ctx: Context, job: SlurmJob) -> bool:
    """The whole node is broken, or the job holds every GPU of it: of another nobody can tell."""
    is_of_gpu = ctx.resource.startswith(f"node/{ctx.node}/gpu/")
    return not is_of_gpu or 0 < len(ctx.target.expected.gpus) == job.gpus_per_node


def _get_start(job: SlurmJob) -> str:
    """A job that was started anew is another one here."""
    began = format_iso(job.started_at) if job.started_at is not None else ""
    return f"{job.job_id} {began}"


def _do(ctx: Context, job: SlurmJob, deed: Deed) -> str:
    """What was done, as a sentence."""
    policy = job_policy.find_policy(ctx.world.policy.job_policies, job.partition)
    assert policy is not None  # noqa: S101 - a deed was chosen by it
    if deed is Deed.REQUEUE:
        exclusions.requeue_elsewhere(ctx, job)
        text = _format_requeued(ctx, job, f"the policy for {job.partition} has it")
        ctx.facts["requeued"] = [*ctx.facts.get("requeued", []), text]
        return text
    cared = ctx.facts.setdefault(_CARED, {}).setdefault(_get_start(job), {})
    if deed is Deed.TELL:
        ctx.world.slurm_writer.notify_job(job.job_id, _format_notice(ctx, job, policy))
        cared["is_told"] = True
        return f"{job.user} reads of it in the output of job {job.job_id}."
    ctx.world.slurm_writer.signal_job(job.job_id, policy.signal, is_batch=policy.is_batch)
    cared["is_signalled"] = True
    checkpoint = format_checkpoint(job, ctx.now)
    return f"Job {job.job_id} of {job.user} was sent {policy.signal} ({checkpoint})."


def _format_notice(ctx: Context, job: SlurmJob, policy: JobPolicy) -> str:
    """What the owner reads in the job's output."""
    row = catalog.load().get(ctx.fault_type)
    what = row.title if row is not None else ctx.fault_type
    text = f"Kintsugi: {ctx.node}, where job {job.job_id} runs, is broken: {what}."
    if policy.requeues_at_checkpoint and job.is_requeueable:
        text = f"{text} The job is started anew on other nodes once it has written a checkpoint."
    if policy.then is Then.REQUEUE and job.is_requeueable:
        minutes = round(policy.longest / timedelta(minutes=1))
        text = f"{text} Without a new checkpoint it is started anew in {minutes} min."
    agree = f"scontrol update JobId={job.named} Comment=kintsugi=requeue"
    return f"{text} To have that done now: {agree}"


def _format_requeued(ctx: Context, job: SlurmJob, why: str) -> str:
    checkpoint = format_checkpoint(job, ctx.now)
    text = f"Job {job.job_id} of {job.user} was requeued, as {why} ({checkpoint})."
    return f"{text}{exclusions.describe(ctx, job)}"


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
    limit = node_states.get_unkillable_delay(ctx.world.slurm.read_config())
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


def _build_wait(ctx: Context, jobs: Sequence[SlurmJob], *, is_due: bool = False) -> Wait:
    """`is_due`: a person is asked now, whatever `longest` says."""
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
    since = get_fact_time(ctx, "drained_at")
    count = "1 job is" if len(left) == 1 else f"{len(left)} jobs are"
    text = f"{count} still on {ctx.node} ({_format_jobs(left)}). Kintsugi waits for the end."
    again_in = get_backoff(since, ctx.now, longest=_LONGEST_LOOK)
    due_in = since + _get_longest(ctx) - ctx.now if since is not None else again_in
    if due_in > timedelta(0) and not is_due:
        return Wait(text, min(again_in, due_in), is_told=True)
    ask = ctx.facts.get("asked", "") if _ASKED_AT in ctx.facts else ""
    if ask:
        return Wait(text, again_in, ask=ask, is_told=True)
    ctx.facts[_ASKED_AT] = format_iso(ctx.now)
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
            f"scontrol update JobId={job.named} Comment=kintsugi=requeue lets Kintsugi start it"
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
