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
# How far back a part is remembered, and how many restarts make its hardware suspect (issue 5,
# section 1).
MEMORY = timedelta(days=14)
RESTARTS_THAT_SUFFICE = 2
# A fault that comes back within a day of a restart was not cured by it (issue 2, section 5).
WINDOW = timedelta(hours=24)
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


def called(
    action: Action, resource: str, history: Sequence[Tried], *, now: datetime
) -> Call | None:
    """The rung that a fault on `resource` calls for; None for an action class that no rung
    answers."""
    if action not in FIRST:
        return None
    lately = [tried for tried in history if timedelta(0) <= now - tried.at < MEMORY]
    on_part = [tried for tried in lately if tried.resource == resource]
    level, reason = _rank(FIRST[action]), f"action class {action} calls for {_WORDS[FIRST[action]]}"
    failed = [tried for tried in on_part if tried.counts_against(now)]
    if failed and _rank(max(failed, key=_rank_of).rung) >= level:
        last = max(failed, key=_rank_of)
        level = min(_rank(last.rung) + 1, len(RUNGS) - 1)
        reason = f"{_WORDS[last.rung]} at {_shown(last.at)} did not cure it"
    restarts = [tried for tried in on_part if tried.rung in _RESTARTS and tried.was_begun]
    if len(restarts) >= RESTARTS_THAT_SUFFICE and level < len(RUNGS) - 1:
        level = len(RUNGS) - 1
        reason = (
            f"{len(restarts)} restarts for it within 14 days, the last at"
            f" {_shown(max(t.at for t in restarts))}"
        )
        reason += ", have made the hardware suspect"
    while (refused := _refused(RUNGS[level], lately, now)) is not None:
        reason = (
            f"{_WORDS[RUNGS[level]]} at {_shown(refused.at)} for the same fault on this node makes"
            " it suspect"
        )
        level += 1
    is_hard = RUNGS[level] is Recovery.VENDOR_REPLACEMENT or bool(failed)
    return Call(RUNGS[level], reason, may_go_to_vendor=is_hard)


def _refused(rung: Recovery, lately: Sequence[Tried], now: datetime) -> Tried | None:
    """The last restart of this kind, of any part of the node, after which the guards allow no
    further one."""
    begun = (
        tried for tried in lately if tried.rung is rung and rung in _RESTARTS and tried.was_begun
    )
    same = sorted(begun, key=lambda tried: tried.at)
    if not same or (now - same[-1].at >= WINDOW and len(same) < RESTARTS_THAT_SUFFICE):
        return None
    return same[-1]


def _rank(rung: Recovery) -> int:
    return RUNGS.index(rung)


def _rank_of(tried: Tried) -> tuple[int, datetime]:
    return _rank(tried.rung), tried.at


def _shown(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M %Z}"
