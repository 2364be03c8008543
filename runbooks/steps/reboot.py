"""Reboot the drained node through Slurm, once. An attempt of unknown outcome is looked at, never
repeated blindly."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from detectors.faults import Recovery
from runbooks.guards.table import Act
from runbooks.node import drains, looking
from runbooks.slurm import node_states, ownership
from runbooks.step import (
    Base,
    Context,
    Done,
    NotCured,
    Result,
    StepEffect,
    Wait,
    format_iso,
    get_fact_time,
)

# A request that scontrol was killed over may still reach slurmctld: its transport's limit, twice.
_SETTLES_IN = timedelta(seconds=60)
_LOOK_AGAIN = timedelta(seconds=5)


class Reboot(Base):
    name: ClassVar[str] = "reboot"
    plan: ClassVar[str] = "reboot it through Slurm"
    effect: ClassVar[StepEffect] = StepEffect.DISRUPTIVE
    act: ClassVar[Act | None] = Act.REBOOT
    settles_in: ClassVar[timedelta] = _SETTLES_IN
    recovery: ClassVar[Recovery | None] = Recovery.NODE_RESTART

    def find_done(self, ctx: Context) -> Done | None:
        """Slurm shows a reboot under way or issued since our drain, or the node runs another
        boot."""
        is_rebooted = ctx.state.is_rebooting or ownership.says_reboot_issued(ctx.state)
        began_at = _find_new_boot(ctx)
        if not is_rebooted and began_at is None:
            return None
        ctx.facts["reboot_at"] = format_iso(ctx.attempted_at or min(ctx.now, began_at or ctx.now))
        if ctx.attempted_at is None:
            ctx.facts[drains.REBOOTED_BY_ANOTHER] = True
        else:  # whoever asked and died had just seen the drain
            ctx.facts[drains.ASKED_UNDER_DRAIN] = True
        by = "" if ctx.attempted_at else " by someone else"
        return Done(f"{ctx.node} has been rebooted{by} since it was drained.")

    def find_obstacle(self, ctx: Context) -> Wait | NotCured | None:
        node = ctx.node
        if ctx.facts.get("unkillable_jobs") and "COMPLETING" in ctx.state.flags:
            return _build_not_cured(
                ctx,
                f"{node} cannot end the processes of jobs that are over: Slurm would wait for ever",
            )
        # A node that went down by itself may be booting: it has the time that a boot takes.
        drained_at = get_fact_time(ctx, "drained_at") or ctx.now
        if node_states.is_given_up(ctx.state) and ctx.now > drained_at + ctx.world.policy.boot_time:
            return _build_not_cured(
                ctx, f"{node}'s slurmd answers no more, and Slurm reboots through it"
            )
        if node_states.is_silent(ctx.state):
            return Wait(
                f"{node} does not answer Slurm: if it boots by itself, that will do.", _LOOK_AGAIN
            )
        off = node_states.format_power_saving(ctx.state)
        if off:
            ask = (
                f"Switch {node} on when it is to be mended: scontrol update NodeName={node}"
                " State=POWER_UP"
            )
            return Wait(
                f"{off} It is rebooted when it is up.", timedelta(minutes=1), ask=ask, is_told=True
            )
        if not ctx.state.is_drained:
            return Wait(f"{node} is not empty yet.", _LOOK_AGAIN)
        return None

    def run(self, ctx: Context) -> Result:
        after = ctx.world.slurm_writer.reboot(ctx.node, as_seen=ctx.state)
        # Not before: of a worker that comes too late to ask, its facts are kept all the same.
        ctx.facts["reboot_at"] = format_iso(ctx.now)
        ctx.facts.pop(drains.REBOOTED_BY_ANOTHER, None)
        ctx.facts.pop(drains.REBOOT_CANCELLED, None)
        ctx.facts[drains.ASKED_UNDER_DRAIN] = after.is_draining
        return Done(f"{ctx.node} reboots: Slurm has taken the request.")


def _find_new_boot(ctx: Context) -> datetime | None:
    """When the boot began that the node runs since it was drained; None when it still runs the boot
    of before.

    Where no boot id of before was ever known, Slurm's boot time tells.
    """
    before = ctx.facts.get("boot_id_before")
    if before:
        boot = looking.read_boot(ctx)
        return boot.booted_at if boot is not None and boot.boot_id != before else None
    drained_at = get_fact_time(ctx, "drained_at")
    is_later = drained_at is not None and node_states.has_booted(ctx.state, drained_at)
    return ctx.state.boot_time if is_later else None


def _build_not_cured(ctx: Context, why: str) -> NotCured:
    return NotCured(
        f"{ctx.node} cannot be rebooted through Slurm: {why}. It stays drained.",
        ask=f"Power-cycle {ctx.node}: nothing milder reaches it.",
    )
