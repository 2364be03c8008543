"""What people rearrange: incidents merged, faults split off, another root. Rules leave alone what a
person placed.

Each is one transaction under the placement lock, with its timeline and decisions. Decides nothing
by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q

from detectors.catalog import catalog as fault_catalog
from detectors.faults import Action, Role, Severity
from incidents.db import upsert
from incidents.maintenance import silences
from incidents.models import Decision, Fault, Incident, IncidentFault, Node, TimelineEntry
from incidents.state import outbox
from incidents.state.batch import TriageBatch
from incidents.state.cases import FaultCase, blocks
from incidents.state.neighbourhood import load_incidents
from incidents.state.settle import settle
from incidents.state.transitions import move
from incidents.text.wording import format_moment
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.lifecycle import State, Trigger

BY_PERSON = "by_person"
_NAMED = 3


@dataclass(frozen=True)
class Rearranged:
    """Done. `incident` is the one to look at now: the one that stays, or the new one."""

    incident: int
    text: str


Outcome = Rearranged | Refused


def merge(incident_id: int, into_id: int, *, actor: str, note: str = "", now: datetime) -> Outcome:
    """Every fault of the incident becomes a symptom of the other one; the incident ends as its
    duplicate."""
    with transaction.atomic():
        upsert.lock_placement()
        found = _lock_incidents(incident_id, into_id)
        refused = _refuse_unless_open(incident_id, found) or _refuse_unless_open(into_id, found)
        refused = refused or _refuse_itself(incident_id, into_id)
        if refused is not None:
            return refused
        desk = _Desk(actor, note.strip(), now)
        source, target = found[incident_id], found[into_id]
        moving = list(filter_members(source.pk))
        names = desk.format_fault_names(link.fault for link in moving)
        closing_note = f"Merged by {actor}: its {_format_count(moving)} moved there. {desk.note}"
        ended = move(
            source,
            Trigger.MARK_DUPLICATE,
            actor=actor,
            note=closing_note,
            now=now,
            duplicate_of=target,
            root_fault=None,
        )
        if isinstance(ended, Refused):
            return ended
        Incident.objects.filter(duplicate_of=source).update(duplicate_of=target)
        desk.put(moving, target, came=f"from incident #{source.pk}")
        text = f"Incident #{source.pk} was merged into this one by {actor}: {names}."
        text = f"{text} {desk.note}".strip()
        has_user_report = target.has_user_report or source.has_user_report
        has_platform_signal = target.has_platform_signal or source.has_platform_signal
        desk.update_shape(
            target,
            target.root_fault,
            has_user_report=has_user_report,
            has_platform_signal=has_platform_signal,
        )
        desk.tell(target, "merged", text)
        desk.decide(Decision.Kind.MERGED, {source: text, target: text})
        _reopen_or_end(target, moving, desk)
    return Rearranged(target.pk, f"Incident #{source.pk} is now part of incident #{target.pk}.")


def split(
    incident_id: int,
    fault_ids: Sequence[int],
    *,
    root_id: int | None = None,
    actor: str,
    note: str = "",
    now: datetime,
) -> Outcome:
    """These faults leave as an incident of their own. `root_id`: its root; None: the first of those
    that ask most."""
    with transaction.atomic():
        upsert.lock_placement()
        found = _lock_incidents(incident_id)
        if (refused := _refuse_unless_open(incident_id, found)) is not None:
            return refused
        incident = found[incident_id]
        known = {link.fault_id: link for link in filter_members(incident_id)}
        refused = _refuse_move(incident, known, fault_ids, root_id)
        if refused is not None:
            return refused
        desk = _Desk(actor, note.strip(), now)
        leaving = [known[pk] for pk in dict.fromkeys(fault_ids)]
        root = known[root_id] if root_id is not None else desk.find_strongest(leaving)
        names = desk.format_fault_names(link.fault for link in leaving)
        fresh = desk.open(root.fault, [link.fault for link in leaving], beside=incident)
        desk.put(leaving, fresh, came=f"out of incident #{incident.pk}", root=root)
        desk.update_shape(incident, incident.root_fault)
        left = f"{actor} split off {names}: incident #{fresh.pk} now."
        left = f"{left} {desk.note}".strip()
        came = f"Split off from incident #{incident.pk} by {actor}: {names}."
        came = f"{came} {desk.note}".strip()
        desk.tell(incident, "split", left)
        desk.tell(fresh, "opened", came)
        desk.decide(Decision.Kind.SPLIT, {incident: left, fresh: came})
        _reopen_or_end(incident, [], desk)
    return Rearranged(fresh.pk, f"Incident #{fresh.pk} has what was split off from #{incident.pk}.")


def reroot(
    incident_id: int,
    fault_id: int,
    *,
    instead_of: int | None = None,
    actor: str,
    note: str = "",
    now: datetime,
) -> Outcome:
    """Another member becomes the root. `instead_of`: the root that the person saw; refused when it
    is another now."""
    with transaction.atomic():
        upsert.lock_placement()
        found = _lock_incidents(incident_id)
        if (refused := _refuse_unless_open(incident_id, found)) is not None:
            return refused
        incident = found[incident_id]
        known = {link.fault_id: link for link in filter_members(incident_id)}
        old = incident.root_fault
        if instead_of is not None and old is not None and old.pk != instead_of:
            return Refused(
                f"Somebody was quicker: the root of incident #{incident_id} is now {old}. Look"
                " again."
            )
        if fault_id not in known:
            return _refuse_missing(fault_id, incident_id)
        if old is not None and old.pk == fault_id:
            return Refused(f"{old} is the root of incident #{incident_id} already.")
        desk = _Desk(actor, note.strip(), now)
        link = known[fault_id]
        _release([fault_id])
        reason = desk.format_act(f"made the root instead of {old}")
        demoted_by = desk.format_act(f"was the root until {actor} chose {link.fault.fault_type}")
        _demote(known.values(), link, demoted_by)
        membership = IncidentFault.objects.filter(pk=link.pk)
        membership.update(
            incident=incident,
            role=str(Role.ROOT),
            rule=BY_PERSON,
            reason=reason,
            placed_by=actor[:150],
        )
        desk.update_shape(incident, link.fault, is_root_by_person=True)
        text = f"{actor} says that the root cause is {desk.format_fault_names([link.fault])}"
        if old is not None:
            text = f"{text}, not {desk.format_fault_names([old])}"
        text = f"{text}. {desk.note}".strip()
        desk.tell(incident, "root_changed", text)
        desk.decide(Decision.Kind.REROOTED, {incident: text}, fault=link.fault)
        _reopen_or_end(incident, [], desk)
    return Rearranged(incident_id, f"The root of incident #{incident_id} is now {link.fault}.")


def filter_members(incident_id: int) -> Any:
    """The memberships that count for an incident: its own, and those of the incidents that repeat
    it."""
    repeats = Q(duplicate_of=incident_id, state=State.DUPLICATE.value)
    # The OR stays within one table, whose indexes serve both of its sides: over two tables it
    # would read every membership that there has been.
    incidents = Incident.objects.filter(Q(pk=incident_id) | repeats).order_by()
    memberships = IncidentFault.objects.filter(incident__in=incidents.values("pk"))
    return memberships.select_related("fault").order_by("role", "pk")


# Why it is refused
# ---------------------------------------------------------------------------


def _lock_incidents(*ids: int) -> dict[int, Incident]:
    rows = Incident.objects.filter(pk__in=ids).order_by("pk").select_for_update(of=("self",))
    return {row.pk: row for row in rows.select_related("root_fault")}


def _refuse_unless_open(incident_id: int, found: Mapping[int, Incident]) -> Refused | None:
    incident = found.get(incident_id)
    if incident is None:
        return Refused(
            f"There is no incident #{incident_id}; look its number up in the list of incidents."
        )
    if not incident.is_open:
        other = f" of #{incident.duplicate_of_id}" if incident.duplicate_of_id else ""
        words = incident.state.replace("_", " ")
        return Refused(
            f"Incident #{incident_id} is closed as {words}{other}: its faults stay as they are."
        )
    return None


def _refuse_itself(incident_id: int, into_id: int) -> Refused | None:
    return (
        Refused(f"Incident #{incident_id} cannot be merged into itself.")
        if incident_id == into_id
        else None
    )


def _refuse_missing(fault_id: int, incident_id: int) -> Refused:
    return Refused(
        f"Fault {fault_id} is not part of incident #{incident_id}, or no longer. Look again."
    )


def _refuse_move(
    incident: Incident,
    known: Mapping[int, IncidentFault],
    fault_ids: Sequence[int],
    root_id: int | None,
) -> Refused | None:
    strange = next((pk for pk in fault_ids if pk not in known), None)
    if strange is not None:
        return _refuse_missing(strange, incident.pk)
    if not fault_ids:
        return Refused("Choose the faults that leave the incident.")
    if len(set(fault_ids)) == len(known):
        return Refused(
            f"The last fault stays: without one, incident #{incident.pk} would be about nothing."
        )
    if incident.root_fault_id in fault_ids:
        return Refused(
            f"The root of incident #{incident.pk} stays. Make another fault its root first, then"
            " split."
        )
    if root_id is not None and root_id not in fault_ids:
        return Refused(
            f"Fault {root_id} does not leave, so it cannot be the root of the new incident."
        )
    return None


# What is written
# ---------------------------------------------------------------------------


class _Desk:
    """One person's rearrangement: who, why, when, and the words for it."""

    def __init__(self, actor: str, note: str, now: datetime) -> None:
        self.actor, self.note, self.now = actor, note, now
        self._batch = TriageBatch(fault_catalog.load(), now)

    def format_act(self, what: str) -> str:
        """`moved here from incident #3 by yuki at ...: the note`, as long as its column."""
        note = f": {self.note}" if self.note else ""
        return f"{what} by {self.actor} at {format_moment(self.now)}{note}"[:255]

    def format_fault_names(self, faults: Iterable[Fault | None]) -> str:
        rows = [row for row in faults if row is not None]
        names = "; ".join(self._batch.format_fault(row) for row in rows[:_NAMED])
        unnamed = len(rows) - _NAMED
        return f"{names} and {unnamed} more" if unnamed > 0 else names

    def find_strongest(self, links: Sequence[IncidentFault]) -> IncidentFault:
        """The first of those that ask for most: what opens an incident by itself before what only
        follows."""

        def order(link: IncidentFault) -> tuple[bool, int, datetime]:
            is_blocking = blocks(self._make_case(link.fault), None)
            rank = Action(link.fault.action).rank
            return (not is_blocking, -rank, link.fault.raised_at)

        return min(links, key=order)

    def open(self, root: Fault, faults: Sequence[Fault], *, beside: Incident) -> Incident:
        """What leaves an incident that a window keeps from people is kept too, as far as that
        window covers it."""
        _release([root.pk])
        is_of_people = [self._make_case(fault).is_of_people for fault in faults]
        is_silenced = beside.silence_id is not None
        row = Incident(state=State.OPEN.value, **self._get_shape(root, faults))
        row.is_root_by_person = True
        row.has_platform_signal = not all(is_of_people)
        row.has_user_report = any(is_of_people)
        row.silence = beside.silence
        row.announced_at = None if is_silenced else self.now
        row.opened_at = self.now
        row.recorded_at = self.now
        row.updated_at = self.now
        row.save()
        return row

    def put(
        self,
        links: Sequence[IncidentFault],
        incident: Incident,
        *,
        came: str,
        root: IncidentFault | None = None,
    ) -> None:
        """These memberships belong to `incident` from now on, by this person's word."""
        _release([link.fault_id for link in links], keeper=incident)
        memberships = IncidentFault.objects.filter(pk__in=[link.pk for link in links])
        reason = self.format_act(f"moved {came}")
        memberships.update(
            role=str(Role.SYMPTOM),
            incident=incident,
            rule=BY_PERSON,
            reason=reason,
            placed_by=self.actor,
        )
        if root is not None:
            IncidentFault.objects.filter(pk=root.pk).update(role=str(Role.ROOT))

    def update_shape(self, incident: Incident, root: Fault | None, **more: Any) -> None:
        """What follows from the root and the members, in the incident's row; its jobs are counted
        anew."""
        if root is None:
            return
        faults = [link.fault for link in filter_members(incident.pk)]
        values = {
            **self._get_shape(root, faults),
            **more,
            "impact_at": None,
            "updated_at": self.now,
        }
        for name, value in values.items():
            setattr(incident, name, value)
        incident.save(update_fields=list(values))

    def tell(self, incident: Incident, kind: str, text: str) -> None:
        actor = self.actor[:150]
        entry = TimelineEntry.objects.create(
            incident=incident,
            kind=kind,
            actor=actor,
            text=text,
            occurred_at=self.now,
            recorded_at=self.now,
        )
        outbox.enqueue([entry], now=self.now)

    def decide(
        self, kind: Decision.Kind, texts: Mapping[Incident, str], *, fault: Fault | None = None
    ) -> None:
        actor = self.actor[:150]
        decisions = []
        for incident, text in texts.items():
            decision = Decision(
                fault=fault,
                incident=incident,
                kind=kind,
                rule=BY_PERSON,
                text=text[:500],
                actor=actor,
                recorded_at=self.now,
            )
            decisions.append(decision)
        Decision.objects.bulk_create(decisions)

    def settle(self, incident: Incident) -> None:
        """What cleared long ago may be all that is left."""
        batch = TriageBatch(fault_catalog.load(), self.now)
        settle(load_incidents(batch, [incident.pk]), batch=batch, now=self.now)

    def _make_case(self, row: Fault) -> FaultCase:
        return self._batch.build_case(row)

    def _get_shape(self, root: Fault, faults: Sequence[Fault]) -> dict[str, Any]:
        blocking = [row for row in faults if blocks(self._make_case(row), root.pk)] or [root]
        severities = [Severity(row.severity) for row in blocking]
        actions = [Action(row.action) for row in blocking]
        severity = max(severities, key=lambda severity: severity.rank)
        action = max(actions, key=lambda action: action.rank)
        title = self._batch.format_title(self._make_case(root))
        kind, _, name = root.owner.partition("/")
        node = Node.objects.filter(name=name).first() if kind == "node" else None
        of_root = {
            "root_fault": root,
            "component": root.component,
            "fault_type": root.fault_type,
            "root_resource": root.resource,
            "owner": root.owner,
        }
        onset_at = min(row.raised_at for row in faults)
        return {
            **of_root,
            "title": title[:255],
            "severity": str(severity),
            "own_severity": str(severity),
            "action": str(action),
            "node": node,
            "onset_at": onset_at,
        }


