"""Take over a node that is out already: drained by Slurm itself, or left by an incident that is over."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from detectors import catalog
from runbooks import ownership
from runbooks.guards import Act
from runbooks.ownership import Owner
from runbooks.step import Base, Context, Done, Effect, Failed, Result, Wait, told

_LOOK_AGAIN = timedelta(minutes=1)


class AdoptDrain(Base):
    """Never takes a node out of service, and never touches a person's drain."""

    name: ClassVar[str] = "adopt_drain"
    plan: ClassVar[str] = "take over {node}, which Slurm has taken out"
    effect: ClassVar[Effect] = Effect.REVERSIBLE
    act: ClassVar[Act | None] = Act.DRAIN
    needs_hold: ClassVar[bool] = False

    def is_done(self, ctx: Context) -> Done | None:
        return drained_by_us(ctx)

    def blocked(self, ctx: Context) -> Wait | Failed | None:
        in_the_way = somebody_elses(ctx)
        if in_the_way is not None or ctx.state.is_draining or ctx.state.base == "DOWN":
            return in_the_way
        return Failed(
            f"{ctx.node} is in service: there is no drain to take over, and this runbook takes no node out.",
            ask=f"See whether {ctx.fault_type} on {ctx.resource} is mended, and resolve the incident.",
        )

    def run(self, ctx: Context) -> Result:
        return drain(ctx)


def drained_by_us(ctx: Context) -> Done | None:
    """By this incident already, whichever worker did it."""
    if ctx.state.is_draining and ownership.owner(ctx.state, ctx.incident_id) is Owner.THIS_INCIDENT:
        _remember(ctx, ctx.state.reason)
        return Done(f"{ctx.node} is drained already, by this incident.")
    return None


def somebody_elses(ctx: Context) -> Wait | Failed | None:
    """A person's drain, or that of another incident which still waits for a person: left alone, and waited for."""
    whose = ownership.owner(ctx.state, ctx.incident_id)
    if whose is Owner.OTHER_INCIDENT and not ctx.may_adopt():
        return Wait(
            f"{ctx.node} is drained for incident #{ownership.incident_of(ctx.state)}, which waits for a person.",
            _LOOK_AGAIN,
            is_told=True,
        )
    if whose is Owner.PERSON:
        ctx.facts["persons_reason"] = ctx.state.reason
        who = ctx.state.reason_set_by or "someone"
        return Wait(
            f'{ctx.node} is taken out by {who}: "{ctx.state.reason}". Kintsugi leaves it alone while that stands.',
            _LOOK_AGAIN,
            ask=f"Look after {ctx.node}, which {who} has taken out: Kintsugi leaves it to you.",
            is_told=True,
        )
    if ctx.facts.get("persons_reason"):
        return Failed(
            f"{ctx.node}, which a person had taken out, is back in service: Kintsugi leaves it there.",
            ask=f"See whether {ctx.fault_type} on {ctx.resource} is mended, and resolve the incident.",
        )
    return None


def drain(ctx: Context) -> Done:
    """Writes our reason. What stood there, where Slurm or an incident that is over wrote it, is kept."""
    before = ctx.state
    row = catalog.load().get(ctx.fault_type)
    text = row.title if row is not None else "drained by Kintsugi"
    adopted, evidence = "", {}
    if ownership.owner(before, ctx.incident_id) in (Owner.SLURM, Owner.OTHER_INCIDENT):
        adopted = f' It was out already, with the reason "{before.reason}", which is kept in this timeline.'
        since = f", {before.reason_changed_at:%Y-%m-%d %H:%M:%S %Z}" if before.reason_changed_at is not None else ""
        evidence = {"reason before": f"{before.reason} [{before.reason_set_by or 'slurm'}{since}]"}
        if ownership.owner(before, ctx.incident_id) is Owner.SLURM:
            ctx.facts["adopted_reason"] = before.reason
    reason = ownership.reason(ctx.incident_id, ctx.fault_type, text)
    ctx.world.slurm.drain(ctx.node, reason)
    _remember(ctx, reason)
    return Done(f"{ctx.node} is drained: no new job starts there.{adopted}", evidence=evidence)


def _remember(ctx: Context, reason: str) -> None:
    ctx.facts.setdefault("drained_at", told(ctx.now))
    ctx.facts["reason"] = reason
