"""The child that does not heal with its parent: symptoms that still stand when the cause is over
are told as their own.

Called by the sweep. Never touches an incident that is under repair, with the vendor or with a
person, nor a fault that a person placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Count, Max, Q, QuerySet
from django.db.models.functions import Coalesce

from detectors import resources
from detectors.catalog import catalog as fault_catalog
from detectors.faults import ClearRule, Role
from incidents.db import upsert
from incidents.db.prepared import Prepared
from incidents.maintenance import silences
from incidents.models import Decision, Fault, Incident, IncidentFault, Node
from incidents.state import placement, site_rules
from incidents.state.batch import TriageBatch, get_join_window
from incidents.state.cases import FaultCase, IncidentCase, TimelineNote, blocks
from incidents.state.neighbourhood import load_faults, load_incidents, load_neighbourhood
from incidents.state.persistence import persist
from incidents.state.settle import settle
from incidents.state.transitions import record
from incidents.text.wording import format_duration
from incidents.vocabulary.changes import KINTSUGI, Change, ChangeKind
from incidents.vocabulary.lifecycle import State
from incidents.vocabulary.relations import Relation

# Only these tell by themselves whether they still stand. The others wait: for a boot, for quiet,
# for a person.
_TELLING = (str(ClearRule.BY_POLL), str(ClearRule.BY_EVENT))
_ONE_PART = {Relation.SAME_PART, Relation.SAME_GPU, Relation.CABLE}
# Nothing stands still under pause frames when nobody sends them (IEEE 802.3, annex 31B: a pause
# ends by itself within 65,535 quanta, which are 84 us at 400 Gb/s), so what does shows that its
# source goes on.
_BY_ANOTHER_NAME = _ONE_PART | {Relation.PAUSE_PATH}
_STATES = (State.OPEN.value, State.ACKNOWLEDGED.value, State.MONITORING.value)
_MOST_AT_ONCE = 50
_NAMED = 3


def get_grace() -> timedelta:
    """How long nothing more of an incident may have cleared before what is left counts as unhealed.

    Our choice: the join window. What one cause brings comes within it, so what goes with the cause
    goes within it too; a switch that boots brings its last port up minutes after its first.
    """
    return get_join_window()


def split_unhealed(now: datetime) -> list[Change]:
    """Gives what did not heal its own place. One query while everything heals."""
    due = _list_due(now)
    if not due:
        return []
    with transaction.atomic():
        upsert.lock_placement()
        changes: list[Change] = []
        for parent in load_incidents(TriageBatch(fault_catalog.load(), now), due):
            placed = _get_placed_by_people(parent)
            children = [
                fault
                for fault in parent.members
                if fault.row.pk not in placed and _is_child(fault, parent)
            ]
            if children and parent.row.state in _STATES:
                changes += _split_incident(parent, children, now)
        return changes


def _build_symptom_counts() -> QuerySet[IncidentFault, Any]:
    """Of each incident with active symptoms: how many are active, how many have ended, and when the
    last of those did."""
    watched = Incident.objects.filter(state__in=_STATES).order_by()
    repeats = Incident.objects.filter(duplicate_of__in=watched).order_by()
    symptoms = IncidentFault.objects.filter(
        incident__in=watched.values("pk").union(repeats.values("pk")),
        role=str(Role.SYMPTOM),
        fault__clears__in=_TELLING,
    )
    by_incident = (
        symptoms.annotate(holder=Coalesce("incident__duplicate_of_id", "incident_id"))
        .order_by()
        .values("holder")
    )
    counted = by_incident.annotate(
        active=Count("pk", filter=Q(fault__is_active=True, placed_by=KINTSUGI)),
        ended=Count("pk", filter=Q(fault__is_active=False)),
        latest_at=Max("fault__cleared_at"),
    )
    return counted.filter(active__gt=0).values_list("holder", "active", "ended", "latest_at")


_SYMPTOM_COUNTS = Prepared(_build_symptom_counts)


def _list_due(now: datetime) -> list[int]:
    """Incidents whose cause is over, that have been calm for the grace, and of which something
    still stands.

    The cause is over when the root has cleared. Of a root that only goes quiet, such as a switch's
    reboot, its symptoms tell: it is over when more of them have ended than still stand (our choice:
    then most of what it broke works).
    """
    since = now - get_grace()
    calm, mostly = [], []
    for incident, active, ended, latest_at in _SYMPTOM_COUNTS.rows():
        if latest_at is not None and latest_at > since:
            continue
        calm.append(incident)
        if ended > active:
            mostly.append(incident)
    if not calm:
        return []
    goes_quiet = Q(root_fault__clears=str(ClearRule.AFTER_QUIET))
    healed = Q(root_fault__is_active=False, root_fault__cleared_at__lte=since) & ~goes_quiet
    passed = goes_quiet & Q(root_fault__last_seen_at__lte=since, pk__in=mostly)
    apply_grace = Incident.objects.filter(pk__in=calm, state__in=_STATES, needs_human="")
    # Another fault of the cause's own part, or of its cable's other end, is the cause by another
    # name: it is not over.
    apply_grace = apply_grace.exclude(
        members__in=IncidentFault.objects.filter(
            rule__in=_list_rules_of_cause(), fault__is_active=True
        )
    )
    return list(
        apply_grace.filter(healed | passed)
        .order_by("pk")
        .values_list("pk", flat=True)[:_MOST_AT_ONCE]
    )


def _list_rules_of_cause() -> list[str]:
    """The rules that join what shows the cause itself: faults of one part, of both ends of a cable,
    ports it pauses."""
    return [
        rule.name
        for rule in site_rules.load_joining_rules()
        if set(rule.relations) <= _BY_ANOTHER_NAME
    ]


def _is_child(fault: FaultCase, parent: IncidentCase) -> bool:
    """Whether it stands, says so by itself, and would have opened an incident without its
    parent."""
    row = fault.row
    if fault is parent.root or not row.is_active or row.is_flapping or row.clears not in _TELLING:
        return False
    return blocks(fault, parent.root.row.pk)


def _get_placed_by_people(parent: IncidentCase) -> set[int]:
    links = IncidentFault.objects.filter(fault__in=[fault.row.pk for fault in parent.members])
    return set(links.exclude(placed_by=KINTSUGI).values_list("fault_id", flat=True))


def _split_incident(
    parent: IncidentCase, children: Sequence[FaultCase], now: datetime
) -> list[Change]:
    ids = [child.row.pk for child in children]
    IncidentFault.objects.filter(fault_id__in=ids).delete()
    batch = TriageBatch(fault_catalog.load(), now, hidden=frozenset({parent.row.pk}))
    rows = Fault.objects.filter(pk__in=ids).order_by("raised_at", "pk")
    cases = load_faults(batch, rows)
    hosts = {resources.host_of(case.row.owner) for case in cases} - {None}
    batch.nodes = {f"node/{node.name}": node for node in Node.objects.filter(name__in=hosts)}
    load_neighbourhood(batch, {(case.row.fault_type, case.row.resource) for case in cases})
    for case in cases:
        if case.member is None:
            placement.assign_again(batch, case)
    _tell_children(parent, cases, batch)
    silences.apply(batch)
    persist(batch)
    _tell_parent(parent, cases, batch)
    again = TriageBatch(batch.catalog, now)
    return batch.changes + settle(load_incidents(again, [parent.row.pk]), batch=again, now=now)


def _tell_children(parent: IncidentCase, cases: Sequence[FaultCase], batch: TriageBatch) -> None:
    for incident in _list_homes(cases):
        text = (
            f"It was a symptom of incident #{parent.row.pk} ({parent.row.title}). What caused that"
            f" is over, and for {format_duration(get_grace())} nothing more has cleared there;"
            " this still"
            " stands, so it is told by itself."
        )
        incident.entries.append(TimelineNote("split_off", text, batch.now))


def _tell_parent(parent: IncidentCase, cases: Sequence[FaultCase], batch: TriageBatch) -> None:
    """After the batch is written: the new incidents have their numbers."""
    more = f" and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
    names = "; ".join(batch.format_fault(case.row) for case in cases[:_NAMED]) + more
    numbers = ", ".join(f"#{incident.row.pk}" for incident in _list_homes(cases))
    text = (
        f"The cause is over, but this did not heal with it: {names}. It has been told by itself"
        f" since now: incident {numbers or 'none yet, it is held down'}."
    )
    record(parent.row.pk, kind="split", text=text, now=batch.now)
    decisions = []
    for case in cases:
        decision = Decision(
            fault=case.row,
            kind=Decision.Kind.SPLIT,
            rule="unhealed_child",
            text=text[:500],
            recorded_at=batch.now,
        )
        incidents = [parent.row] if case.member is None else [parent.row, case.member.row]
        decisions += [_make_for_incident(decision, incident) for incident in incidents]
    Decision.objects.bulk_create(decisions)
    batch.changes.append(Change(parent.row.pk, None, ChangeKind.RECORDED, text))


def _make_for_incident(decision: Decision, incident: Incident) -> Decision:
    decision = copy(decision)
    decision.incident = incident
    return decision


def _list_homes(cases: Sequence[FaultCase]) -> list[IncidentCase]:
    return list(
        {id(case.member): case.member for case in cases if case.member is not None}.values()
    )
