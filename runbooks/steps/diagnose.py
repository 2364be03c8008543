"""Test the drained node: dcgmi diag, NCCL over its GPUs, or RDMA on its cards, over SSH and apart from the connection.

A test that fails is named and calls for the next rung; one that could not run, or found a wrong setting, asks a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import ClassVar

from incidents import poll_pauses
from runbooks import apart, diagnostics, looking, parameters
from runbooks.apart import Ended, Job, Unknown
from runbooks.diagnostics import Diagnosis, Outcome, Verdict, Wanted
from runbooks.step import Base, Context, Done, Failed, NotCured, Parameter, Result, Wait, patience, told
from runbooks.steps.pause_pollers import DETECTORS, holder

# Of a whole report of eight GPUs; what comes before its end is not needed.
_SHOWN = 60_000
# Longer than the longest pause between two looks at the test, so that our own looks stay away all the while.
_PAUSE = timedelta(minutes=30)
_LOOK_AGAIN = timedelta(seconds=15)
_LONGEST_LOOK = timedelta(minutes=10)
_ROLE = "fabric"


class Diagnose(Base):
    name: ClassVar[str] = "diagnose"
    plan: ClassVar[str] = "test its GPUs or cards"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "test": Parameter(parameters.one_of(Diagnosis), parameters.said_of(Diagnosis), default=Diagnosis.DCGM),
        # Of dcgmi diag: by its reference 1 takes seconds, 2 about two minutes, 3 about 15 minutes, 4 longer.
        "level": Parameter(parameters.whole(1, 4), "a whole number from 1 to 4", default=2),
        # The site's own measure: GB/s of NCCL's bus, Gb/s of a card. Without it only failures count.
        "at_least": Parameter(parameters.positive, "a number above 0", default=None),
        # RDMA devices; without them those that the inventory gives the role fabric.
        "devices": Parameter(parameters.names, parameters.NAMES, default=()),
        # Our choice: four times what level 3 takes.
        "longest": Parameter(parameters.duration, parameters.DURATION, default=timedelta(hours=1)),
    }

    def run(self, ctx: Context) -> Result:
        wanted = _wanted(ctx)
        if wanted.test is Diagnosis.RDMA and not wanted.devices:
            ask = "Name the cards: `inventory discover` learns them, or give the step `devices`."
            return Failed(f"No card of {ctx.node} is known to be of the role {_ROLE}, so none is tested.", ask)
        command = diagnostics.command(wanted)
        is_script = wanted.test is Diagnosis.RDMA
        called = f"`ib_write_bw` on {len(wanted.devices)} cards" if is_script else f"`{' '.join(command)}`"

        def judge(ended: Ended) -> Verdict:
            return diagnostics.judge(wanted, ended)

        return tested(ctx, command, called=called, longest=ctx.params["longest"], judge=judge)


def _wanted(ctx: Context) -> Wanted:
    fabric = tuple(nic.device for nic in ctx.target.expected.nics if nic.role == _ROLE)
    return Wanted(
        ctx.params["test"],
        ctx.params["level"],
        ctx.params["at_least"],
        gpus=len(ctx.target.expected.gpus),
        devices=ctx.params["devices"] or fabric,
    )


def tested(
    ctx: Context, command: tuple[str, ...], *, called: str, longest: timedelta, judge: Callable[[Ended], Verdict]
) -> Result:
    """One turn of a test that runs apart under the step's key: begun, waited for, judged. `called` names it."""
    if not ctx.state.is_drained:
        return Wait(f"{ctx.node} is not empty yet.", timedelta(seconds=5))
    boot = looking.boot(ctx)
    began_at = datetime.fromisoformat(ctx.facts.setdefault(f"{ctx.key}:began_at", told(ctx.now)))
    late = ctx.now - began_at > longest
    if boot is not None and ctx.facts.setdefault(f"{ctx.key}:boot", boot.boot_id) != boot.boot_id:
        return _ill(ctx, f"{ctx.node} went down while {called} ran on it", "")
    _keep_our_looks_away(ctx)
    answer = apart.start(ctx.world.shell, ctx.target, Job(ctx.key, command, shown=_SHOWN)) if boot is not None else None
    if isinstance(answer, Ended):
        return _judged(ctx, called, answer, judge(answer))
    if late:
        minutes = round((ctx.now - began_at).total_seconds() / 60)
        return Failed(
            f"{_first(called)} has not ended on {ctx.node} after {minutes} min. It stays drained.",
            ask=f"See what {called} does on {ctx.node}.",
        )
    why = answer.why if isinstance(answer, Unknown) else ""
    text = f"{_first(called)} runs on {ctx.node} since {began_at:%H:%M:%S %Z}."
    if boot is None or why:
        text = f"{ctx.node} does not answer while {called} runs on it{f' ({why})' if why else ''}."
    return Wait(text, max(_LOOK_AGAIN, patience(began_at, ctx.now, longest=_LONGEST_LOOK)))


def _keep_our_looks_away(ctx: Context) -> None:
    why = f"{holder(ctx.run_id)} of incident #{ctx.incident_id} tests its GPUs"
    until = ctx.now + _PAUSE
    poll_pauses.pause(ctx.node, DETECTORS, holder=holder(ctx.run_id), why=why, until=until, now=ctx.now)


def _judged(ctx: Context, called: str, ended: Ended, verdict: Verdict) -> Result:
    if verdict.outcome is Outcome.PASSED:
        return Done(f"{_first(called)} {verdict.text} on {ctx.node}.", evidence={called: ended.said})
    if verdict.outcome is Outcome.ILL:
        return _ill(ctx, f"{called} {verdict.text}", ended.said)
    return Failed(
        f"{_first(called)} {verdict.text} on {ctx.node}. It stays drained.",
        ask=f"See why {called} tells nothing of {ctx.node}'s hardware, and test the node.",
    )


def _ill(ctx: Context, what: str, said: str) -> NotCured:
    return NotCured(
        f"{ctx.node} is not well: {what}. It stays drained.",
        ask=f"Examine {ctx.node}: {what}.",
        evidence={"test": said} if said else {},
    )


def _first(called: str) -> str:
    """As a sentence begins."""
    return called[:1].upper() + called[1:]
