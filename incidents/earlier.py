"""The latest fault of a fingerprint that stands no more, with the incident that it belonged to. Reads only."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Max

from incidents.models import Fault, Incident, IncidentFault
from incidents.prepared import Given, Prepared

_NEWEST = Prepared(
    lambda: (
        Fault.objects.filter(fingerprint__among=Given("marks"))
        .values("fingerprint")
        .annotate(newest=Max("pk"))
        .order_by()
        .values_list("newest")
    )
)
_FAULTS = Prepared(lambda: Fault.objects.filter(pk__among=Given("ids")))
_MEMBERSHIPS = Prepared(lambda: IncidentFault.objects.filter(fault_id__among=Given("ids")).order_by())
_INCIDENTS = Prepared(lambda: Incident.objects.filter(pk__among=Given("ids")).order_by())


def of(fingerprints: Collection[str]) -> list[Fault]:
    """By fingerprint at most one. Its membership, the incident and the one that this repeats are read along."""
    newest = [pk for (pk,) in _NEWEST.rows(marks=fingerprints)] if fingerprints else []
    if not newest:
        return []
    faults: list[Fault] = _FAULTS.objects(ids=newest)
    links: dict[int, IncidentFault] = {link.fault_id: link for link in _MEMBERSHIPS.objects(ids=newest)}
    incidents = _with_repeated({link.incident_id for link in links.values()})
    for link in links.values():
        link.incident = incidents[link.incident_id]
    membership = Fault.membership.related
    for fault in faults:
        membership.set_cached_value(fault, links.get(fault.pk))
    return faults


def _with_repeated(ids: Collection[int]) -> dict[int, Incident]:
    """These incidents; a duplicate knows the one that it repeats."""
    found: dict[int, Incident] = {row.pk: row for row in _INCIDENTS.objects(ids=ids)} if ids else {}
    repeated = {row.duplicate_of_id for row in found.values() if row.duplicate_of_id is not None}
    known = {row.pk: row for row in _INCIDENTS.objects(ids=repeated)} if repeated else {}
    for row in found.values():
        if row.duplicate_of_id is not None:
            row.duplicate_of = known[row.duplicate_of_id]
    return found
