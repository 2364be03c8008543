"""What people tell: a user's report opens an incident, or joins the one of which some fault stands
on its machine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db import transaction

from detectors import resources
from detectors.catalog import catalog as fault_catalog
from detectors.catalog.catalog import FaultType
from detectors.faults import Component, Role, fingerprint
from detectors.provenance import Forger, Provenance, Transport
from incidents.correlation.engine import Joins
from incidents.db import upsert
from incidents.faults.clocks import Whose
from incidents.faults.fault_views import MANAGEMENT_NETWORK, USER_REPORT
from incidents.inventory import aliases
from incidents.inventory.provisional import add_provisional
from incidents.maintenance import silences
from incidents.models import Fault, Incident, TimelineEntry, UserReport
from incidents.state import outbox, placement
from incidents.state.batch import TriageBatch, build_fault, get_join_window
from incidents.state.cases import FaultCase, IncidentCase
from incidents.state.neighbourhood import load_faults, load_near_incidents, load_neighbourhood
from incidents.state.persistence import persist
from incidents.triage.normalisation import EventRefused, choose_component
from incidents.vocabulary.lifecycle import State

_LONGEST_TEXT = 10_000
# What a fault of these classes keeps a user from. A compute leaf never explains a file system.
_NETWORK, _STORAGE = "network", "storage"
_SORTS = {
    Component.NIC: _NETWORK,
    Component.INTERCONNECT_SWITCH: _NETWORK,
    Component.STORAGE: _STORAGE,
    Component.STORAGE_SWITCH: _STORAGE,
}


def report(
    *,
    author: str,
    text: str,
    resource: str,
    fault_type: str = USER_REPORT,
    occurred_at: datetime,
    now: datetime,
) -> Incident:
    """Takes a user's report and answers with the incident it belongs to.

    `resource` may be any name the inventory knows; `fault_type` is one of the catalogue's,
    `report.user` when the reporter did not choose. Raises EventRefused, a ValueError, saying what
    is wrong with the report.
    """
    kind = fault_catalog.load().get(fault_type)
    if kind is None:
        raise EventRefused(
            f"{fault_type} is no fault type of the catalogue; leave it out if you are not sure"
        )
    if not text.strip():
        raise EventRefused("a report needs a sentence that says what was seen")
    if occurred_at > now:
        raise EventRefused("the time of the report lies in the future")
    with transaction.atomic():
        upsert.lock_placement()
        batch = TriageBatch(fault_catalog.load(), now)
        told_by = Provenance(author, Transport.PERSON, author, forger=Forger.NOBODY)
        case = _get_or_create_fault(batch, kind, resource, occurred_at, text, told_by)
        incident = case.member or placement.open_incident(
            batch, case, f"reported by {author}", None
        )
        incident.row.has_user_report, incident.is_changed = True, True
        silences.apply(batch)
        persist(batch)
        _write_down(
            incident.row,
            author=author,
            text=text,
            resource=case.row.resource,
            at=occurred_at,
            now=now,
        )
    return incident.row


def _get_or_create_fault(
    batch: TriageBatch,
    kind: FaultType,
    name: str,
    occurred_at: datetime,
    text: str,
    told_by: Provenance,
) -> FaultCase:
    """The fault that the report speaks of, placed: the one that stands already, or a new one."""
    names = aliases.load({name})
    resource = names.resolve(name)
    owner = resources.owner(resource)
    add_provisional(names, {owner})
    batch.nodes = {f"node/{node.name}": node for node in names.nodes.values()}
    mark = fingerprint(resource, kind.id)
    _end_what_was_closed(mark, batch.now)
    active = Fault.objects.active().filter(fingerprint=mark)
    standing = load_faults(batch, active.select_for_update())
    load_neighbourhood(batch, {(kind.id, resource), (USER_REPORT, resource)})
    load_near_incidents(batch)
    if standing:
        standing[0].added += 1
        if standing[0].take_provenance(told_by):
            placement.correlate_again(batch, standing[0])
        standing[0].excerpts.append(("report", occurred_at, text[:_LONGEST_TEXT]))
        return standing[0]
    row = build_fault(kind, fingerprint=mark, resource=resource, qualifier="")
    graph = batch.index.surroundings.graph
    row.component = str(choose_component(kind.id, resource, kind.component, names, graph))
    row.severity = str(kind.severity)
    row.action = str(kind.action)
    row.raised_at = row.last_seen_at = occurred_at
    row.clock = str(Whose.PERSON)
    row.observed_at = row.recorded_at = batch.now
    case = FaultCase(row, opens_incident=True, is_sympathetic=False, is_new=True, added=1)
    case.take_provenance(told_by)
    case.excerpts.append(("report", occurred_at, text[:_LONGEST_TEXT]))
    batch.faults[mark] = case
    _place(batch, case)
    return case


def _end_what_was_closed(mark: str, now: datetime) -> None:
    """A false positive leaves its fault standing, so that no poll opens it again. A person who
    tells it again does."""
    closed = Fault.objects.active().filter(
        fingerprint=mark, membership__incident__state=State.FALSE_POSITIVE
    )
    faults = list(closed.values_list("pk", flat=True))
    Fault.objects.filter(pk__in=faults).update(
        is_active=False,
        cleared_at=now,
        cleared_reason="reported again after its incident was closed",
    )


def _place(batch: TriageBatch, case: FaultCase) -> None:
    """A report joins an incident of which something stands on its machine; only without such a one
    it is placed.

    Of several the one that explains what the reporter chose, then the nearest in time.
    """
    near = [*_find_on_machine(batch, case), *_find_wider(batch, case)]
    if not near:
        placement.assign(batch, case)
        return

    def order(candidate: tuple[IncidentCase, datetime]) -> tuple[bool, timedelta]:
        incident, since = candidate
        return not _is_explained_by(incident, case), abs(since - case.row.raised_at)

    incident = min(near, key=order)[0]
    reason = f"a user reported trouble on {case.row.owner.partition('/')[2]}"
    placement.join(batch, case, incident, Joins(incident.key, Role.SYMPTOM, "user_report", reason))


def _find_on_machine(
    batch: TriageBatch, case: FaultCase
) -> Iterator[tuple[IncidentCase, datetime]]:
    """The incidents of the machine itself, whatever they and the report are about. People tell
    late: what still stands is what they mean, such as a GPU that a reboot did not bring back."""
    for incident in batch.incidents.values():
        is_standing = any(fault.row.is_active for fault in incident.members)
        is_near = abs(incident.row.onset_at - case.row.raised_at) <= get_join_window()
        if incident.row.owner == case.row.owner and (is_standing or is_near):
            yield incident, incident.row.onset_at


def _find_wider(batch: TriageBatch, case: FaultCase) -> Iterator[tuple[IncidentCase, datetime]]:
    """The incidents of other machines that have a fault on this one: a leaf's, with the node's
    link."""
    for incident in batch.incidents.values():
        if incident.row.owner == case.row.owner or not _reaches(incident, case):
            continue
        for fault in incident.members:
            is_near = abs(fault.row.raised_at - case.row.raised_at) <= get_join_window()
            if fault.row.owner == case.row.owner and (fault.row.is_active or is_near):
                yield incident, fault.row.raised_at


def _reaches(incident: IncidentCase, case: FaultCase) -> bool:
    """Whether a wider incident can be what the reporter sees: a leaf breaks no GPU, and no job runs
    over the network over which machines are watched."""
    if incident.row.fault_type == MANAGEMENT_NETWORK:
        return False
    if _may_be_anything(case):
        return True
    return bool(_sort(case.row.component)) and _is_explained_by(incident, case)


def _is_explained_by(incident: IncidentCase, case: FaultCase) -> bool:
    return _may_be_anything(case) or _sort(incident.row.component) == _sort(case.row.component)


def _may_be_anything(case: FaultCase) -> bool:
    """A report in words alone, or of a job that hangs or failed."""
    return case.row.fault_type == USER_REPORT or case.row.fault_type.startswith("job.")


def _sort(component: str) -> str:
    return _SORTS.get(Component(component), "")


def _write_down(
    incident: Incident, *, author: str, text: str, resource: str, at: datetime, now: datetime
) -> None:
    author_field = author[:150]
    report_text = text[:_LONGEST_TEXT]
    UserReport.objects.create(
        incident=incident,
        author=author_field,
        text=report_text,
        resource=resource,
        reported_at=at,
        recorded_at=now,
    )
    entry = TimelineEntry.objects.create(
        incident=incident,
        kind="user_report",
        actor=author_field,
        text=f"Reported by {author}: {report_text.strip()}",
        occurred_at=at,
        recorded_at=now,
    )
    outbox.enqueue([entry], now=now)
