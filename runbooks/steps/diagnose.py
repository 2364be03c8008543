"""Test the drained node: dcgmi diag, NCCL over its GPUs, or RDMA on its cards, over SSH and apart
from the connection.

A test that fails is named and calls for the next rung; one that could not run, or found a wrong
setting, asks a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

from incidents.polling import poll_pauses
from runbooks import parameters
from runbooks.node import detached_command, diagnostics, looking
from runbooks.node.detached_command import DetachedJob, Ended, Unknown
from runbooks.node.diagnostics import Diagnosis, DiagnosticOutcome, DiagnosticVerdict, Wanted
from runbooks.step import (
    Base,
    Context,
    Done,
    Failed,
    NotCured,
    Parameter,
    Result,
    Wait,
    get_backoff,
    to_iso,
)
from runbooks.steps.pause_pollers import DETECTORS, holder
from runbooks.steps.verify import PROVED_AT

# Of a whole report of eight GPUs; what comes before its end is not needed.
SHOWN = 60_000
# Longer than the longest pause between two looks at the test, so that our own looks stay away all
# the while.
_PAUSE = timedelta(minutes=30)
_LOOK_AGAIN = timedelta(seconds=15)
_LONGEST_LOOK = timedelta(minutes=10)
_ROLE = "fabric"


class Where(StrEnum):
    """SSH: apart from the connection, on the drained node. JOB: `diagnose_in_job`."""

    SSH = "ssh"
    JOB = "job"


class Diagnose(Base):
    name: ClassVar[str] = "diagnose"
    plan: ClassVar[str] = "test its GPUs or cards"
    touches_node: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "test": Parameter(
            parameters.one_of(Diagnosis), parameters.said_of(Diagnosis), default=Diagnosis.DCGM
        ),
        # Of dcgmi diag: by its reference 1 takes seconds, 2 about two minutes, 3 about 15 minutes,
        # 4 longer.
        "level": Parameter(parameters.whole(1, 4), "a whole number from 1 to 4", default=2),
        # The site's own measure: GB/s of NCCL's bus, Gb/s of a card. Without it only failures
        # count.
        "at_least": Parameter(parameters.positive, "a number above 0", default=None),
        # RDMA devices; without them those that the inventory gives the role fabric.
        "devices": Parameter(parameters.names, parameters.NAMES, default=()),
        "where": Parameter(parameters.one_of(Where), parameters.said_of(Where), default=Where.SSH),
        # Our choice: four times what level 3 takes.
        "longest": Parameter(parameters.duration, parameters.DURATION, default=timedelta(hours=1)),
    }

    def run(self, ctx: Context) -> Result:
        asked = ask_for_cards(ctx)
        if asked is not None:
            return asked

        def judge(ended: Ended) -> DiagnosticVerdict:
            return diagnostics.judge(wanted(ctx), ended)

        command = diagnostics.command(wanted(ctx))
        return tested(ctx, command, called=called(ctx), longest=ctx.params["longest"], judge=judge)


def ask_for_cards(ctx: Context) -> Failed | None:
    """Where none is known that could be tested."""
    if wanted(ctx).test is not Diagnosis.RDMA or wanted(ctx).devices:
        return None
    ask = "Name the cards: `inventory discover` learns them, or give the step `devices`."
    return Failed(
        f"No card of {ctx.node} is known to be of the role {_ROLE}, so none is tested.", ask
    )


def called(ctx: Context) -> str:
    """The test, for people."""
    asked = wanted(ctx)
    if asked.test is Diagnosis.RDMA:
        return f"`ib_write_bw` on {len(asked.devices)} cards"
    return f"`{' '.join(diagnostics.command(asked))}`"


def wanted(ctx: Context) -> Wanted:
    fabric = tuple(nic.device for nic in ctx.target.expected.nics if nic.role == _ROLE)
    return Wanted(
        ctx.params["test"],
        ctx.params["level"],
        ctx.params["at_least"],
        gpus=len(ctx.target.expected.gpus),
        devices=ctx.params["devices"] or fabric,
    )


def tested(
    ctx: Context,
    command: tuple[str, ...],
    *,
    called: str,
    longest: timedelta,
    judge: Callable[[Ended], DiagnosticVerdict],
) -> Result:
    """One turn of a test that runs apart under the step's key: begun, waited for, judged. `called`
    names it."""
    if not ctx.state.is_drained:
        return Wait(f"{ctx.node} is not empty yet.", timedelta(seconds=5))
    boot = looking.boot(ctx)
    began_at = datetime.fromisoformat(ctx.facts.setdefault(f"{ctx.key}:began_at", to_iso(ctx.now)))
    late = ctx.now - began_at > longest
    if boot is not None and ctx.facts.setdefault(f"{ctx.key}:boot", boot.boot_id) != boot.boot_id:
        return _ill(ctx, f"{ctx.node} went down while {called} ran on it", "")
    keep_our_looks_away(ctx)
    answer = (
        detached_command.start(
            ctx.world.shell, ctx.target, DetachedJob(ctx.key, command, shown=SHOWN)
        )
        if boot is not None
        else None
    )
    if isinstance(answer, Ended):
        return make_result(ctx, called, answer, judge(answer))
    if late:
        minutes = round((ctx.now - began_at).total_seconds() / 60)
        return Failed(
            f"{first(called)} has not ended on {ctx.node} after {minutes} min. It stays drained.",
            ask=f"See what {called} does on {ctx.node}.",
        )
    why = answer.why if isinstance(answer, Unknown) else ""
    text = f"{first(called)} runs on {ctx.node} since {began_at:%H:%M:%S %Z}."
    if boot is None or why:
        text = f"{ctx.node} does not answer while {called} runs on it{f' ({why})' if why else ''}."
    return Wait(text, max(_LOOK_AGAIN, get_backoff(began_at, ctx.now, longest=_LONGEST_LOOK)))


def keep_our_looks_away(ctx: Context) -> None:
    why = f"{holder(ctx.run_id)} of incident #{ctx.incident_id} tests its GPUs"
    until = ctx.now + _PAUSE
    poll_pauses.pause(
        ctx.node, DETECTORS, holder=holder(ctx.run_id), why=why, until=until, now=ctx.now
    )


def make_result(ctx: Context, called: str, ended: Ended, verdict: DiagnosticVerdict) -> Result:
    if verdict.outcome is DiagnosticOutcome.PASSED:
        ctx.facts[PROVED_AT] = to_iso(ctx.now)
        return Done(f"{first(called)} {verdict.text} on {ctx.node}.", evidence={called: ended.said})
    if verdict.outcome is DiagnosticOutcome.ILL:
        return _ill(ctx, f"{called} {verdict.text}", ended.said)
    return Failed(
        f"{first(called)} {verdict.text} on {ctx.node}. It stays drained.",
        ask=f"See why {called} tells nothing of {ctx.node}'s hardware, and test the node.",
    )


def _ill(ctx: Context, what: str, said: str) -> NotCured:
    return NotCured(
        f"{ctx.node} is not well: {what}. It stays drained.",
        ask=f"Examine {ctx.node}: {what}.",
        evidence={"test": said} if said else {},
    )


def first(called: str) -> str:
    """As a sentence begins."""
    return called[:1].upper() + called[1:]
