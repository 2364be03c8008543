"""How long vendors take: each stage of their cases, by vendor and part, with those that still wait
counted as waiting.

Medians and intervals are those of the time to restore (docs/reliability.md): Kaplan-Meier, so that
a case that has stood for weeks does not drop out of the figure because it has not ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from incidents.models import VendorCase, VendorMove
from incidents.reliability import estimates
from incidents.reliability.proportions import Estimate
from incidents.reliability.texts import format_to_restore
from incidents.vocabulary.vendor_states import CaseState, Move

_DAY_S = 86400.0
EVERYBODY = "all"
# From, to. The last one is the whole of it: from the call to the verified part.
STAGES: tuple[tuple[CaseState, CaseState], ...] = (
    (CaseState.OPENED, CaseState.SHIPPED),
    (CaseState.SHIPPED, CaseState.RECEIVED),
    (CaseState.RECEIVED, CaseState.INSTALLED),
    (CaseState.INSTALLED, CaseState.VERIFIED),
    (CaseState.OPENED, CaseState.VERIFIED),
)


@dataclass(frozen=True)
class Stage:
    """Days of one stage. `ended` of `count` have passed it; the others still stand before its
    end."""

    begins: CaseState
    ends: CaseState
    median_days: Estimate
    ended: int
    count: int


@dataclass(frozen=True)
class LeadTimes:
    """One vendor's (or everybody's) cases for one kind of part (or all); `dead_on_arrival` of
    `parts` that came."""

    vendor: str
    part: str
    cases: int
    dead_on_arrival: int
    parts: int
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Span:
    """One case's way through one stage. `days` so far, where it has not ended."""

    stage: tuple[CaseState, CaseState]
    days: float
    has_ended: bool


def compute_lead_times(now: datetime) -> list[LeadTimes]:
    """Everybody's first, then each vendor and part, by name. Two queries."""
    cases = list(VendorCase.objects.order_by("pk"))
    moves: dict[int, list[VendorMove]] = {case.pk: [] for case in cases}
    for row in VendorMove.objects.order_by("pk"):
        moves[row.case_id].append(row)
    groups = {(EVERYBODY, EVERYBODY): cases}
    for case in cases:
        group = (case.vendor or "not known", case.part)
        groups.setdefault(group, []).append(case)
    everybody_first = sorted(groups, key=lambda group: (group[0] != EVERYBODY, group))
    rows = []
    for vendor, part in everybody_first:
        rows.append(_compute_lead_times(vendor, part, groups[vendor, part], moves, now))
    return rows


def _compute_lead_times(
    vendor: str,
    part: str,
    cases: list[VendorCase],
    moves: Mapping[int, list[VendorMove]],
    now: datetime,
) -> LeadTimes:
    spans_by_stage: dict[tuple[CaseState, CaseState], list[Span]] = {stage: [] for stage in STAGES}
    dead = 0
    installed = 0
    for case in cases:
        case_moves = moves[case.pk]
        dead += case.dead_on_arrival
        installed += sum(row.move == Move.INSTALL for row in case_moves)
        history = [(row.move, row.to_state, row.at) for row in case_moves]
        for span in iterate_spans(history, now):
            spans_by_stage[span.stage].append(span)
    stages = tuple(_make_stage(stage, found) for stage, found in spans_by_stage.items())
    return LeadTimes(vendor, part, len(cases), dead, max(installed, dead), stages)


def iterate_spans(moves: Iterable[tuple[str, str, datetime]], now: datetime) -> Iterator[Span]:
    """The stages of one case from its moves, (what, state after it, when), in order. Pure.

    A stage that the case left out has no span: nobody said when it began. A dead part begins a new
    round of its way, while the whole goes on from the call. What was closed before its end is not
    waited for any more: it is cut there.
    """
    at: dict[CaseState, datetime] = {}
    stages, ended_at = STAGES, now
    for what, state, when in moves:
        if what == Move.CLOSE:
            ended_at = when
            break
        if what == Move.DEAD_ON_ARRIVAL:
            yield from (span for span in _list_passed(at, stages, when) if span.has_ended)
            stages = STAGES[1:]  # the vendor is not called again
            at = {CaseState.OPENED: at[CaseState.OPENED], CaseState.SHIPPED: when}
            continue
        at.setdefault(CaseState(state), when)
    yield from _list_passed(at, stages, ended_at)


def _list_passed(
    at: Mapping[CaseState, datetime], stages: Iterable[tuple[CaseState, CaseState]], until: datetime
) -> Iterator[Span]:
    for begins, ends in stages:
        if begins in at and ends in at:
            yield Span((begins, ends), _count_days(at[begins], at[ends]), has_ended=True)
        elif begins in at and not _is_past(at, ends):
            yield Span((begins, ends), _count_days(at[begins], until), has_ended=False)


def _is_past(at: Mapping[CaseState, datetime], state: CaseState) -> bool:
    """A later state was reached without this one: nobody will say any more when it was."""
    order = list(CaseState)
    return any(order.index(reached) > order.index(state) for reached in at)


def _count_days(begins: datetime, ends: datetime) -> float:
    return max(0.0, (ends - begins).total_seconds() / _DAY_S)


def _make_stage(stage: tuple[CaseState, CaseState], found: list[Span]) -> Stage:
    begins, ends = stage
    if not found:
        return Stage(begins, ends, Estimate(None, None, None), ended=0, count=0)
    days = np.array([span.days for span in found], dtype=float)
    has_ended = np.array([span.has_ended for span in found], dtype=bool)
    median = estimates.estimate_median(estimates.compute_kaplan_meier(days, has_ended))
    return Stage(begins, ends, median, int(has_ended.sum()), len(found))


def format_stage(stage: Stage) -> str:
    """`6.0 d (4.0 d to 9.5 d), 5 of 7`: the median with its 95 % interval, and how many have
    passed."""
    if not stage.count:
        return "-"
    days = stage.median_days
    hours = Estimate(_to_hours(days.value), _to_hours(days.low), _to_hours(days.high))
    return f"{format_to_restore(hours)}, {stage.ended} of {stage.count}"


def _to_hours(days: float | None) -> float | None:
    return None if days is None else days * 24


def as_json(rows: Iterable[LeadTimes]) -> list[dict[str, Any]]:
    """The shape of `kintsugi vendor times --json` (docs/vendor.md)."""
    return [_row_as_json(row) for row in rows]


def _row_as_json(row: LeadTimes) -> dict[str, Any]:
    stages = [_stage_as_json(stage) for stage in row.stages]
    return {
        "vendor": row.vendor,
        "part": row.part,
        "cases": row.cases,
        "dead_on_arrival": row.dead_on_arrival,
        "parts": row.parts,
        "stages": stages,
    }


def _stage_as_json(stage: Stage) -> dict[str, Any]:
    median = stage.median_days
    median_days = {"value": median.value, "low": median.low, "high": median.high}
    return {
        "from": stage.begins.value,
        "to": stage.ends.value,
        "median_days": median_days,
        "ended": stage.ended,
        "count": stage.count,
    }
