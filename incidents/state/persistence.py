"""Writes what a batch made of faults and incidents, in the order that keys need. Decides
nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import chain

from incidents.db import upsert
from incidents.models import Incident, IncidentFault, TimelineEntry
from incidents.state import merge, outbox
from incidents.state.batch import TriageBatch
from incidents.state.cases import FaultCase, IncidentCase, TimelineNote
from incidents.vocabulary.changes import KINTSUGI, Change

# What a fault that stood before may change.
_FAULT_COLUMNS = [
    "severity",
    "action",
    "is_active",
    "is_flapping",
    "clock",
    "returns",
    "changes_at",
    "flap_percent",
    "last_seen_at",
    "cleared_at",
    "cleared_reason",
    "clears_at",
    "held_until",
    "forger",
    "best_provenance",
]
# The state is not among them: it changes by compare-and-swap alone.
_INCIDENT_COLUMNS = [
    "title",
    "component",
    "fault_type",
    "severity",
    "action",
    "root_resource",
    "owner",
    "node",
    "root_fault",
    "has_platform_signal",
    "has_user_report",
    "silence",
    "announced_at",
    "onset_at",
    "last_known_good_at",
    "updated_at",
    "held_until",
    "held_reason",
]
_TOLD = 3


def persist(batch: TriageBatch) -> None:
    """Everything that changed, and what came of it into the batch's `changes`."""
    cases = {id(case): case for case in (*batch.replaced, *batch.faults.values())}
    for incident in batch.incidents.values():
        cases.update({id(case): case for case in incident.members})
    incidents = list(batch.incidents.values())
    _create(list(cases.values()), incidents)
    merge.close(incidents, now=batch.now)
    _update(incidents, now=batch.now)
    for kind, fault, member, text in batch.pending:
        survivor = member.survivor.row.pk if member is not None else None
        batch.changes.append(Change(survivor, fault.row.pk, kind, text))
    batch.pending.clear()
    upsert.insert(batch.decisions)
    batch.decisions.clear()


def _create(faults: Sequence[FaultCase], incidents: Sequence[IncidentCase]) -> None:
    """Faults with their evidence, and new incidents."""
    _write_faults(faults)
    new = [incident for incident in incidents if incident.is_new]
    for incident in new:
        incident.row.root_fault = incident.root.row
    upsert.insert([incident.row for incident in new])


def _update(incidents: Sequence[IncidentCase], *, now: datetime) -> None:
    """Changed incidents, memberships, timeline, and the notifications that the timeline owes."""
    _write_incidents(incidents, now)
    _write_timeline(incidents, now)


def _write_faults(cases: Sequence[FaultCase]) -> None:
    """What stood before first: a fault that ended makes room for the one that came after it in the
    same batch."""
    repeats = []
    for case in cases:
        if case.added and not case.is_new:
            row, excerpts = case.row, len(case.excerpts)
            told_by = row.last_provenance if case.last_provenance is not None else None
            repeat = upsert.Repeat(
                row.pk, case.added, row.last_seen_at, row.clears_at, excerpts, told_by
            )
            repeats.append(repeat)
    upsert.add_repeats(repeats)
    changed = [case.row for case in cases if case.is_changed and not case.is_new]
    changed.sort(key=lambda row: row.fingerprint)
    upsert.update_columns(changed, _FAULT_COLUMNS)
    new = [case for case in cases if case.is_new]
    for case in new:
        case.row.count, case.row.excerpts = case.added, len(case.excerpts)
    upsert.insert([case.row for case in new])
    upsert.put_excerpts([excerpt for case in cases for excerpt in _list_excerpts(case)])


def _list_excerpts(case: FaultCase) -> list[upsert.Excerpt]:
    before = 0 if case.is_new else case.excerpts_before
    slots = upsert.choose_slots(before, len(case.excerpts))
    return [upsert.Excerpt(case.row.pk, slot, *case.excerpts[index]) for index, slot in slots]


def _write_incidents(incidents: Sequence[IncidentCase], now: datetime) -> None:
    changed = [incident for incident in incidents if incident.is_changed and not incident.is_new]
    for incident in changed:
        incident.row.root_fault = incident.root.row
        incident.row.updated_at = now
    upsert.update_columns([incident.row for incident in changed], _INCIDENT_COLUMNS)
    role_changes = chain.from_iterable(incident.role_changes for incident in incidents)
    upsert.update_roles(
        [(case.row.pk, role, rule, why) for case, role, rule, why in role_changes if case.row.pk]
    )
    links = [link for incident in incidents for link in _make_links(incident, now)]
    upsert.insert(links)


def _make_links(incident: IncidentCase, now: datetime) -> Iterable[IncidentFault]:
    """New memberships. One whose role changed in the same batch is written with its last one."""
    last = {id(change[0]): change for change in incident.role_changes}
    for joined in incident.joins:
        fault, role, rule, reason = last.get(id(joined[0]), joined)
        yield IncidentFault(
            incident=incident.row,
            fault=fault.row,
            role=str(role),
            rule=rule,
            reason=reason[:255],
            joined_at=now,
        )


def _write_timeline(incidents: Sequence[IncidentCase], now: datetime) -> None:
    entries = []
    for incident in incidents:
        for note in _group_entries(incident.entries):
            entries.append(_make_entry(incident.row, note, now))
    if entries:
        upsert.insert(entries)
        outbox.enqueue(entries, now=now)


def _make_entry(incident: Incident, note: TimelineNote, now: datetime) -> TimelineEntry:
    return TimelineEntry(
        incident=incident,
        kind=note.kind,
        actor=KINTSUGI,
        text=note.text,
        occurred_at=note.occurred_at,
        recorded_at=now,
    )


def _group_entries(entries: Sequence[TimelineNote]) -> list[TimelineNote]:
    """Entries in order; those of one kind and group become one, at the first's place, that says how
    many."""
    runs: dict[tuple[str, str, int], list[TimelineNote]] = {}
    for number, entry in enumerate(entries):
        runs.setdefault((entry.kind, entry.group, 0 if entry.group else number), []).append(entry)
    told: list[TimelineNote] = []
    for (kind, group, _), run in runs.items():
        if len(run) == 1:
            told.extend(run)
            continue
        shown = "; ".join(entry.text for entry in run[:_TOLD])
        more = f"; and {len(run) - _TOLD} more" if len(run) > _TOLD else ""
        told.append(
            TimelineNote(kind, f"{len(run)} faults: {shown}{more}", run[0].occurred_at, group)
        )
    return told
