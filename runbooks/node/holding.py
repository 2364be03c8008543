"""What became of the run's drain, as the node shows it now: held, dropped by Slurm, or taken over
by a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from detectors.slurm import drain_reasons
from runbooks.node import drains
from runbooks.slurm import node_states, ownership
from runbooks.slurm.ownership import Dropped, Held, TakenOver
from runbooks.step import Context, format_iso, get_fact_time

# slurmctld keeps its state on disk every 5 s at most (SAVE_MAX_WAIT, src/slurmctld/state_save.c of
# 22.05): what it was told shortly before it died, the next one does not know. Measured here as up
# to 4 s; the rest is our choice.
_NOT_KEPT_YET = timedelta(seconds=30)
# It is printed in whole seconds.
_WHOLE = timedelta(seconds=1)


# The fact of a run: when the slurmctld began that showed no drain of ours any more.
LOST_AT = "slurm_state_lost_at"
# The fact of a run: when it last saw that Slurm had still to send its reboot.
QUEUED_AT = "reboot_queued_at"
# The fact of a run: when Slurm last showed its drain, as long as a slurmctld that began anew might
# not have kept it.
SHOWN_AT = "drain_shown_at"
# The fact of a run: when the slurmctld began that showed it then, as it says itself.
_SHOWN_BY = "drain_shown_by"


def find_lost_state(ctx: Context, seen_at: datetime | None) -> datetime | None:
    """When the slurmctld began that has lost its state: after this run last looked, and with no
    reason of ours on any node. Whether people resumed them all instead, only a person knows."""
    told_at = get_fact_time(ctx, LOST_AT)
    looks = (seen_at or _get_held_at(ctx), get_fact_time(ctx, SHOWN_AT))
    last_look = max((look for look in looks if look is not None), default=None)
    if told_at is not None or last_look is None:
        return told_at
    began_at = _parse_start(_read_start(ctx))
    if began_at is None or began_at <= last_look:
        return None
    reasons = [node.reason for node in ctx.world.slurm.read_nodes().values()]
    is_any_left = any(reason.startswith(drain_reasons.OURS) for reason in reasons)
    return None if is_any_left else began_at


def get_hold(ctx: Context) -> Held | Dropped | TakenOver:
    """Slurm is asked how it is set up only where it may itself have taken back a node that it
    rebooted for us."""
    if drains.is_lent(ctx.facts):
        return Held()
    found = drains.evaluate_hold(ctx)
    held_at = _get_held_at(ctx)
    if isinstance(found, Held):
        _note_shown(ctx, held_at)
    is_resumed = isinstance(found, TakenOver) and found.is_resumed
    if is_resumed and not _has_kept_reason(ctx) and _is_drain_forgotten(ctx, held_at):
        return Dropped(f"slurmctld restarted and has forgotten the drain of {ctx.node}")
    # Slurm's patience begins when it has sent the reboot.
    sent_after = get_fact_time(ctx, QUEUED_AT) or get_fact_time(ctx, "reboot_at")
    is_sent = "REBOOT_REQUESTED" not in ctx.state.flags and "booted_at" not in ctx.facts
    asked_at = ctx.facts.get("reboot_at")
    if isinstance(found, Held) and asked_at is not None and not ctx.state.is_rebooting:
        # From here on Slurm itself gives the node back to nobody.
        ctx.facts[drains.AWAITED_NO_MORE] = asked_at
    is_awaited = ctx.facts.get(drains.AWAITED_NO_MORE) != asked_at
    if not (is_resumed and is_sent and is_awaited) or sent_after is None:
        return found
    config = ctx.world.slurm.read_config()
    if not node_states.takes_back_unasked(config, asked_at=sent_after, now=ctx.now):
        return found
    return Dropped(
        f"Slurm gave up waiting for {ctx.node}'s boot and took it back unverified"
        " (ReturnToService=2)"
    )


def note_withdrawn_reboot(ctx: Context) -> None:
    """Of a look that does not end the run: a person's resume has taken our request for a reboot
    back, and one that Slurm shows from then on is theirs. Raises SlurmError."""
    if not drains.is_own_reboot_awaited(ctx.facts) or ctx.state.is_rebooting:
        return
    found = get_hold(ctx)
    if isinstance(found, TakenOver) and found.is_resumed:
        ctx.facts[drains.AWAITED_NO_MORE] = ctx.facts["reboot_at"]


def note_shown_drain(ctx: Context) -> None:
    """Of a look after which nothing is left to do: get_hold notes it too."""
    if not drains.is_lent(ctx.facts) and isinstance(drains.evaluate_hold(ctx), Held):
        _note_shown(ctx, _get_held_at(ctx))


def _has_kept_reason(ctx: Context) -> bool:
    """Whether slurmctld still knows the reason that the run wrote: a resume leaves it from 23.11 to
    25.11 without accounts, and a slurmctld that has forgotten the drain has no reason either."""
    written = ownership.load_written(ctx.facts)
    return any(ctx.state.reason.startswith(row.reason) for row in written)


def _note_shown(ctx: Context, held_at: datetime | None) -> None:
    """The first look after `_NOT_KEPT_YET` is the last that is noted: it tells of a slurmctld that
    has kept the drain."""
    if held_at is None:
        return
    shown_at = get_fact_time(ctx, SHOWN_AT)
    last = shown_at if shown_at is not None and shown_at >= held_at else held_at
    if last < held_at + _NOT_KEPT_YET + _WHOLE:
        ctx.facts[SHOWN_AT] = format_iso(ctx.now)
        ctx.facts[_SHOWN_BY] = _read_start(ctx)


def _is_drain_forgotten(ctx: Context, held_at: datetime | None) -> bool:
    """Not by the slurmctld that has shown it: the one that runs began when that one did, and before
    the drain was seen. A start in whole seconds alone does not tell one from the one before it."""
    if not is_forgotten(ctx, held_at):
        return False
    start = _read_start(ctx)
    began_at, shown_at = _parse_start(start), get_fact_time(ctx, SHOWN_AT)
    if began_at is None or shown_at is None or ctx.facts.get(_SHOWN_BY) != start:
        return True
    return shown_at < began_at


def is_forgotten(ctx: Context, told_at: datetime | None, shown_at: datetime | None = None) -> bool:
    """Whether slurmctld began anew so shortly after it was told something that it may not have kept
    it. `shown_at`: when it last showed that. One that has shown it since it began knows it; what is
    shown in the second in which it began may have been shown by the one before it."""
    if told_at is None:
        return False
    began_at = _parse_start(_read_start(ctx))
    if began_at is None or not -_WHOLE <= began_at - told_at < _NOT_KEPT_YET:
        return False
    is_shown = shown_at is not None and shown_at >= max(told_at, began_at + _WHOLE)
    return not is_shown


def _read_start(ctx: Context) -> str:
    """When slurmctld began, as it prints it; empty where it does not say."""
    return ctx.world.slurm.read_config().get("BOOT_TIME", "")


def _get_held_at(ctx: Context) -> datetime | None:
    return get_fact_time(ctx, "held_at") or get_fact_time(ctx, "drained_at")


def _parse_start(text: str) -> datetime | None:
    """slurmctld's start, as `scontrol show config` prints it with TZ=UTC."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
