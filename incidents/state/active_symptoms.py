"""Reads the faults that counting rules look at: those at a few places, by their machines. Reads
only, never all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db.models import Q, QuerySet

from detectors import resources
from incidents.correlation import symptom_counts
from incidents.correlation.aggregation_rules import AggregationRule, Place
from incidents.correlation.relations import Surroundings
from incidents.correlation.symptom_counts import Symptom
from incidents.db.prepared import Given, Prepared
from incidents.faults.fault_views import view_stored
from incidents.models import Fault
from incidents.state.batch import TriageBatch
from incidents.state.cases import FaultCase

# Our choice: what one cause takes goes within seconds, so hold-downs that end within these are
# judged together.
SPREAD = timedelta(seconds=15)


class _Row(NamedTuple):
    """What counting asks of a fault, by the names of its columns."""

    pk: int
    fingerprint: str
    fault_type: str
    resource: str
    component: str
    severity: str
    action: str
    raised_at: datetime
    observed_at: datetime
    last_seen_at: datetime
    returns: int
    held_until: datetime | None
    is_active: bool
    forger: str
    membership__incident__fault_type: str | None
    membership__incident__root_resource: str | None


def get_came_at(row: Fault | _Row) -> datetime:
    """When it was raised, or came back, by our clock where that is known."""
    return max(row.observed_at, row.last_seen_at) if row.returns else row.observed_at


def read(
    rule: AggregationRule,
    places: Collection[str],
    around: Surroundings,
    *,
    since: datetime,
    batch: TriageBatch,
) -> list[Symptom]:
    """The rule's effects at these places and those beside them since then. One query; what the
    batch has counts as it is there."""
    asked = _LATELY[rule.also_ended, rule.at is Place.SITE]
    types = rule.types | rule.failure_types
    owners = _get_owners(rule, places, around)
    if rule.failure_types:
        owners = owners.union(*map(around.graph.get_switches, owners))
    rows = asked.rows(types=types, owners=owners, since=since)
    fresh = [
        case
        for case in batch.faults.values()
        if case.row.pk is None and case.row.fault_type in types
    ]
    return list(_list_effects(rows, rule, fresh, batch))


def read_standing(
    rule: AggregationRule, place: str, around: Surroundings, *, batch: TriageBatch
) -> list[Symptom]:
    """The rule's effects at this place that stand now, however old."""
    rows = _STANDING[rule.at is Place.SITE].rows(
        types=rule.types, owners=_get_owners(rule, (place,), around)
    )
    return list(_list_effects(rows, rule, (), batch))


def _get_owners(rule: AggregationRule, places: Collection[str], around: Surroundings) -> set[str]:
    """The machines that are asked about; none where the rule asks of all the site."""
    if rule.at is Place.SITE:
        return set()
    beside = (around.graph.get_siblings(place) for place in places if rule.quiet)
    near = set(places).union(*beside)
    owners = {resources.owner(place) for place in near}
    return owners.union(
        *(symptom_counts.get_telling_machines(rule, place, around) for place in near)
    )


def _select_columns(rows: QuerySet[Fault], *, is_of_site: bool) -> QuerySet[Fault, tuple[Any, ...]]:
    rows = rows.filter(fault_type__among=Given("types")).order_by("pk")
    if not is_of_site:
        rows = rows.filter(owner__among=Given("owners"))
    return rows.values_list(*_Row._fields)


def _get_recent(*, also_ended: bool, is_of_site: bool) -> QuerySet[Fault, tuple[Any, ...]]:
    since = Given("since")
    rows = Fault.objects.filter(
        Q(observed_at__gte=since) | Q(returns__gt=0, last_seen_at__gte=since)
    )
    return _select_columns(
        rows if also_ended else rows.filter(is_active=True), is_of_site=is_of_site
    )


def _get_standing(*, is_of_site: bool) -> QuerySet[Fault, tuple[Any, ...]]:
    return _select_columns(Fault.objects.filter(is_active=True), is_of_site=is_of_site)


_LATELY = {
    (also_ended, is_of_site): Prepared(
        partial(_get_recent, also_ended=also_ended, is_of_site=is_of_site)
    )
    for also_ended in (False, True)
    for is_of_site in (False, True)
}
_STANDING = {
    is_of_site: Prepared(partial(_get_standing, is_of_site=is_of_site))
    for is_of_site in (False, True)
}


def _list_effects(
    rows: Iterable[Sequence[Any]],
    rule: AggregationRule,
    fresh: Iterable[FaultCase],
    batch: TriageBatch,
) -> Iterator[Symptom]:
    """Few columns of each row: in a storm there are thousands, and the batch has most of them."""
    known = {case.row.pk: case for case in batch.faults.values() if case.row.pk is not None}
    known.update(
        {case.row.pk: case for incident in batch.incidents.values() for case in incident.members}
    )
    for row in rows:
        told = _Row(*row)
        case = known.get(told.pk)
        if case is None:
            yield _make_symptom_of_row(told, batch)
        elif case.row.is_active or rule.also_ended:
            yield _make_symptom_of_case(case, batch.now)
    for case in fresh:
        yield _make_symptom_of_case(case, batch.now)


def _make_symptom_of_row(row: _Row, batch: TriageBatch) -> Symptom:
    """A fault that the batch does not have."""
    kind = batch.catalog.get(row.fault_type)
    view = view_stored(
        row,
        opens_incident=kind is None or kind.opens_incident,
        is_sympathetic=kind is not None and kind.is_sympathetic,
    )
    is_held = row.held_until is not None and row.held_until > batch.now + SPREAD
    return Symptom(
        row.fingerprint,
        view,
        get_came_at(row),
        is_held=is_held,
        root_type=row.membership__incident__fault_type or "",
        root_place=row.membership__incident__root_resource or "",
    )


def _make_symptom_of_case(case: FaultCase, now: datetime) -> Symptom:
    is_held = case.is_held(now + SPREAD)
    symptom = Symptom(case.row.fingerprint, case.view(), get_came_at(case.row), is_held=is_held)
    if case.member is None:
        return symptom
    root = case.member.row
    return replace(symptom, root_type=root.fault_type, root_place=root.root_resource)
