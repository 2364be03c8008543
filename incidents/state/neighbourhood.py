"""Reads into a batch what its faults may be correlated with: open incidents and unassigned faults
near them. Decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from django.db.models import Max, QuerySet

from detectors import resources
from detectors.catalog.catalog import Catalog
from incidents.db import upsert
from incidents.db.prepared import Given, Prepared
from incidents.inventory import graphs
from incidents.models import Fault
from incidents.state import nearby, neighbourhood_rows
from incidents.state.batch import LockedPods, TriageBatch, get_join_window
from incidents.state.cases import FaultCase, IncidentCase
from incidents.vocabulary import changes

# A batch of more pods locks all: as many single locks would cost as much as they save.
_MOST_PODS = 16


def lock_neighbourhood(
    faults: Collection[tuple[str, str]],
    catalog: Catalog,
    now: datetime,
    *,
    by_pod: bool,
    reached: Collection[str] = (),
) -> LockedPods | None:
    """Lets no other transaction place faults until this one ends: in the pods where rules may find
    others of these (fault type, resource) pairs, and in those of the machines `reached`, which it
    gives; or anywhere (None).

    `by_pod` False: anywhere in any case. What belongs to no pod, as a spine, locks all.
    """
    if by_pod and upsert.is_postgresql():
        graph = graphs.get_current()
        get_pod = graph.get_pod
        pods = {get_pod(resources.owner(resource)) for _, resource in faults}
        pods |= {get_pod(machine) for machine in reached}
        if "" not in pods and len(pods) <= _MOST_PODS:
            near = nearby.read_nearby(faults, catalog, graph, now=now, window=get_join_window())
            pods |= {get_pod(machine) for machine in near.owners}
            pods.discard("")
            upsert.lock_pods(pods)
            return LockedPods(frozenset(pods), get_pod)
    upsert.lock_placement()
    return None


def load_neighbourhood(batch: TriageBatch, faults: Iterable[tuple[str, str]]) -> None:
    """Open incidents and unassigned faults where rules may find the others of these (fault type,
    resource) pairs. Raises WiderLockNeeded, as `load_incidents` does."""
    graph, window = graphs.get_current(), get_join_window()
    near = nearby.read_nearby(faults, batch.catalog, graph, now=batch.now, window=window)
    batch.require_stillness(near.owners)
    batch.index.set_surroundings(near.around)
    known = {case.row.pk: case for case in batch.faults.values()}
    load_incidents(batch, neighbourhood_rows.get_incidents_holding(list(known)))
    _enter_near(batch, neighbourhood_rows.open_near(near))
    unassigned = neighbourhood_rows.list_unassigned_at(near.owners, since=batch.now - window)
    # What joined an incident of this batch a moment ago is unassigned in its table still.
    known.update(
        {case.row.pk: case for incident in batch.incidents.values() for case in incident.members}
    )
    listed = {case.row.pk: case for case in batch.unassigned}
    found = [known.get(row.pk) or listed.get(row.pk) or batch.build_case(row) for row in unassigned]
    batch.unassigned += [
        case for case in found if case.row.pk not in listed and case.member is None
    ]
    for case in batch.unassigned:
        batch.index.assign(case, None)


def _enter_near(batch: TriageBatch, ids: Collection[int]) -> None:
    """Makes candidates of those that the batch does not have."""
    unknown = set(ids) - batch.index.incidents.keys() - batch.hidden
    for incident in neighbourhood_rows.list_near_incidents(unknown, batch.catalog):
        batch.index.enter(incident.key, incident, root=incident.root, members=incident.members)


def get_incident(batch: TriageBatch, key: int) -> IncidentCase:
    """One that correlation found: read whole now that it changes, unless the batch has it."""
    if key not in batch.incidents:
        load_incidents(batch, [key])
    return batch.incidents[key]


def load_near_incidents(batch: TriageBatch) -> list[IncidentCase]:
    """All candidates whole, for those who choose among them by themselves."""
    return load_incidents(batch, [key for key in batch.index.incidents if key > 0])


def load_faults(batch: TriageBatch, rows: Iterable[Fault]) -> list[FaultCase]:
    """These faults, and the open incidents that they belong to."""
    cases = [batch.build_case(row) for row in rows]
    batch.faults.update({case.row.fingerprint: case for case in cases})
    load_incidents(batch, neighbourhood_rows.get_incidents_holding([case.row.pk for case in cases]))
    return cases


def load_incidents(batch: TriageBatch, ids: Iterable[int]) -> list[IncidentCase]:
    """The open ones among these, with their faults; those of their duplicates count as theirs.
    Raises WiderLockNeeded where they reach beyond what the batch has locked, and takes none."""
    by_pk = {case.row.pk: case for case in batch.faults.values() if case.row.pk}
    wanted = set(ids) - set(batch.incidents) - batch.hidden
    rows = neighbourhood_rows.list_incidents(wanted)
    links_of = neighbourhood_rows.get_members([row.pk for row in rows])
    loaded: list[IncidentCase] = []
    for row in rows:
        links = links_of[row.pk]
        members = {
            link.fault: by_pk.get(link.fault) or batch.build_case(link.row()) for link in links
        }
        root = members.get(row.root_fault_id or 0)
        if root is None:
            continue
        is_fixed = any(
            link.fault == row.root_fault_id and link.placed_by != changes.KINTSUGI for link in links
        )
        incident = IncidentCase(
            row, key=row.pk, root=root, members=list(members.values()), is_fixed=is_fixed
        )
        loaded.append(incident)
    batch.require_lock({machine for incident in loaded for machine in incident.machines})
    for incident in loaded:
        for member in incident.members:
            member.member = incident
        batch.put_incident(incident)
    return list(batch.incidents.values())


def load_last_faults(fingerprints: Collection[str]) -> list[Fault]:
    """The latest fault of each fingerprint that is active no more. Its membership, the incident and
    the one that this repeats are read along."""
    return _LAST_FAULTS.objects(fingerprints=fingerprints) if fingerprints else []


def _get_last_faults() -> QuerySet[Fault]:
    same = Fault.objects.filter(fingerprint__among=Given("fingerprints")).order_by()
    newest = same.values("fingerprint").annotate(newest=Max("pk")).values("newest")
    rows = Fault.objects.filter(pk__in=newest)
    return rows.select_related("membership__incident__duplicate_of")


_LAST_FAULTS = Prepared(_get_last_faults)
