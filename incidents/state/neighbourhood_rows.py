"""What a batch reads: open incidents with their faults, and faults without one, by the machines or
rows they are about.

Reads only, a few statements whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef, Q, QuerySet

from detectors.catalog.catalog import Catalog
from incidents.db.prepared import Given, Prepared, make_instance
from incidents.models import Fault, Incident, IncidentFault
from incidents.state.near_incidents import NearFault, NearIncident
from incidents.state.nearby import Nearby
from incidents.vocabulary.changes import KINTSUGI
from incidents.vocabulary.lifecycle import OPEN

_OPEN = [state.value for state in OPEN]
_FAULT = [column.attname for column in Fault._meta.concrete_fields]


def _prepare_open_at() -> QuerySet[Incident, Any]:
    """Open incidents that are rooted on these machines, or of which a fault stands there."""
    repeats = Incident.objects.filter(duplicate_of=OuterRef("pk"))
    rooted = Incident.objects.filter(owner__among=Given("owners"), state__in=_OPEN)
    rows = rooted.annotate(is_repeated=Exists(repeats)).values_list(
        *("pk", "owner", "fault_type", "state"),
        *("has_platform_signal", "silence_id", "is_repeated"),
    )
    repeats_of_members = Incident.objects.filter(duplicate_of=OuterRef("incident_id"))
    members = IncidentFault.objects.filter(
        fault__owner__among=Given("owners"), incident__state__in=_OPEN
    )
    rows_of_members = members.annotate(is_repeated=Exists(repeats_of_members)).values_list(
        *("incident_id", "fault__owner", "fault__fault_type", "incident__state"),
        *("incident__has_platform_signal", "incident__silence_id", "is_repeated"),
    )
    return rows.order_by().union(rows_of_members.order_by(), all=True)


_OPEN_AT = Prepared(_prepare_open_at)
_UNASSIGNED_AT = Prepared(
    lambda: (
        Fault.objects.filter(owner__among=Given("owners"), membership__isnull=True)
        .filter(
            Q(is_active=True)
            | Q(raised_at__gte=Given("since"))
            | Q(observed_at__gte=Given("since"))
        )
        .order_by("id")
    )
)
_INCIDENTS = Prepared(
    lambda: Incident.objects.filter(
        pk__among=Given("ids"), state__in=_OPEN, root_fault__isnull=False
    ).order_by("id")
)
_NEAR = Prepared(
    lambda: (
        Incident.objects.filter(pk__among=Given("ids"), state__in=_OPEN, root_fault__isnull=False)
        .order_by("id")
        .values_list(
            *("pk", "root_fault_id", "state", "has_platform_signal", "is_root_by_person"),
            *("silence_id", "announced_at", "opened_at"),
        )
    )
)
_NEAR_FAULTS = Prepared(
    lambda: (
        IncidentFault.objects.filter(incident_id__among=Given("ids"))
        .order_by("joined_at", "id")
        .values_list(
            *("incident_id", "placed_by", "fault_id", "fault__fault_type", "fault__owner"),
            *("fault__resource", "fault__component", "fault__severity", "fault__action"),
            *("fault__raised_at", "fault__observed_at", "fault__is_active", "fault__forger"),
        )
    )
)
_DUPLICATES = Prepared(
    lambda: (
        Incident.objects.filter(duplicate_of_id__among=Given("ids"))
        .order_by()
        .values_list("pk", "duplicate_of_id")
    )
)
_MEMBERS = Prepared(
    lambda: (
        IncidentFault.objects.filter(incident_id__among=Given("ids"))
        .order_by("joined_at", "id")
        .values_list("incident_id", "placed_by", *(f"fault__{name}" for name in _FAULT))
    )
)
_HOLDING = Prepared(
    lambda: (
        IncidentFault.objects.filter(fault_id__among=Given("ids"))
        .order_by()
        .values_list("incident_id", "incident__duplicate_of_id")
    )
)


class Member(NamedTuple):
    """A membership, and the columns of its fault."""

    placed_by: str
    columns: Sequence[Any]

    @property
    def fault(self) -> int:
        pk: int = self.columns[0]
        return pk

    def row(self) -> Fault:
        return make_instance(Fault, _FAULT, self.columns)


def open_near(near: Nearby) -> set[int]:
    """Open incidents of which some fault may be met; those that repeat others or that a window
    keeps from people too: more is asked of them than of their own faults."""
    found = set()
    for pk, owner, fault_type, state, has_signal, silence, is_repeated in _OPEN_AT.rows(
        owners=near.owners
    ):
        if (
            is_repeated
            or silence is not None
            or near.reach.holds(owner, fault_type, state=state, has_platform_signal=has_signal)
        ):
            found.add(pk)
    return found


def list_unassigned_at(owners: Collection[str], *, since: datetime) -> list[Fault]:
    """Faults of these machines that belong to no incident, and stand or came since then."""
    found: list[Fault] = _UNASSIGNED_AT.objects(owners=owners, since=since)
    return found


def list_incidents(ids: Collection[int]) -> list[Incident]:
    """The open ones among these."""
    found: list[Incident] = _INCIDENTS.objects(ids=ids) if ids else []
    return found


def list_near_incidents(ids: Collection[int], catalog: Catalog) -> list[NearIncident]:
    """The open ones among these, as correlation looks at them."""
    rows = _NEAR.rows(ids=ids) if ids else ()
    links_of: dict[int, list[Sequence[Any]]] = {pk: [] for pk, *_ in rows}
    if not links_of:
        return []
    repeats = dict(_DUPLICATES.rows(ids=list(links_of)))
    for incident, *link in _NEAR_FAULTS.rows(ids=[*links_of, *repeats]):
        links_of[repeats.get(incident) or incident].append(link)
    found = []
    for row in rows:
        incident = _make_near(row, links_of[row[0]], catalog)
        if incident is not None:
            found.append(incident)
    return found


def _make_near(
    row: Sequence[Any], links: Sequence[Sequence[Any]], catalog: Catalog
) -> NearIncident | None:
    """None: its root is not among its faults."""
    pk, root_pk, state, has_signal, is_root_by_person, silence, announced_at, opened_at = row
    is_fixed = is_root_by_person
    root = None
    members = []
    for placed_by, *columns in links:
        member = NearFault(*columns, catalog=catalog)
        members.append(member)
        if member.key == root_pk:
            root = member
            is_fixed = is_fixed or placed_by != KINTSUGI
    if root is None:
        return None
    is_told = silence is None or announced_at is not None
    return NearIncident(pk, state, has_signal, is_fixed, is_told, opened_at, root, members)


def get_members(incidents: Sequence[int]) -> dict[int, list[Member]]:
    """The memberships of these incidents, with their faults; those of their duplicates are
    theirs."""
    found: dict[int, list[Member]] = {pk: [] for pk in incidents}
    if not incidents:
        return found
    repeats = dict(_DUPLICATES.rows(ids=incidents))
    for incident, placed_by, *columns in _MEMBERS.rows(ids=[*incidents, *repeats]):
        found[repeats.get(incident) or incident].append(Member(placed_by, columns))
    return found


def get_incidents_holding(faults: Sequence[int]) -> set[int]:
    """Incidents of which these faults are part; for a duplicate the incident that it repeats
    too."""
    return {
        pk for row in (_HOLDING.rows(ids=faults) if faults else ()) for pk in row if pk is not None
    }
