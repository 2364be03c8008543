"""What became of the run's drain, as the node shows it now: held, dropped by Slurm, or taken over
by a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from detectors.slurm import drain_reasons
from runbooks.node import drains, node_loan
from runbooks.slurm import node_states
from runbooks.slurm.ownership import Dropped, Held, TakenOver
from runbooks.step import Context, get_fact_time

# slurmctld keeps its state on disk every 5 s at most (SAVE_MAX_WAIT, src/slurmctld/state_save.c of
# 22.05): what it was told shortly before it died, the next one does not know. Measured here as up
# to 4 s; the rest is our choice.
_NOT_KEPT_YET = timedelta(seconds=30)
# It is printed in whole seconds.
_WHOLE = timedelta(seconds=1)


# The fact of a run: when the slurmctld began that showed no drain of ours any more.
LOST_AT = "slurm_state_lost_at"
# The fact of a run: the request for a reboot of which it has seen that Slurm waits for no boot any
# more.
_AWAITED_NO_MORE = "reboot_awaited_no_more"
# The fact of a run: when it last saw that Slurm had still to send its reboot.
QUEUED_AT = "reboot_queued_at"


def find_lost_state(ctx: Context, seen_at: datetime | None) -> datetime | None:
    """When the slurmctld began that has lost its state: after this run last looked, and with no
    reason of ours on any node. Whether people resumed them all instead, only a person knows."""
    told_at = get_fact_time(ctx, LOST_AT)
    last_look = seen_at or _get_held_at(ctx)
    if told_at is not None or last_look is None:
        return told_at
    began_at = _parse_start(ctx.world.slurm.read_config().get("BOOT_TIME", ""))
    if began_at is None or began_at <= last_look:
        return None
    reasons = [node.reason for node in ctx.world.slurm.read_nodes().values()]
    is_any_left = any(reason.startswith(drain_reasons.OURS) for reason in reasons)
    return None if is_any_left else began_at


def get_hold(ctx: Context) -> Held | Dropped | TakenOver:
    """Slurm is asked how it is set up only where it may itself have taken back a node that it
    rebooted for us."""
    if node_loan.is_lent(ctx.facts):
        return Held()
    found = drains.evaluate_hold(ctx)
    if isinstance(found, TakenOver) and found.is_resumed and is_forgotten(ctx, _get_held_at(ctx)):
        return Dropped(f"slurmctld restarted and has forgotten the drain of {ctx.node}")
    # Slurm's patience begins when it has sent the reboot.
    sent_after = get_fact_time(ctx, QUEUED_AT) or get_fact_time(ctx, "reboot_at")
    is_sent = "REBOOT_REQUESTED" not in ctx.state.flags and "booted_at" not in ctx.facts
    is_resumed = isinstance(found, TakenOver) and found.is_resumed
    asked_at = ctx.facts.get("reboot_at")
    if isinstance(found, Held) and asked_at is not None and not ctx.state.is_rebooting:
        # From here on Slurm itself gives the node back to nobody.
        ctx.facts[_AWAITED_NO_MORE] = asked_at
    is_awaited = ctx.facts.get(_AWAITED_NO_MORE) != asked_at
    if not (is_resumed and is_sent and is_awaited) or sent_after is None:
        return found
    config = ctx.world.slurm.read_config()
    if not node_states.takes_back_unasked(config, asked_at=sent_after, now=ctx.now):
        return found
    return Dropped(
        f"Slurm gave up waiting for {ctx.node}'s boot and took it back unverified"
        " (ReturnToService=2)"
    )


def is_forgotten(ctx: Context, told_at: datetime | None) -> bool:
    """Whether slurmctld began anew so shortly after it was told something that it may not have kept
    it."""
    began_at = (
        _parse_start(ctx.world.slurm.read_config().get("BOOT_TIME", ""))
        if told_at is not None
        else None
    )
    return (
        told_at is not None
        and began_at is not None
        and -_WHOLE <= began_at - told_at < _NOT_KEPT_YET
    )


def _get_held_at(ctx: Context) -> datetime | None:
    return get_fact_time(ctx, "held_at") or get_fact_time(ctx, "drained_at")


def _parse_start(text: str) -> datetime | None:
    """slurmctld's start, as `scontrol show config` prints it with TZ=UTC."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
