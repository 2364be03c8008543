"""Drain the node, so that no new job starts there, or take over a node that is out already. A
person's drain is left alone, and waited for."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from runbooks.guards.table import Act
from runbooks.node import drains, overwritten
from runbooks.slurm import ownership
from runbooks.slurm.ownership import Owner
from runbooks.slurm.protocol import NodeState
from runbooks.step import Base, Context, Done, Failed, Result, StepEffect, Wait, format_iso

_LOOK_AGAIN = timedelta(minutes=1)


class Drain(Base):
    """Writes our reason. A drain that Slurm itself wrote, or an incident that is over, or a check
    of which the site says so, is taken over, and what stood there is kept."""

    name: ClassVar[str] = "drain"
    plan: ClassVar[str] = "drain {node}"
    effect: ClassVar[StepEffect] = StepEffect.REVERSIBLE
    act: ClassVar[Act | None] = Act.DRAIN
    needs_hold: ClassVar[bool] = False

    def find_done(self, ctx: Context) -> Done | None:
        """By this incident already, whichever worker did it."""
        if not ctx.state.is_draining or drains.get_owner(ctx) is not Owner.THIS_INCIDENT:
            return None
        ctx.facts.setdefault("drained_at", format_iso(ctx.now))
        drains.store_written(ctx.facts, ctx.state)
        if ctx.attempted_at is not None:
            overwritten.note_drain(ctx.facts, None, ctx.state, ctx.now)
        return Done(f"{ctx.node} is drained already, by this incident.")

    def find_obstacle(self, ctx: Context) -> Wait | Failed | None:
        """A person's drain, or that of another incident which still waits for a person: left alone,
        and waited for."""
        owner = drains.get_owner(ctx)
        if ctx.state.is_rebooting:
            text = (
                f"Someone has asked Slurm to reboot {ctx.node}: Kintsugi leaves it to them until it"
                " is back."
            )
            return Wait(text, _LOOK_AGAIN, is_told=True)
        if owner is Owner.OTHER_INCIDENT and not ctx.may_adopt():
            number = ownership.parse_incident(ctx.state.reason)
            text = f"{ctx.node} is drained for incident #{number}, which waits for a person."
            return Wait(text, _LOOK_AGAIN, is_told=True)
        if owner is Owner.PERSON:
            return _wait_for_person(ctx)
        if owner is Owner.CHECK and ctx.facts.get("persons_reason") == ctx.state.reason:
            del ctx.facts["persons_reason"]  # a row of the site explains it since
        if ctx.facts.get("persons_reason"):
            return _stop_after_person(ctx)
        if drains.is_resumed_since_attempt(ctx):
            return _stop_after_resume(ctx)
        return None

    def run(self, ctx: Context) -> Result:
        before, owner = ctx.state, drains.get_owner(ctx)
        text, evidence = f"{ctx.node} is drained: no new job starts there.", {}
        if owner in (Owner.SLURM, Owner.CHECK, Owner.OTHER_INCIDENT):
            reason = f'the reason "{before.reason}", which is kept in this timeline'
            text = f"{text} It was out already, with {reason}."
            evidence = {"reason before": _format_reason_before(before)}
        if owner in (Owner.SLURM, Owner.CHECK):
            ctx.facts["adopted_reason"] = before.reason
        drains.drain_node(ctx, drains.format_reason(ctx))
        ctx.facts.setdefault("drained_at", format_iso(ctx.now))
        return Done(text, evidence=evidence)


class AdoptDrain(Drain):
    """Takes over a node that Slurm itself has drained, or a check of which the site says so, or
    that an incident has left which is over. Never takes a node out of service."""

    name: ClassVar[str] = "adopt_drain"
    plan: ClassVar[str] = "take over {node}, which Slurm has taken out"

    def find_obstacle(self, ctx: Context) -> Wait | Failed | None:
        obstacle = super().find_obstacle(ctx)
        if obstacle is not None or ctx.state.is_draining or ctx.state.base == "DOWN":
            return obstacle
        return Failed(
            f"{ctx.node} is in service: there is no drain to take over, and this runbook takes no"
            " node out.",
            ask=format_mended_ask(ctx),
        )


def _wait_for_person(ctx: Context) -> Wait:
    ctx.facts["persons_reason"] = ctx.state.reason
    who, reason = ctx.state.reason_set_by or "someone", f'"{ctx.state.reason}"'
    is_slurms = ownership.is_by_slurm(ctx.state, drains.get_slurm_user(ctx))
    check = ownership.find_check(ctx.state)
    hidden = drains.find_hidden_reason(ctx)
    if hidden and (is_slurms or check is not None):
        who = "a person"
        writer = "Slurm" if is_slurms else "a check"
        reason = f'"{hidden}", over which {writer} has written {reason}'
    elif check is not None:
        who = f"a check of the site ({who})"
    text = (
        f"{ctx.node} is taken out by {who}: {reason}. Kintsugi leaves it alone while that stands."
    )
    ask = f"Look after {ctx.node}, which {who} has taken out: Kintsugi leaves it to you."
    return Wait(text, _LOOK_AGAIN, ask=ask, is_told=True)


def _stop_after_person(ctx: Context) -> Failed:
    """A person had taken the node out, and takes it out no more."""
    if not ctx.state.is_out:
        drains.note_persons_resume(ctx.facts, ctx.now)
    return Failed(
        f"{ctx.node}, which a person had taken out, is back in service: Kintsugi leaves it there.",
        ask=format_mended_ask(ctx),
    )


def _stop_after_resume(ctx: Context) -> Failed:
    """The drain had come, though no worker has lived to keep that."""
    drains.note_persons_resume(ctx.facts, ctx.now)
    return Failed(
        f"{ctx.node}, which Kintsugi had drained, was resumed by a person since: Kintsugi leaves it"
        " in service.",
        ask=format_mended_ask(ctx),
    )


def format_mended_ask(ctx: Context) -> str:
    fault = f"{ctx.fault_type} on {ctx.resource}"
    return f"See whether {fault} is mended, and resolve the incident."


def _format_reason_before(state: NodeState) -> str:
    who = state.reason_set_by or "slurm"
    if state.reason_changed_at is None:
        return f"{state.reason} [{who}]"
    return f"{state.reason} [{who}, {state.reason_changed_at:%Y-%m-%d %H:%M:%S %Z}]"
