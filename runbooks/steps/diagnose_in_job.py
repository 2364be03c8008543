"""The test of `diagnose` as a job of ours, with Slurm's cgroups, prolog and accounts, on a node
that is lent to it.

Its exit status comes from Slurm, its output from a folder that the job made anew on the node, read
over SSH.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.utils.crypto import salted_hmac

from detectors.detector import DetectorError
from runbooks.guards.table import Act
from runbooks.node import diagnostics, drains, node_loan
from runbooks.node.detached_command import Ended
from runbooks.slurm.protocol import SlurmError, SlurmRefusal, format_own_name
from runbooks.step import Context, Failed, NotCured, Result, StepEffect, Wait, format_iso
from runbooks.steps.diagnose import (
    SHOWN,
    Diagnose,
    ask_for_cards,
    capitalize_first,
    format_test,
    get_wanted,
    make_result,
    pause_polls,
)

# Not /tmp, which many sites give each job for itself (job_container/tmpfs).
FOLDER = "/var/tmp"  # noqa: S108 - a folder that the job makes there, and which ends it where it stands already
_SALT = "kintsugi.diagnose_in_job"
# $1: the folder, which must not be there: whoever made it before could have laid a link in it.
_KEEP = """umask 022; mkdir "$1" || exit 126; exec >"$1/output" 2>&1; shift; exec "$@\""""
_NOT_KEPT = 126
# Longer than a scheduler with much to do looks away, and than a prolog takes. Our choice.
_STARTS_WITHIN = timedelta(minutes=5)
_TIMEOUT = timedelta(seconds=20)
# A node that answers Slurm and not us is waited for as long before its report is given up. Our
# choice.
_READ_WITHIN = timedelta(minutes=10)
_MOST_TRIES = 3
_WENT_DOWN = frozenset({"NODE_FAIL", "BOOT_FAIL"})
_BY_ITSELF = frozenset({"COMPLETED", "FAILED"})


class DiagnoseInJob(Diagnose):
    """What it has begun it finishes: a node that was let in is drained again, whoever loses
    interest meanwhile.

    `lent`, in the facts, says how far it is: reserved_at, lending_at, let_in_at, over (why it is
    taken back; empty: the job has ended), out_at, closed_at.
    """

    plan: ClassVar[str] = "lend {node} to a job of ours that tests its GPUs or cards"
    effect: ClassVar[StepEffect] = StepEffect.DISRUPTIVE
    act: ClassVar[Act | None] = Act.LEND
    settles_in: ClassVar[timedelta] = timedelta(seconds=60)
    finishes: ClassVar[bool] = True

    def find_obstacle(self, ctx: Context) -> Wait | Failed | None:
        if not ctx.state.is_drained or ctx.world.slurm.list_jobs(ctx.node):
            return Wait(f"{ctx.node} is not empty yet.", timedelta(seconds=5))
        why = node_loan.get_obstacle(ctx, lasts=ctx.params["longest"])
        return _fail(ctx, why) if why else ask_for_cards(ctx)

    def run(self, ctx: Context) -> Result:
        begun = node_loan.reserve_node(ctx)
        return begun if isinstance(begun, Wait) else _fail(ctx, begun)

    def carry_on(self, ctx: Context) -> Result | None:
        if drains.LENT not in ctx.facts:
            return node_loan.adopt(ctx) if node_loan.is_reserved(ctx) else None
        lent = ctx.facts[drains.LENT]
        if "over" not in lent:
            result = _attend_job(ctx, lent) if "let_in_at" in lent else node_loan.admit_job(ctx)
            if isinstance(result, Wait):
                return result
            lent["over"] = result
            if not result:
                return Wait(
                    f"{capitalize_first(format_test(ctx))} has ended on {ctx.node}.", timedelta(0)
                )
        waiting = node_loan.take_back(ctx) if drains.is_lent(ctx.facts) else None
        return waiting if waiting is not None else _conclude(ctx, lent)


