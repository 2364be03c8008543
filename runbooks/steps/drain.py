"""Drain the node, so that no new job starts there. A person's drain is left alone, and waited for."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from detectors import catalog
from runbooks import ownership
from runbooks.guards import Act
from runbooks.ownership import Owner
from runbooks.step import Base, Context, Done, Effect, Failed, Result, Wait, told

_LOOK_AGAIN = timedelta(minutes=1)


class Drain(Base):
    name: ClassVar[str] = "drain"
    plan: ClassVar[str] = "drain {node}"
    effect: ClassVar[Effect] = Effect.REVERSIBLE
    act: ClassVar[Act | None] = Act.DRAIN
    needs_hold: ClassVar[bool] = False

    def is_done(self, ctx: Context) -> Done | None:
        if ctx.state.is_draining and ownership.owner(ctx.state, ctx.incident_id) is Owner.THIS_INCIDENT:
            _remember(ctx, ctx.state.reason)
            return Done(f"{ctx.node} is drained already, by this incident.")
        return None

    def blocked(self, ctx: Context) -> Wait | Failed | None:
        whose = ownership.owner(ctx.state, ctx.incident_id)
        if whose is Owner.OTHER_INCIDENT and not ctx.may_adopt:
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

    def run(self, ctx: Context) -> Result:
        before = ctx.state
        row = catalog.load().get(ctx.fault_type)
        text = row.title if row is not None else "drained by Kintsugi"
        adopted = ""
        if ownership.owner(before, ctx.incident_id) in (Owner.SLURM, Owner.OTHER_INCIDENT):
            adopted = f' It was out already, with the reason "{before.reason}", which is kept in this timeline.'
            ctx.facts["adopted_reason"] = before.reason
        reason = ownership.reason(ctx.incident_id, ctx.fault_type, text)
        ctx.world.slurm.drain(ctx.node, reason)
        _remember(ctx, reason)
        return Done(f"{ctx.node} is drained: no new job starts there.{adopted}")


def _remember(ctx: Context, reason: str) -> None:
    ctx.facts.setdefault("drained_at", told(ctx.now))
    ctx.facts["reason"] = reason
