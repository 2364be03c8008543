"""Take over a node that is out already: drained by Slurm itself, or left by an incident that is
over."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from runbooks.guards.table import Act
from runbooks.node import drains
from runbooks.slurm import ownership
from runbooks.slurm.ownership import Owner
from runbooks.step import Base, Context, Done, Failed, Result, StepEffect, Wait, to_iso

_LOOK_AGAIN = timedelta(minutes=1)


class AdoptDrain(Base):
    """Never takes a node out of service, and never touches a person's drain."""

    name: ClassVar[str] = "adopt_drain"
    plan: ClassVar[str] = "take over {node}, which Slurm has taken out"
    effect: ClassVar[StepEffect] = StepEffect.REVERSIBLE
    act: ClassVar[Act | None] = Act.DRAIN
    needs_hold: ClassVar[bool] = False

    def is_done(self, ctx: Context) -> Done | None:
        return drained_by_us(ctx)

    def blocked(self, ctx: Context) -> Wait | Failed | None:
        in_the_way = somebody_elses(ctx)
        if in_the_way is not None or ctx.state.is_draining or ctx.state.base == "DOWN":
            return in_the_way
        return Failed(
            f"{ctx.node} is in service: there is no drain to take over, and this runbook takes no"
            " node out.",
            ask=(
                f"See whether {ctx.fault_type} on {ctx.resource} is mended, and resolve the"
                " incident."
            ),
        )

    def run(self, ctx: Context) -> Result:
        return drain(ctx)


def drained_by_us(ctx: Context) -> Done | None:
    """By this incident already, whichever worker did it."""
    if ctx.state.is_draining and drains.owner(ctx) is Owner.THIS_INCIDENT:
        ctx.facts.setdefault("drained_at", to_iso(ctx.now))
        drains.keep(ctx.facts, ctx.state)
        return Done(f"{ctx.node} is drained already, by this incident.")
    return None


def somebody_elses(ctx: Context) -> Wait | Failed | None:
    """A person's drain, or that of another incident which still waits for a person: left alone, and
    waited for."""
    whose = drains.owner(ctx)
    if ctx.state.is_rebooting:
        text = (
            f"Someone has asked Slurm to reboot {ctx.node}: Kintsugi leaves it to them until it is"
            " back."
        )
        return Wait(text, _LOOK_AGAIN, is_told=True)
    if whose is Owner.OTHER_INCIDENT and not ctx.may_adopt():
        return Wait(
            f"{ctx.node} is drained for incident #{ownership.incident_of(ctx.state)}, which waits"
            " for a person.",
            _LOOK_AGAIN,
            is_told=True,
        )
    if whose is Owner.PERSON:
        ctx.facts["persons_reason"] = ctx.state.reason
        who = ctx.state.reason_set_by or "someone"
        return Wait(
            f'{ctx.node} is taken out by {who}: "{ctx.state.reason}". Kintsugi leaves it alone'
            " while that stands.",
            _LOOK_AGAIN,
            ask=f"Look after {ctx.node}, which {who} has taken out: Kintsugi leaves it to you.",
            is_told=True,
        )
    if ctx.facts.get("persons_reason"):
        if not ctx.state.is_out:
            drains.note_persons_resume(ctx.facts, ctx.now)
        return Failed(
            f"{ctx.node}, which a person had taken out, is back in service: Kintsugi leaves it"
            " there.",
            ask=(
                f"See whether {ctx.fault_type} on {ctx.resource} is mended, and resolve the"
                " incident."
            ),
        )
    return None


def drain(ctx: Context) -> Done:
    """Writes our reason. What stood there, where Slurm or an incident that is over wrote it, is
    kept."""
    before, whose = ctx.state, drains.owner(ctx)
    adopted, evidence = "", {}
    if whose in (Owner.SLURM, Owner.OTHER_INCIDENT):
        adopted = (
            f' It was out already, with the reason "{before.reason}", which is kept in this'
            " timeline."
        )
        since = (
            f", {before.reason_changed_at:%Y-%m-%d %H:%M:%S %Z}"
            if before.reason_changed_at is not None
            else ""
        )
        evidence = {"reason before": f"{before.reason} [{before.reason_set_by or 'slurm'}{since}]"}
        if whose is Owner.SLURM:
            ctx.facts["adopted_reason"] = before.reason
    drains.drain(ctx, drains.reason(ctx))
    ctx.facts.setdefault("drained_at", to_iso(ctx.now))
    return Done(f"{ctx.node} is drained: no new job starts there.{adopted}", evidence=evidence)