def build_command(key: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    return ("sh", "-c", _KEEP, diagnostics.IN_JOB, get_folder(key), *argv)


def get_folder(key: str) -> str:
    """Of a name that no user can know before the job has made it: one that is there ends the
    job."""
    ending = salted_hmac(_SALT, key, algorithm="sha256").hexdigest()[:16]
    return f"{FOLDER}/{format_own_name(key)}-{ending}"


def _attend_job(ctx: Context, lent: dict[str, Any]) -> Wait | str:
    """The lent node is looked at before anything else; then the job is submitted, or waited for."""
    against = node_loan.get_end_reason(ctx)
    if against:
        return against
    try:
        job = ctx.world.slurm.find_job(ctx.key)
    except SlurmError as error:
        if (
            ctx.now - datetime.fromisoformat(lent["let_in_at"])
            < ctx.params["longest"] + _STARTS_WITHIN
        ):
            raise
        return f"Slurm tells nothing of the job: {error}"
    if job is None:
        return (
            _submit_job(ctx, lent) if "submitted_at" not in lent else "Slurm knows the job no more"
        )
    since = datetime.fromisoformat(lent.setdefault("submitted_at", format_iso(ctx.now)))
    if job.has_ended or job.is_completing:
        return ""
    if job.started_at is None and ctx.now - since > _STARTS_WITHIN:
        return f"job {job.job_id} did not start within {_STARTS_WITHIN.seconds // 60} min"
    # Slurm itself ends it at its time limit.
    if ctx.now - (job.started_at or since) > ctx.params["longest"] + _STARTS_WITHIN:
        return f"job {job.job_id} has not ended after its time limit"
    pause_polls(ctx)
    does = "runs" if job.started_at is not None else "is to start"
    return Wait(
        f"{capitalize_first(format_test(ctx))} {does} on {ctx.node} as job {job.job_id}.",
        node_loan.LOOK,
    )


def _submit_job(ctx: Context, lent: dict[str, Any]) -> Wait | str:
    pause_polls(ctx)
    gpus = len(ctx.target.expected.gpus)
    argv = build_command(ctx.key, diagnostics.build_command(get_wanted(ctx)))
    limit = ctx.params["longest"]
    try:
        job_id = ctx.world.slurm_writer.submit(
            ctx.key, argv, nodes=(ctx.node,), gpus=gpus, time_limit=limit, reservation=ctx.key
        )
    except SlurmError as error:
        lent["tries"] = lent.get("tries", 0) + 1
        if isinstance(error, SlurmRefusal) or lent["tries"] >= _MOST_TRIES:
            return f"Slurm takes no job of ours: {error}"
        return Wait(
            f"The job for {ctx.node} is not submitted yet: {error}", node_loan.LOOK, is_told=True
        )
    lent["submitted_at"] = format_iso(ctx.now)
    return Wait(
        f"{capitalize_first(format_test(ctx))} is job {job_id} on {ctx.node}.",
        timedelta(seconds=5),
        is_told=True,
    )


def _conclude(ctx: Context, lent: Mapping[str, Any]) -> Result:
    """The node is drained, and its reservation is gone: what the job came to."""
    job = ctx.world.slurm.find_job(ctx.key)
    state = job.state if job is not None else ""
    if lent.get("is_taken"):
        _forget(ctx)
        return Wait(f"{lent['over']}.", timedelta(0))
    if state in _WENT_DOWN or lent["over"] == f"{ctx.node} is down":
        _forget(ctx)
        what = f"{ctx.node} went down while {format_test(ctx)} ran on it"
        return NotCured(
            f"{ctx.node} is not well: {what}. It stays drained.", ask=f"Examine {ctx.node}: {what}."
        )
    if job is None or lent["over"] or state not in _BY_ITSELF:
        _forget(ctx)
        return _fail(
            ctx, lent["over"] or f"job {job.job_id if job else ''} ended as {state or 'forgotten'}"
        )
    report = _read_report(ctx, lent) if job.exit_status != _NOT_KEPT else ""
    if isinstance(report, Wait):
        return report
    _forget(ctx)
    ended = Ended(job.exit_status, report)
    return make_result(ctx, format_test(ctx), ended, diagnostics.evaluate(get_wanted(ctx), ended))


def _read_report(ctx: Context, lent: Mapping[str, Any]) -> str | Wait:
    """The end of what the job wrote on the node."""
    argv = ("tail", "-c", str(SHOWN), f"{get_folder(ctx.key)}/output")
    try:
        output = ctx.world.shell.run(ctx.target, argv, _TIMEOUT)
    except DetectorError as error:
        if ctx.now - datetime.fromisoformat(lent["closed_at"]) > _READ_WITHIN:
            return ""
        return Wait(
            f"The report of {format_test(ctx)} cannot be read on {ctx.node}: {error}",
            node_loan.LOOK,
        )
    return output.stdout.decode(errors="replace") if output.status == 0 else ""


def _fail(ctx: Context, why: str) -> Failed:
    test = capitalize_first(format_test(ctx))
    return Failed(
        f"{test} could not be run as a job on {ctx.node}: {why}. It stays drained.",
        ask=f"Test {ctx.node} by hand, or give the step `where: ssh`.",
    )


def _forget(ctx: Context) -> None:
    del ctx.facts[drains.LENT]
