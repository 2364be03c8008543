"""Decides what one event means for the fault it speaks of: new, a repeat, its end, or nothing. Pure.

Every decision carries the sentence that explains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors.faults import Action, ClearRule, EventKind, FaultEvent, Severity, Verdict, VerdictKind
from incidents.wording import clock, moment

# Ids of events are kept this long (DESIGN section 2): an older event may have been counted already.
KEPT = timedelta(days=7)
# The second return within the quiet period makes a pattern: until then one repair may just have failed.
RETURNS_OF_A_FLAPPING_FAULT = 2


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
    returns: int = 0
    is_flapping: bool = False


@dataclass(frozen=True)
class Known:
    """What is known when an event arrives.

    `seen` is empty, or the sentence that says how the event was counted before. `booted_at` is the last
    confirmed boot of the event's node, None when there was none or it is no node; `is_of_this_boot` is true when
    an earlier date only shows that the node's clock is behind (incidents.boots).
    """

    standing: Standing | None = None
    seen: str = ""
    booted_at: datetime | None = None
    is_of_this_boot: bool = False


def decide(event: FaultEvent, known: Known, *, now: datetime, quiet: timedelta) -> Verdict:
    """What to make of `event`. `quiet` is the period within which a return counts as flapping.

    IGNORED and STALE change nothing. FLAPPING is a raise that reopens, or a clear that has to wait out `quiet`.
    """
    for refused in (_seen(known), _too_old(event, now), _before_boot(event, known)):
        if refused is not None:
            return refused
    if event.event is EventKind.CLEARED:
        return _cleared(event, known.standing)
    return _raised(event, known.standing, quiet)


def _seen(known: Known) -> Verdict | None:
    return Verdict(VerdictKind.IGNORED, known.seen) if known.seen else None


def _too_old(event: FaultEvent, now: datetime) -> Verdict | None:
    """By our own clock: a device whose clock is wrong must still be heard."""
    if now - event.observed_at <= KEPT:
        return None
    return Verdict(
        VerdictKind.STALE,
        f"first seen {moment(event.observed_at)}: ids are kept {KEPT.days} days, so it may have been counted before",
    )


def _before_boot(event: FaultEvent, known: Known) -> Verdict | None:
    booted = known.booted_at
    if booted is None or event.occurred_at >= booted or known.is_of_this_boot:
        return None
    return Verdict(
        VerdictKind.STALE, f"happened {moment(event.occurred_at)}, before the node's last boot at {moment(booted)}"
    )


def _cleared(event: FaultEvent, standing: Standing | None) -> Verdict:
    if standing is None or not standing.is_active:
        return Verdict(VerdictKind.IGNORED, "clears a fault that does not stand")
    if event.occurred_at < standing.last_seen_at:
        return Verdict(
            VerdictKind.STALE,
            f"ended {moment(event.occurred_at)}, but the fault was seen again at {moment(standing.last_seen_at)}",
        )
    if standing.is_flapping:
        return Verdict(VerdictKind.FLAPPING, f"came back {standing.returns} times: stays until it has been quiet")
    return Verdict(VerdictKind.CLEARED, f"ended at {clock(event.occurred_at)}, reported by {event.source}")


def _raised(event: FaultEvent, standing: Standing | None, quiet: timedelta) -> Verdict:
    if standing is None:
        return Verdict(VerdictKind.NEW, "the first event with this fingerprint")
    if standing.is_active:
        if _is_worse(event, standing):
            return Verdict(
                VerdictKind.ESCALATED,
                f"was {standing.severity}, {standing.action}; now {event.severity}, {event.action}",
            )
        return Verdict(VerdictKind.REPEAT, "the fault stands already")
    ended = standing.cleared_at or standing.last_seen_at
    if standing.clears is ClearRule.BY_EVENT and event.occurred_at < ended:
        return Verdict(
            VerdictKind.STALE, f"happened {moment(event.occurred_at)}, before its reported end {moment(ended)}"
        )
    if event.occurred_at - ended <= quiet and standing.returns + 1 >= RETURNS_OF_A_FLAPPING_FAULT:
        return Verdict(VerdictKind.FLAPPING, f"back for the {_times(standing.returns + 1)}, last ended {moment(ended)}")
    return Verdict(VerdictKind.NEW, f"it had ended {moment(ended)} and is back")


def _is_worse(event: FaultEvent, standing: Standing) -> bool:
    return event.severity.rank > standing.severity.rank or event.action.rank > standing.action.rank


def _times(count: int) -> str:
    return {1: "first time", 2: "second time", 3: "third time"}.get(count, f"{count}th time")
