"""Which runbook an incident calls for: those whose `for` fits, at the ladder's rung, as far as
their modes go. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from runbooks.plan import escalation
from runbooks.plan.escalation import Call, Tried
from runbooks.plan.escalation_levels import RUNGS
from runbooks.plan.runbook import Runbook, Trouble

_VENDOR = RUNGS[-1]
OFF, SHADOW = "off", "shadow"
_LAST_RESORT = "no further rung of the ladder is left or allowed"


@dataclass(frozen=True)
class FaultPlace:
    """`resource` is the part; `is_node`: it is on a node of the inventory, which `is_provisional`
    says otherwise of."""

    resource: str
    is_node: bool
    is_provisional: bool


@dataclass(frozen=True)
class Past:
    """What was tried before: rungs, and runbooks that this incident has seen end without a cure."""

    tried: Sequence[Tried] = ()
    spent: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Chosen:
    """`reason` ends the sentence "It was chosen, because ..."."""

    book: Runbook
    reason: str


@dataclass(frozen=True)
class NoRunbook:
    """Nothing is started; `reason` is for people."""

    reason: str


def choose(
    trouble: Trouble,
    place: FaultPlace,
    books: Iterable[Runbook],
    *,
    modes: Mapping[str, str],
    past: Past,
    now: datetime,
) -> Chosen | NoRunbook:
    """One runbook, or why there is none. A mode that is not given is shadow, which is as good as
    any but off."""
    fitting = [book for book in books if book.fits(trouble)]
    if not fitting:
        fault = f"{trouble.fault_type} with action class {trouble.action}"
        return NoRunbook(f"no runbook is for {fault}, of class {trouble.component}")
    if place.is_provisional:
        return NoRunbook(
            "its machine is not in the inventory, and what is not in the inventory is never acted"
            " upon"
        )
    usable = [book for book in fitting if place.is_node or not book.needs_node]
    if not usable:
        return NoRunbook("it is on no node of the inventory")
    on = [book for book in usable if modes.get(book.name) != OFF]
    allowed = [book for book in on if book.name not in past.spent]
    call = escalation.get_call(trouble.action, place.resource, past.tried, now=now)
    chosen = _choose_from_ladder(trouble, allowed, call, modes)
    return chosen or _explain_none(usable, past, call)


def _choose_from_ladder(
    trouble: Trouble, allowed: Sequence[Runbook], call: Call | None, modes: Mapping[str, str]
) -> Chosen | None:
    """The lowest rung from the called one on; what stands beside the ladder where it names the
    fault more closely.

    What stands beside it and is in shadow keeps neither a rung nor what may act from going.
    """

    def rank(book: Runbook) -> tuple[int, bool, str]:
        return -book.compute_closeness(trouble), not book.is_sites_own, book.name

    ordered = sorted(allowed, key=rank)
    beside = [book for book in ordered if book.rung is None]
    acting = (book for book in beside if not _is_shadow(book, modes))
    named = next(acting, beside[0] if beside else None)
    rungs = [book for book in ordered if call is not None and _can_answer(book, call)]
    on_ladder = min(rungs, key=_rank, default=None)
    if on_ladder is None or call is None:
        if named is None:
            return None
        is_last_resort = call is not None and any(book.rung is not None for book in allowed)
        return Chosen(named, _LAST_RESORT if is_last_resort else "it is for such faults")
    if named is None or named.compute_closeness(trouble) <= on_ladder.compute_closeness(trouble):
        return Chosen(on_ladder, call.reason)
    if _is_shadow(named, modes) and not _is_shadow(on_ladder, modes):
        return Chosen(on_ladder, call.reason)
    reason = "its node is a lemon" if trouble.is_lemon else f"it names {trouble.fault_type}"
    return Chosen(named, reason)


def _is_shadow(book: Runbook, modes: Mapping[str, str]) -> bool:
    return modes.get(book.name, SHADOW) == SHADOW


def _can_answer(book: Runbook, call: Call) -> bool:
    if book.rung is None or _rank(book) < RUNGS.index(call.rung):
        return False
    return book.rung is not _VENDOR or call.may_go_to_vendor


def _rank(book: Runbook) -> int:
    return RUNGS.index(book.rung) if book.rung is not None else len(RUNGS)


def _explain_none(usable: Sequence[Runbook], past: Past, call: Call | None) -> NoRunbook:
    names = [book.name for book in usable]
    spent = [name for name in names if name in past.spent]
    if spent:
        names_spent = ", ".join(spent)
        return NoRunbook(f"{names_spent} did not cure it, and no other runbook is left or allowed")
    reason = f"{', '.join(names)}: no mode but off among those that would answer"
    return NoRunbook(f"{reason}, while {call.reason}" if call is not None else reason)
