"""Several incidents become one when a fault shows that they have one cause. Never touches what a
person placed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from detectors.faults import Role
from incidents.correlation.engine import Joins, Merges
from incidents.models import Decision, Incident, IncidentFault, TimelineEntry
from incidents.state.cases import Absorbed, Entry, FaultCase, IncidentCase
from incidents.state.transitions import move, tell
from incidents.vocabulary.changes import KINTSUGI, Acted
from incidents.vocabulary.lifecycle import State, Trigger, next_state

if TYPE_CHECKING:
    from incidents.state.board import Board

_ATTEMPTS = 3


def merge(board: Board, fault: FaultCase, placed: Merges) -> None:
    """The others become part of the incident that stays; then the fault joins it, as root or
    symptom."""
    stays = board.incidents[placed.incident]
    root = fault if placed.root_of is None else board.incidents[placed.root_of].root
    why = {
        one.incident: Joins(stays.key, Role.SYMPTOM, one.rule, one.reason)
        for one in placed.explained
    }
    for key in placed.others:
        _absorb(board, stays, board.incidents.pop(key), why.get(key, placed.joins), root)
    if root is not fault:
        board.take_root(stays, root, why.get(stays.key, placed.joins))
    board.join(fault, stays, placed.joins)


def _absorb(
    board: Board, stays: IncidentCase, other: IncidentCase, why: Joins, root: FaultCase
) -> None:
    other.into = stays
    for member in other.members:
        member.member = stays
        stays.add(member)
    board.met.merge(other.key, stays.key)
    stays.joins += other.joins
    stays.demoted += other.demoted
    if other.root is not root:
        stays.demote(other.root, why.rule, why.reason)
    stays.is_changed = stays.is_unsettled = True
    _take_facts(stays.row, other.row)
    if other.is_new:  # nobody heard of it: its faults are told where they are now
        for decision in board.decisions:
            if decision.incident is other.row:
                decision.incident = stays.row
        text = f"{board.named(other.root.row)}, {why.reason}"
        stays.entries.append(Entry("joined", text, other.root.row.raised_at, why.rule))
        return
    stays.absorbed += [Absorbed(other, why.rule, why.reason), *other.absorbed]
    text = (
        f"Incident #{other.row.pk} is part of this one: {board.named(other.root.row)},"
        f" {why.reason}."
    )
    stays.entries.append(Entry("merged", text, board.now, "merged"))
    board.decide(Decision.Kind.MERGED, other.root, other, f"merged, {why.reason}", rule=why.rule)
    board.decide(Decision.Kind.MERGED, other.root, stays, text, rule=why.rule)


def _take_facts(row: Incident, other: Incident) -> None:
    if other.onset_at < row.onset_at:
        row.onset_at, row.last_known_good_at = other.onset_at, other.last_known_good_at
    row.has_platform_signal = row.has_platform_signal or other.has_platform_signal
    row.has_user_report = row.has_user_report or other.has_user_report


def close(incidents: Iterable[IncidentCase], *, now: datetime) -> None:
    """Ends the absorbed ones as duplicates, which frees their roots. Before the incident that stays
    is written."""
    told: list[TimelineEntry] = []
    for stays in incidents:
        for one in stays.absorbed:
            row = one.case.row
            ended = _moved(
                row, stays.row, f"It was merged into #{stays.row.pk}: {one.reason}.", told, now=now
            )
            if ended:
                IncidentFault.objects.filter(incident=row).update(incident=stays.row)
                Incident.objects.filter(duplicate_of=row).update(duplicate_of=stays.row)
    tell(told, now)


def _moved(
    row: Incident, stays: Incident, note: str, told: list[TimelineEntry], *, now: datetime
) -> bool:
    """Looks again when someone moved the incident between our look and our write."""
    for _ in range(_ATTEMPTS):
        if next_state(State(row.state), Trigger.MARK_DUPLICATE) is None:
            return False
        moved = move(
            row,
            Trigger.MARK_DUPLICATE,
            actor=KINTSUGI,
            note=note,
            now=now,
            told=told,
            duplicate_of=stays,
            root_fault=None,
        )
        if isinstance(moved, Acted):
            return True
        row.refresh_from_db(fields=["state"])
    return False
