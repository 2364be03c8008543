"""Several incidents become one when a fault shows that they have one cause. Never touches what a
person placed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from incidents.correlation.engine import Joins
from incidents.models import Decision, Incident, IncidentFault, TimelineEntry
from incidents.state.batch import TriageBatch
from incidents.state.cases import Absorbed, FaultCase, IncidentCase, TimelineNote
from incidents.state.transitions import move, tell
from incidents.vocabulary.changes import KINTSUGI, Acted
from incidents.vocabulary.lifecycle import State, Trigger, get_next_state

_ATTEMPTS = 3


def absorb(
    batch: TriageBatch, stays: IncidentCase, other: IncidentCase, why: Joins, root: FaultCase
) -> None:
    other.into = stays
    for member in other.members:
        member.member = stays
        stays.add(member)
    batch.index.merge(other.key, stays.key)
    stays.joins += other.joins
    stays.role_changes += other.role_changes
    if other.root is not root:
        stays.demote(other.root, why.rule, why.reason)
    stays.is_changed = stays.is_unsettled = True
    _take_facts(stays.row, other.row)
    if other.is_new:  # nobody heard of it: its faults are told where they are now
        for decision in batch.decisions:
            if decision.incident is other.row:
                decision.incident = stays.row
        text = f"{batch.format_fault(other.root.row)}, {why.reason}"
        stays.entries.append(TimelineNote("joined", text, other.root.row.raised_at, why.rule))
        return
    stays.absorbed += [Absorbed(other, why.rule, why.reason), *other.absorbed]
    text = (
        f"Incident #{other.row.pk} is part of this one: {batch.format_fault(other.root.row)},"
        f" {why.reason}."
    )
    stays.entries.append(TimelineNote("merged", text, batch.now, "merged"))
    batch.decide(Decision.Kind.MERGED, other.root, other, f"merged, {why.reason}", rule=why.rule)
    batch.decide(Decision.Kind.MERGED, other.root, stays, text, rule=why.rule)


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
            ended = _move(
                row, stays.row, f"It was merged into #{stays.row.pk}: {one.reason}.", told, now=now
            )
            if ended:
                IncidentFault.objects.filter(incident=row).update(incident=stays.row)
                Incident.objects.filter(duplicate_of=row).update(duplicate_of=stays.row)
    tell(told, now)


def _move(
    row: Incident, stays: Incident, note: str, told: list[TimelineEntry], *, now: datetime
) -> bool:
    """Looks again when someone moved the incident between our look and our write."""
    for _ in range(_ATTEMPTS):
        if get_next_state(State(row.state), Trigger.MARK_DUPLICATE) is None:
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
