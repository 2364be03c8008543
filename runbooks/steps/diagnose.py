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
from runbooks.node import detached_command, diagnostics, looking
from runbooks.node.detached_command import Answer, DetachedJob, Ended, Unknown
from runbooks.node.diagnostics import (
    PROVED_AT,
    Diagnosis,
    DiagnosticOutcome,
    DiagnosticVerdict,
    Wanted,
)
from runbooks.step import (
    Base,
    Context,
    Done,
    EndedBoot,
    Failed,
    NotCured,
    Parameter,
    Result,
    Wait,
    format_iso,
    get_backoff,
)
from runbooks.steps.pause_pollers import DETECTORS, get_holder

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


_TEST = Parameter.choice(Diagnosis, default=Diagnosis.DCGM)
# Of dcgmi diag: by its reference 1 takes seconds, 2 about two minutes, 3 about 15 minutes, 4
# longer.
_LEVEL = Parameter.whole_number(1, 4, default=2)
# The site's own measure: GB/s of NCCL's bus, Gb/s of a card. Without it only failures count.
_AT_LEAST = Parameter.positive()
# RDMA devices; without them those that the inventory gives the role fabric.
_DEVICES = Parameter.names()
_WHERE = Parameter.choice(Where, default=Where.SSH)
# Our choice: four times what level 3 takes.
_LONGEST = Parameter.duration(default=timedelta(hours=1))


class Diagnose(Base):
    name: ClassVar[str] = "diagnose"
    plan: ClassVar[str] = "test its GPUs or cards"
    touches_node: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "test": _TEST,
        "level": _LEVEL,
        "at_least": _AT_LEAST,
        "devices": _DEVICES,
        "where": _WHERE,
        "longest": _LONGEST,
    }

    def run(self, ctx: Context) -> Result:
        failed = ask_for_cards(ctx)
        if failed is not None:
            return failed
        wanted = get_wanted(ctx)
        return run_test(
            ctx,
            diagnostics.build_command(wanted),
            called=format_test(ctx),
            longest=ctx.params["longest"],
            judge=lambda ended: diagnostics.evaluate(wanted, ended),
        )


def ask_for_cards(ctx: Context) -> Failed | None:
    """Where none is known that could be tested."""
    wanted = get_wanted(ctx)
    if wanted.test is not Diagnosis.RDMA or wanted.devices:
        return None
    ask = "Name the cards: `inventory discover` learns them, or give the step `devices`."
    return Failed(
        f"No card of {ctx.node} is known to be of the role {_ROLE}, so none is tested.", ask
    )


def format_test(ctx: Context) -> str:
    """The test, for people."""
    wanted = get_wanted(ctx)
    if wanted.test is Diagnosis.RDMA:
        return f"`ib_write_bw` on {len(wanted.devices)} cards"
    return f"`{' '.join(diagnostics.build_command(wanted))}`"


def get_wanted(ctx: Context) -> Wanted:
    params, expected = ctx.params, ctx.target.expected
    fabric = tuple(nic.device for nic in expected.nics if nic.role == _ROLE)
    return Wanted(
        params["test"],
        params["level"],
        params["at_least"],
        gpus=len(expected.gpus),
        devices=params["devices"] or fabric,
    )


def run_test(
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
    boot = looking.read_boot(ctx)
    began_at = datetime.fromisoformat(
        ctx.facts.setdefault(f"{ctx.key}:began_at", format_iso(ctx.now))
    )
    if boot is not None and _is_another_boot(ctx, boot):
        return _build_not_cured(ctx, f"{ctx.node} went down while {called} ran on it", "")
    pause_polls(ctx)
    answer: Answer | None = None
    if boot is not None:
        job = DetachedJob(ctx.key, command, shown=SHOWN)
        answer = detached_command.start(ctx.world.shell, ctx.target, job)
    if isinstance(answer, Ended):
        return make_result(ctx, called, answer, judge(answer))
    if ctx.now - began_at > longest:
        return _give_up(ctx, called, began_at)
    text = f"{capitalize_first(called)} runs on {ctx.node} since {began_at:%H:%M:%S %Z}."
    if answer is None:
        text = f"{ctx.node} does not answer while {called} runs on it."
    elif isinstance(answer, Unknown) and answer.why:
        text = f"{ctx.node} does not answer while {called} runs on it ({answer.why})."
    again_in = get_backoff(began_at, ctx.now, longest=_LONGEST_LOOK)
    return Wait(text, max(_LOOK_AGAIN, again_in))


def _is_another_boot(ctx: Context, boot: EndedBoot) -> bool:
    """Whether the node has booted since the test began."""
    first_id: str = ctx.facts.setdefault(f"{ctx.key}:boot", boot.boot_id)
    return first_id != boot.boot_id


def _give_up(ctx: Context, called: str, began_at: datetime) -> Failed:
    minutes = round((ctx.now - began_at).total_seconds() / 60)
    has_not_ended = f"has not ended on {ctx.node} after {minutes} min"
    return Failed(
        f"{capitalize_first(called)} {has_not_ended}. It stays drained.",
        ask=f"See what {called} does on {ctx.node}.",
    )


def pause_polls(ctx: Context) -> None:
    holder = get_holder(ctx.run_id)
    why = f"{holder} of incident #{ctx.incident_id} tests its GPUs"
    until = ctx.now + _PAUSE
    poll_pauses.pause(ctx.node, DETECTORS, holder=holder, why=why, until=until, now=ctx.now)


def make_result(ctx: Context, called: str, ended: Ended, verdict: DiagnosticVerdict) -> Result:
    if verdict.outcome is DiagnosticOutcome.PASSED:
        ctx.facts[PROVED_AT] = format_iso(ctx.now)
        text = f"{capitalize_first(called)} {verdict.text} on {ctx.node}."
        return Done(text, evidence={called: ended.said})
    if verdict.outcome is DiagnosticOutcome.ILL:
        return _build_not_cured(ctx, f"{called} {verdict.text}", ended.said)
    return Failed(
        f"{capitalize_first(called)} {verdict.text} on {ctx.node}. It stays drained.",
        ask=f"See why {called} tells nothing of {ctx.node}'s hardware, and test the node.",
    )


def _build_not_cured(ctx: Context, what: str, output: str) -> NotCured:
    return NotCured(
        f"{ctx.node} is not well: {what}. It stays drained.",
        ask=f"Examine {ctx.node}: {what}.",
        evidence={"test": output} if output else {},
    )


def capitalize_first(called: str) -> str:
    """As a sentence begins."""
    return called[:1].upper() + called[1:]
