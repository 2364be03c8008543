"""Wait until the node runs another boot than before and Slurm has it back."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from runbooks import looking
from runbooks.step import Base, Boot, Context, Done, Failed, Result, Wait, remembered, told

_LOOK_AGAIN = timedelta(seconds=5)
_LOOK_AGAIN_SOON = timedelta(seconds=1)
_SOON = timedelta(seconds=30)


class WaitForBoot(Base):
    """A new /proc/sys/kernel/random/boot_id over SSH; where the old one was never known, Slurm's boot time."""

    name: ClassVar[str] = "wait_for_boot"
    plan: ClassVar[str] = "wait for a new boot id"

    def run(self, ctx: Context) -> Result:
        asked_at = remembered(ctx, "reboot_at") or ctx.now
        boot = _new_boot(ctx, asked_at)
        is_back = not ctx.state.is_rebooting and ctx.state.base != "DOWN" and "NOT_RESPONDING" not in ctx.state.flags
        if boot is not None and is_back:
            ctx.facts.update(booted_at=told(boot.booted_at), boot_id_after=boot.boot_id)
            how = f"boot id {boot.boot_id}" if boot.boot_id else f"Slurm says it booted at {boot.booted_at:%H:%M:%S %Z}"
            return Done(f"{ctx.node} is up again: {how}.", boot=boot)
        waited = ctx.now - asked_at
        if waited > ctx.world.policy.boot_time:
            return _too_late(ctx, waited, has_booted=boot is not None)
        again_in = _LOOK_AGAIN_SOON if waited < _SOON else _LOOK_AGAIN
        if boot is not None:
            return Wait(f"{ctx.node} is up, and Slurm has not got it back yet.", again_in)
        return Wait(f"{ctx.node} is booting since {asked_at:%H:%M:%S %Z}.", again_in)


def _new_boot(ctx: Context, asked_at: datetime) -> Boot | None:
    before = ctx.facts.get("boot_id_before")
    boot = looking.boot(ctx)
    if before:
        return boot if boot is not None and boot.boot_id != before else None
    since = ctx.state.boot_time
    if since is None or since <= asked_at:
        return None
    return boot or Boot("", since)


def _too_late(ctx: Context, waited: timedelta, *, has_booted: bool) -> Failed:
    minutes = round(waited.total_seconds() / 60)
    if has_booted:
        return Failed(
            f"{ctx.node} has booted, but Slurm has not got it back within {minutes} min.",
            ask=f"See whether slurmd runs on {ctx.node}; `scontrol cancel_reboot {ctx.node}` ends a reboot that Slurm"
            " still waits for. It drops the drain: drain the node again at once.",
        )
    return Failed(
        f"{ctx.node} has not come back {minutes} min after its reboot was asked for (KINTSUGI_BOOT_TIME).",
        ask=f"Look at {ctx.node}'s console and power-cycle it. It is drained.",
    )
