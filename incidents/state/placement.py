"""Gives faults their place in the incidents of a batch, in memory: an incident of their own, one
that is open, or none for now.

`incidents.correlation.engine` decides; the caller holds the placement lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from detectors.faults import Action, Role, Severity
from incidents.correlation import engine
from incidents.correlation.near_misses import Nearly
from incidents.models import Decision, Incident
from incidents.state import merge
from incidents.state.batch import TriageBatch, get_join_window
from incidents.state.cases import FaultCase, IncidentCase, TimelineNote
from incidents.state.neighbourhood import get_incident, load_incidents
from incidents.text import wording
from incidents.vocabulary.changes import ChangeKind
from incidents.vocabulary.lifecycle import State

_BETTER_KNOWN = "of which more than a text tells now"


def load_likely(batch: TriageBatch, faults: Iterable[FaultCase]) -> None:
    """Loads the incidents that these new faults will probably join: one by one they would cost
    some statements each."""
    if batch.index.incidents.keys() <= batch.incidents.keys():
        return
    views = (fault.view() for fault in faults)
    likely = engine.find_likely(views, batch.index, _get_setting(batch))
    load_incidents(batch, likely)


def assign(batch: TriageBatch, fault: FaultCase, *, follows: Incident | None = None) -> None:
    """Gives a new fault its place: an incident of its own, one that is open, or none for
    now."""
    batch.index.leave(fault)
    setting = _get_setting(batch)
    placed = engine.judge(fault.view(), batch.index, setting)
    fault.is_changed = True
    if isinstance(placed, engine.Keeps):
        keep(batch, fault, placed.reason)
    elif (
        fault.row.held_until is not None and fault.is_held(batch.now) and _waits_for(batch, placed)
    ):
        keep(
            batch,
            fault,
            f"held down until {wording.format_clock(fault.row.held_until)}: it may pass by itself",
        )
    elif isinstance(placed, engine.Joins):
        join(batch, fault, get_incident(batch, placed.incident), placed)
    elif isinstance(placed, engine.Merges):
        merge_incidents(batch, fault, placed)
    else:
        fault.row.held_until = None
        incident = open_incident(batch, fault, placed.reason, follows)
        _note_near_misses(batch, fault, incident, placed.near_misses)


def assign_again(batch: TriageBatch, fault: FaultCase) -> None:
    """The same for one that may have had no place until now."""
    if fault in batch.unassigned:
        batch.unassigned.remove(fault)
    assign(batch, fault)


def keep(batch: TriageBatch, fault: FaultCase, reason: str) -> None:
    """Without an incident for now; one that explains it takes it later."""
    batch.unassigned.append(fault)
    batch.index.assign(fault, None)
    batch.note(ChangeKind.RECORDED, fault, None, reason)
    batch.decide(Decision.Kind.RECORDED, fault, None, reason)


def _note_near_misses(
    batch: TriageBatch, fault: FaultCase, incident: IncidentCase, near_misses: Sequence[Nearly]
) -> None:
    for near_miss in near_misses:
        is_written = near_miss.incident > 0
        to = f"#{near_miss.incident}" if is_written else "another incident of this moment"
        batch.decide(
            Decision.Kind.NEARLY,
            fault,
            incident,
            f"not joined to {to}, {near_miss.reason}",
            rule=near_miss.rule,
        )


def _waits_for(batch: TriageBatch, placed: engine.Placement) -> bool:
    """A hold-down is waited out before anything is opened, and before an incident that seemed
    over is joined."""
    if not isinstance(placed, engine.Joins | engine.Merges):
        return True
    return get_incident(batch, placed.incident).is_watched


def _get_setting(batch: TriageBatch) -> engine.Setting:
    return engine.Setting(
        batch.index.surroundings, get_join_window(), batch.format_resource, batch.index.rules
    )


def open_incident(
    batch: TriageBatch, fault: FaultCase, reason: str, follows: Incident | None
) -> IncidentCase:
    row = fault.row
    title = batch.format_title(fault)
    batch.opened += 1
    opened = Incident(
        state=State.OPEN.value,
        has_platform_signal=not fault.is_of_people,
        follows=follows,
        onset_at=row.raised_at,
        last_known_good_at=row.last_known_good_at,
        opened_at=row.observed_at,
        recorded_at=batch.now,
        updated_at=batch.now,
    )
    incident = IncidentCase(
        opened,
        key=-batch.opened,
        root=fault,
        members=[fault],
        is_new=True,
    )
    _set_root(batch, incident, fault)
    incident.joins.append((fault, Role.ROOT, "root", reason))
    incident.entries.append(
        TimelineNote(
            "opened", f"{title} ({row.fault_type}, {row.severity}): {reason}.", row.raised_at
        )
    )
    if follows is not None:
        when = (
            f"closed {wording.format_moment(follows.closed_at)}"
            if follows.closed_at
            else "still open"
        )
        text = (
            f"The same fault was incident #{follows.pk}, {when} as"
            f" {follows.state.replace('_', ' ')}."
        )
        incident.entries.append(TimelineNote("same_fault_back", text, row.raised_at))
    fault.member = incident
    batch.put_incident(incident)
    batch.note(ChangeKind.OPENED, fault, incident, reason)
    batch.decide(Decision.Kind.OPENED, fault, incident, reason)
    _absorb_effects(batch, fault, incident)
    return incident


def join(
    batch: TriageBatch, fault: FaultCase, incident: IncidentCase, placed: engine.Joins
) -> None:
    _add(batch, fault, incident, placed)
    _absorb_effects(batch, fault, incident)


def _add(
    batch: TriageBatch, fault: FaultCase, incident: IncidentCase, placed: engine.Joins
) -> None:
    row = incident.row
    batch.require_lock([fault.row.owner])
    fault.member = incident
    fault.row.held_until, fault.has_come = None, True
    incident.add(fault)
    incident.joins.append((fault, placed.role, placed.rule, placed.reason))
    if not fault.is_of_people:
        row.has_platform_signal = True
    if fault.row.raised_at < row.onset_at:
        row.onset_at, row.last_known_good_at = fault.row.raised_at, fault.row.last_known_good_at
    incident.is_changed = incident.is_unsettled = True
    batch.index.assign(fault, incident.key)
    if placed.role is Role.ROOT:
        replace_root(batch, incident, fault, placed)
    else:
        incident.raise_to(fault)
        kind = "noted" if fault.view().is_detail else "joined"
        text = f"{batch.format_fault(fault.row)}, {placed.reason}"
        group = placed.rule if kind == "joined" else kind
        incident.entries.append(TimelineNote(kind, text, fault.row.raised_at, group))
    batch.note(ChangeKind.JOINED, fault, incident, placed.reason)
    batch.decide(Decision.Kind.JOINED, fault, incident, placed.reason, rule=placed.rule)


def replace_root(
    batch: TriageBatch, incident: IncidentCase, fault: FaultCase, placed: engine.Joins
) -> None:
    """The fault, a member already, becomes the root; what the incident calls for is weighed
    anew."""
    old = incident.root
    if old is fault:
        return
    incident.demote(old, placed.rule, f"was the root until {fault.row.fault_type} came")
    _set_root(batch, incident, fault)
    incident.weigh()
    batch.index.replace_root(incident.key, fault)
    text = (
        f"The root cause is now {batch.format_fault(fault.row)}, {placed.reason};"
        f" {batch.format_fault(old.row)} is a symptom of it."
    )
    incident.entries.append(TimelineNote("root_changed", text, fault.row.raised_at))
    batch.decide(Decision.Kind.REROOTED, fault, incident, text, rule=placed.rule)


def _set_root(batch: TriageBatch, incident: IncidentCase, fault: FaultCase) -> None:
    row, root = incident.row, fault.row
    incident.root = fault
    row.title = batch.format_title(fault)[:255]
    row.component, row.fault_type = root.component, root.fault_type
    row.severity = row.severity or str(Severity.INDETERMINATE)
    row.action = row.action or str(Action.NONE)
    row.root_resource, row.owner = root.resource, root.owner
    row.node = batch.nodes.get(root.owner)
    if not incident.raise_to(fault) and incident.is_new:
        row.severity, row.action = root.severity, root.action


def _absorb_effects(batch: TriageBatch, fault: FaultCase, incident: IncidentCase) -> None:
    """Unassigned faults that belong to the incident, now that this one does, join it; and what
    follows from those."""
    causes = [fault]
    while causes:
        cause = causes.pop(0)
        symptoms = engine.list_symptoms(
            cause.view(),
            batch.index,
            _get_setting(batch),
            incident=incident.view(),
            is_root=cause is incident.root,
        )
        for candidate, placed in list(symptoms):
            symptom = candidate.seen
            if not isinstance(symptom, FaultCase) or not batch.is_unassigned(symptom):
                continue
            batch.unassigned.remove(symptom)
            _add(batch, symptom, incident, placed)
            causes.append(symptom)


def merge_incidents(batch: TriageBatch, fault: FaultCase, placed: engine.Merges) -> None:
    """The others become part of the incident that stays; then the fault joins it, as root or
    symptom."""
    stays = get_incident(batch, placed.incident)
    root = fault if placed.root_of is None else get_incident(batch, placed.root_of).root
    joins_of = {
        explained.incident: engine.Joins(stays.key, Role.SYMPTOM, explained.rule, explained.reason)
        for explained in placed.explained
    }
    for key in placed.others:
        absorbed = get_incident(batch, key)
        del batch.incidents[key]
        merge.absorb(batch, stays, absorbed, joins_of.get(key, placed.joins), root)
    if root is not fault:
        replace_root(batch, stays, root, joins_of.get(stays.key, placed.joins))
    join(batch, fault, stays, placed.joins)


def correlate_again(batch: TriageBatch, fault: FaultCase) -> None:
    """A fault of an open incident is better known than before, such as a text that a poll has
    witnessed. It becomes the root of its incident where it explains that one's root, and incidents
    whose root it explains are one with its own."""
    own = fault.member
    if own is None:
        return
    explained = engine.find_explained(fault.view(), batch.index, _get_setting(batch))
    incidents = {own.key: own, **{key: get_incident(batch, key) for key in explained}}
    joins_of = {
        key: engine.Joins(key, Role.SYMPTOM, why.rule, why.reason) for key, why in explained.items()
    }
    if own.key in joins_of:
        own.promote(fault, joins_of[own.key].rule, _BETTER_KNOWN)
        replace_root(batch, own, fault, replace(joins_of[own.key], reason=_BETTER_KNOWN))
    root = own.root
    stays = own
    if not own.view().is_fixed:
        stays = min(incidents.values(), key=lambda incident: incident.view().age)
    for key, absorbed in incidents.items():
        if absorbed is stays:
            continue
        del batch.incidents[key]
        why = joins_of.get(key) or joins_of[stays.key]
        merge.absorb(batch, stays, absorbed, why, root)
    if stays is not own:
        replace_root(batch, stays, root, joins_of[stays.key])
    _absorb_effects(batch, fault, stays)


def clear_fault(batch: TriageBatch, fault: FaultCase, at: datetime, reason: str) -> None:
    """Clears a fault. Its root's end is told at once, its symptoms' ends when all have
    ended."""
    fault.clear(at, reason)
    incident = fault.member
    if incident is not None:
        incident.is_unsettled = True
        if fault is incident.root:
            text = f"{batch.format_fault(fault.row)} has cleared: {reason}."
            incident.entries.append(TimelineNote("cleared", text, at))
    batch.note(ChangeKind.CLEARED, fault, incident, reason)
