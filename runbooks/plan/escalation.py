"""The ladder: which rung a fault calls for, by its action class and by what was tried before. Pure.

1. The action class names the first rung.  2. A rung that was tried on the part and did not cure it
  is passed.
3. After two restarts for one fault on one part within 14 days the hardware is suspect: the vendor.
4. A restart of the node that the guards would refuse is passed too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors.faults import Action, Recovery
from runbooks.plan.escalation_levels import RUNGS

FIRST: Mapping[Action, Recovery] = {
    Action.RESET_GPU: Recovery.GPU_RESET,
    Action.REBOOT: Recovery.NODE_RESTART,
    Action.COLD_CYCLE: Recovery.COLD_CYCLE,
    Action.VENDOR: Recovery.VENDOR_REPLACEMENT,
}
# How far back a part is remembered, and how many restarts make its hardware suspect (our choice:
# docs/runbooks.md, The ladder).
MEMORY = timedelta(days=14)
RESTARTS_THAT_SUFFICE = 2
# A fault that comes back within a day of a restart was not cured by it (our choice).
WINDOW = timedelta(hours=24)
_LAST = RUNGS.index(Recovery.VENDOR_REPLACEMENT)
_RESTARTS = frozenset({Recovery.NODE_RESTART, Recovery.COLD_CYCLE})
_WORDS: Mapping[Recovery, str] = {
    Recovery.GPU_RESET: "a GPU reset",
    Recovery.NODE_RESTART: "a reboot",
    Recovery.COLD_CYCLE: "a cold power cycle",
    Recovery.VENDOR_REPLACEMENT: "a new part",
}


@dataclass(frozen=True)
class Tried:
    """One rung that was tried for the fault type somewhere on the node. `has_cured` None: not
    known, or not yet.

    `was_begun`: something was done to the node; a rung that could not even be tried is passed, and
    restarted nothing. Whoever asks has left out parts that are no longer there: a new part begins
    at the foot.
    """

    rung: Recovery
    resource: str
    at: datetime
    has_cured: bool | None = None
    window: timedelta = WINDOW
    was_begun: bool = True

    def counts_against(self, now: datetime) -> bool:
        """Whether the fault that stands now shows that it did not cure."""
        return self.has_cured is False or (self.has_cured is None and now - self.at < self.window)


@dataclass(frozen=True)
class Call:
    """`rung` is called for, or the next above it. `may_go_to_vendor`: also where only absent rungs
    lie between."""

    rung: Recovery
    reason: str
    may_go_to_vendor: bool


def get_call(
    action: Action, resource: str, history: Sequence[Tried], *, now: datetime
) -> Call | None:
    """The rung that a fault on `resource` calls for; None for an action class that no rung
    answers."""
    if action not in FIRST:
        return None
    recent = [tried for tried in history if timedelta(0) <= now - tried.at < MEMORY]
    on_part = [tried for tried in recent if tried.resource == resource]
    first = FIRST[action]
    level, reason = _rank(first), f"action class {action} calls for {_WORDS[first]}"
    failed = max(
        (tried for tried in on_part if tried.counts_against(now)), key=_rank_attempt, default=None
    )
    if failed is not None and _rank(failed.rung) >= level:
        level = min(_rank(failed.rung) + 1, _LAST)
        reason = f"{_WORDS[failed.rung]} at {_format_time(failed.at)} did not cure it"
    restarts = [tried for tried in on_part if _is_begun_restart(tried)]
    if len(restarts) >= RESTARTS_THAT_SUFFICE and level < _LAST:
        level, reason = _LAST, _format_suspicion(restarts)
    while (refused := _find_refused_restart(RUNGS[level], recent, now)) is not None:
        restart = f"{_WORDS[RUNGS[level]]} at {_format_time(refused.at)}"
        reason = f"{restart} for the same fault on this node makes it suspect"
        level += 1
    may_go_to_vendor = level == _LAST or failed is not None
    return Call(RUNGS[level], reason, may_go_to_vendor=may_go_to_vendor)


def _format_suspicion(restarts: Sequence[Tried]) -> str:
    last = _format_time(max(tried.at for tried in restarts))
    count = f"{len(restarts)} restarts for it within 14 days"
    return f"{count}, the last at {last}, have made the hardware suspect"


def _find_refused_restart(rung: Recovery, recent: Sequence[Tried], now: datetime) -> Tried | None:
    """The last restart of this kind, of any part of the node, after which the guards allow no
    further one."""
    restarts = [tried for tried in recent if tried.rung is rung and _is_begun_restart(tried)]
    if not restarts:
        return None
    last = max(restarts, key=lambda tried: tried.at)
    is_allowed = now - last.at >= WINDOW and len(restarts) < RESTARTS_THAT_SUFFICE
    return None if is_allowed else last


def _is_begun_restart(tried: Tried) -> bool:
    return tried.rung in _RESTARTS and tried.was_begun


def _rank(rung: Recovery) -> int:
    return RUNGS.index(rung)


def _rank_attempt(tried: Tried) -> tuple[int, datetime]:
    return _rank(tried.rung), tried.at


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M %Z}"
