"""Decides what one event means for the fault it speaks of: new, a repeat, its end, or nothing.
Pure.

Every decision carries the sentence that explains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors.faults import (
    Action,
    ClearRule,
    EventKind,
    FaultEvent,
    Severity,
    Verdict,
    VerdictKind,
)
from incidents.faults import flapping
from incidents.faults.flapping import USUAL, FlapLimits
from incidents.text.wording import format_clock, format_moment

# Ids of events are kept this long (our choice): an older event may have been counted already.
KEPT = timedelta(days=7)

# Our choice: what another GPU of the same job shows within a minute is the same crash.
APART = timedelta(minutes=1)


@dataclass(frozen=True)
class Standing:
    """The latest fault with the event's fingerprint, active or cleared, as the database has it."""

    is_active: bool
    severity: Severity
    action: Action
    clears: ClearRule
    raised_at: datetime
    last_seen_at: datetime
    cleared_at: datetime | None = None
    is_flapping: bool = False
    changes_at: tuple[datetime, ...] = ()
    has_ended: bool = False
    """Flapping: its device said last that it is over."""


@dataclass(frozen=True)
class Known:
    """What is known when an event arrives.

    `seen` is empty, or the sentence that says how the event was counted before. `booted_at` is the
    last confirmed boot of the event's node, None when there was none or it is no node.
    `repaired_at` is the last confirmed repair of its resource, and `repair` says which. `ended_at`
    is when an end was reported that found nothing active.
    """

    standing: Standing | None = None
    seen: str = ""
    booted_at: datetime | None = None
    repaired_at: datetime | None = None
    repair: str = ""
    ended_at: datetime | None = None
    limits: FlapLimits = USUAL


def decide(event: FaultEvent, known: Known, *, now: datetime) -> Verdict:
    """What to make of `event`, whose `occurred_at` is the time by which it is put in order
    (incidents.faults.clocks).

    IGNORED and STALE change nothing. FLAPPING is one more change of a fault that flaps, or the one
    by which it begins to: the fault then stands until it has been steady.
    """
    for refused in (
        _check_seen(known),
        _check_age(event, now),
        _check_boot(event, known),
        _check_repair(event, known),
    ):
        if refused is not None:
            return refused
    if event.event is EventKind.CLEARED:
        return _evaluate_clear(event, known.standing, known.limits)
    return _check_end(event, known) or _evaluate_raise(event, known.standing, known.limits)


def _check_seen(known: Known) -> Verdict | None:
    return Verdict(VerdictKind.IGNORED, known.seen) if known.seen else None


def _check_age(event: FaultEvent, now: datetime) -> Verdict | None:
    """By our own clock: a device whose clock is wrong must still be heard."""
    if now - event.observed_at <= KEPT:
        return None
    return Verdict(
        VerdictKind.STALE,
        f"first seen {format_moment(event.observed_at)}: ids are kept {KEPT.days} days, so it may"
        " have"
        " been counted before",
    )


def _check_boot(event: FaultEvent, known: Known) -> Verdict | None:
    booted = known.booted_at
    if booted is None or event.occurred_at >= booted:
        return None
    return Verdict(
        VerdictKind.STALE,
        f"happened {format_moment(event.occurred_at)}, before the node's last boot at"
        f" {format_moment(booted)}",
    )


def _check_repair(event: FaultEvent, known: Known) -> Verdict | None:
    if known.repaired_at is None or event.occurred_at >= known.repaired_at:
        return None
    return Verdict(
        VerdictKind.STALE, f"happened {format_moment(event.occurred_at)}, before {known.repair}"
    )


def _evaluate_clear(event: FaultEvent, standing: Standing | None, limits: FlapLimits) -> Verdict:
    if standing is None or not standing.is_active:
        return Verdict(VerdictKind.IGNORED, "clears a fault that does not stand")
    if event.occurred_at < standing.last_seen_at:
        return Verdict(
            VerdictKind.STALE,
            f"ended {format_moment(event.occurred_at)}, but the fault was seen again at"
            f" {format_moment(standing.last_seen_at)}",
        )
    if standing.is_flapping:
        if standing.has_ended:
            return Verdict(
                VerdictKind.IGNORED,
                "its end is known; it flaps, and stands until it has been steady",
            )
        return Verdict(
            VerdictKind.FLAPPING,
            f"{_format_flapping(standing, event, limits)}: it stands until it has been steady",
        )
    return Verdict(
        VerdictKind.CLEARED,
        f"ended at {format_clock(event.occurred_at)}, reported by {event.source}",
    )


def _check_end(event: FaultEvent, known: Known) -> Verdict | None:
    """Lines overtake each other on their way: the end may come first."""
    is_active = known.standing is not None and known.standing.is_active
    if is_active or known.ended_at is None or event.occurred_at >= known.ended_at:
        return None
    return Verdict(
        VerdictKind.STALE,
        f"happened {format_moment(event.occurred_at)}, and its end at"
        f" {format_moment(known.ended_at)} came first",
    )


def _evaluate_raise(event: FaultEvent, standing: Standing | None, limits: FlapLimits) -> Verdict:
    if standing is None:
        return Verdict(VerdictKind.NEW, "the first event with this fingerprint")
    if standing.is_active:
        if _is_worse(event, standing):
            return Verdict(
                VerdictKind.ESCALATED,
                f"was {standing.severity}, {standing.action}; now {event.severity}, {event.action}",
            )
        if standing.is_flapping and standing.has_ended:
            return Verdict(
                VerdictKind.FLAPPING,
                f"{_format_flapping(standing, event, limits)}: it is one fault while that lasts",
            )
        return Verdict(VerdictKind.REPEAT, "the fault stands already")
    ended = standing.cleared_at or standing.last_seen_at
    if standing.clears is ClearRule.BY_EVENT and event.occurred_at < ended:
        return Verdict(
            VerdictKind.STALE,
            f"happened {format_moment(event.occurred_at)}, before its reported end"
            f" {format_moment(ended)}",
        )
    changes = flapping.add_change(standing.changes_at, event.occurred_at)
    if flapping.begins(changes, event.occurred_at, limits):
        return Verdict(
            VerdictKind.FLAPPING,
            f"{_format_flapping(standing, event, limits)}, last ended {format_moment(ended)}",
        )
    return Verdict(VerdictKind.NEW, f"it had ended {format_moment(ended)} and is back")


def _is_worse(event: FaultEvent, standing: Standing) -> bool:
    return event.severity.rank > standing.severity.rank or event.action.rank > standing.action.rank


def _format_flapping(standing: Standing, event: FaultEvent, limits: FlapLimits) -> str:
    changes = flapping.add_change(standing.changes_at, event.occurred_at)
    rate = flapping.compute_percent(changes, event.occurred_at, limits)
    return f"it flaps: {rate:.0f} % of its last {flapping.PLACES} looks changed its state"