def _release(faults: Sequence[int], keeper: Incident | None = None) -> None:
    """A fault is the root of one incident at most; one that is closed as a duplicate lets go of
    it."""
    others = Incident.objects.filter(root_fault__in=faults)
    if keeper is not None:
        others = others.exclude(pk=keeper.pk)
    others.update(root_fault=None)


def _demote(links: Iterable[IncidentFault], chosen: IncidentFault, reason: str) -> None:
    roots = {link.pk for link in links if link.role == str(Role.ROOT)}
    demoted = IncidentFault.objects.filter(pk__in=sorted(roots - {chosen.pk}))
    demoted.update(role=str(Role.SYMPTOM), reason=reason)


def _format_count(links: Sequence[IncidentFault]) -> str:
    return "1 fault" if len(links) == 1 else f"{len(links)} faults"


def _reopen_or_end(incident: Incident, came: Sequence[IncidentFault], desk: _Desk) -> None:
    """An incident that seemed over is open again when what came still stands; one that is left well
    is settled."""
    standing = [link for link in came if link.fault.is_active]
    if standing and State(incident.state) is State.MONITORING:
        note = f"{_format_count(standing)} of what was merged still stand."
        move(incident, Trigger.FAULT_RETURNED, actor=desk.actor, note=note, now=desk.now)
    else:
        desk.settle(incident)
    silences.reconsider(desk.now)
