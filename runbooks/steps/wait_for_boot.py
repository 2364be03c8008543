"""Wait until the node runs another boot than before and Slurm has it back."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import ClassVar

from detectors.faults import Recovery
from runbooks.node import drains, holding, looking, overwritten
from runbooks.slurm import node_states
from runbooks.slurm.protocol import SlurmRefusal
from runbooks.step import (
    Back,
    Base,
    Context,
    Done,
    EndedBoot,
    Failed,
    NotCured,
    Result,
    Wait,
    format_iso,
    get_fact_time,
)

_LOOK_AGAIN = timedelta(seconds=5)
_LOOK_AGAIN_SOON = timedelta(seconds=1)
_LOOK_AGAIN_LATER = timedelta(minutes=1)
_SOON = timedelta(seconds=30)
# A node that shuts down does not answer for longer: a second request would reboot it twice (our
# choice).
_SETTLED = timedelta(seconds=60)


class WaitForBoot(Base):
    """A new /proc/sys/kernel/random/boot_id over SSH; where the old one was never known, Slurm's
    boot time."""

    name: ClassVar[str] = "wait_for_boot"
    plan: ClassVar[str] = "wait for a new boot id"

    def run(self, ctx: Context) -> Result:
        asked_at = get_fact_time(ctx, "reboot_at") or ctx.now
        if "REBOOT_REQUESTED" in ctx.state.flags:
            ctx.facts[holding.QUEUED_AT] = format_iso(ctx.now)
        boot = _find_new_boot(ctx, asked_at)
        if boot is not None and node_states.is_back(ctx.state, asked_at):
            ctx.facts.update(booted_at=format_iso(boot.booted_at), boot_id_after=boot.boot_id)
            how = (
                f"boot id {boot.boot_id}"
                if boot.boot_id
                else f"Slurm says it booted at {boot.booted_at:%H:%M:%S %Z}"
            )
            return Done(f"{ctx.node} is up again: {how}.", boot=boot)
        waited = ctx.now - asked_at
        if waited > ctx.world.policy.boot_time and ctx.maintenance:
            return Wait(f"{ctx.node} has not come back, and {ctx.maintenance}.", _LOOK_AGAIN_LATER)
        if waited > ctx.world.policy.boot_time:
            return _give_up(ctx, asked_at, has_booted=boot is not None)
        if boot is None and waited > _SETTLED and _is_forgotten(ctx, asked_at):
            ctx.facts.pop("reboot_at")
            ctx.facts.pop(holding.QUEUED_AT, None)
            return Back(
                f"slurmctld restarted and has forgotten the reboot of {ctx.node}: it is asked for"
                " again."
            )
        again_in = _LOOK_AGAIN_SOON if waited < _SOON else _LOOK_AGAIN
        if boot is not None:
            return _wait_for_slurm(ctx, boot, again_in, is_late=waited > _SETTLED)
        return Wait(f"{ctx.node} is booting since {asked_at:%H:%M:%S %Z}.", again_in)


def _wait_for_slurm(ctx: Context, boot: EndedBoot, again_in: timedelta, *, is_late: bool) -> Wait:
    """A slurmctld that dies before it has kept that the node is back waits on for its boot, as long
    as ResumeTimeout, and cancel_reboot is refused; a slurmd that registers anew ends that (all
    measured in 22.05)."""
    if not (is_late and ctx.state.is_rebooting):
        return Wait(f"{ctx.node} is up, and Slurm has not got it back yet.", again_in)
    ask = (
        f"Say on {ctx.node}: systemctl restart slurmd. Where that does not help, on slurmctld's:"
        " scontrol reconfigure"
    )
    text = (
        f"{ctx.node} is up since {boot.booted_at:%H:%M:%S %Z}, and Slurm still waits for its boot."
    )
    return Wait(text, again_in, ask=ask, is_told=True)


def _is_forgotten(ctx: Context, asked_at: datetime) -> bool:
    """Slurm waits for no boot, the node runs the old one, and slurmctld began anew just after it
    was asked. One that has shown the request since then has had it cancelled by somebody."""
    is_asked = ctx.facts.get("recovery") == Recovery.NODE_RESTART.value
    queued_at = get_fact_time(ctx, holding.QUEUED_AT)
    if not is_asked or ctx.state.is_rebooting:
        return False
    if not holding.is_forgotten(ctx, asked_at, queued_at):
        return False
    boot = looking.read_boot(ctx)
    return boot is not None and boot.boot_id == ctx.facts.get("boot_id_before")


def _find_new_boot(ctx: Context, asked_at: datetime) -> EndedBoot | None:
    before = ctx.facts.get("boot_id_before")
    boot = looking.read_boot(ctx)
    if before:
        return boot if boot is not None and boot.boot_id != before else None
    since = ctx.state.boot_time
    if since is None or not node_states.has_booted(ctx.state, asked_at):
        return None
    return boot or EndedBoot("", since)


def _give_up(ctx: Context, asked_at: datetime, *, has_booted: bool) -> Failed | NotCured:
    """A reboot of ours that Slurm has not sent yet is cancelled: it would send it later. One that
    it has sent it does not cancel (measured in 22.05): it waits on, and past ResumeTimeout lets go
    of the drain, which the ended run sees. A person's reboot is theirs to cancel.
    """
    minutes = round((ctx.now - asked_at).total_seconds() / 60)
    is_persons = not drains.is_own_reboot_awaited(ctx.facts)
    if is_persons and "REBOOT_REQUESTED" in ctx.state.flags:
        return Failed(
            f"{ctx.node} still waits for the reboot that someone else asked for: Slurm has not sent"
            f" it for {minutes} min. Kintsugi does not cancel it. It stays drained.",
            ask=f"See why Slurm does not reboot {ctx.node} (scontrol show node {ctx.node}), or"
            " reboot it by hand.",
        )
    if ctx.state.is_rebooting and not is_persons:
        with contextlib.suppress(SlurmRefusal):
            after = ctx.world.slurm_writer.cancel_reboot(
                ctx.node, ctx.facts["reason"], as_seen=ctx.state
            )
            ctx.facts[drains.REBOOT_CANCELLED] = True
            drains.store_written(ctx.facts, after)
            overwritten.note_drain(ctx.facts, ctx.state, after, ctx.now)
    if has_booted:
        return Failed(
            f"{ctx.node} has booted, but Slurm has not got it back within {minutes} min. It stays"
            " drained.",
            ask=f"See whether slurmd runs on {ctx.node}, and restart it: systemctl restart slurmd",
        )
    if node_states.is_back(ctx.state, asked_at):
        return Failed(
            f"{ctx.node} has booted, as Slurm says, but Kintsugi has no new boot id of it after"
            f" {minutes} min. It stays drained.",
            ask=f"See why Kintsugi cannot log in to {ctx.node}, test it, and resume it.",
        )
    if looking.read_boot(ctx) is not None:
        text = (
            f"{ctx.node} still runs the boot of before, {minutes} min after its reboot was asked"
            " for: RebootProgram"
        )
        return NotCured(
            f"{text} did nothing. It stays drained.",
            ask=f"Reboot {ctx.node} by hand, or power-cycle it.",
        )
    return NotCured(
        f"{ctx.node} has not come back {minutes} min after its reboot was asked for"
        " (KINTSUGI_BOOT_TIME).",
        ask=f"Look at {ctx.node}'s console and power-cycle it. It is drained.",
    )
