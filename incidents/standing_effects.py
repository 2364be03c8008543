"""Reads the faults that counting rules look at: those at a few places, by their machines. Reads only, never all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Q, QuerySet

from detectors import resources
from detectors.faults import Action, Component, Severity
from incidents import jobs, tallies
from incidents.board import Board
from incidents.cases import FaultCase
from incidents.gather_rules import GatherRule, Place
from incidents.models import Fault
from incidents.relations import Surroundings
from incidents.tallies import Effect
from incidents.views import FaultView

# Our choice: what another GPU of the same job shows within a minute is the same crash.
_TOGETHER = timedelta(minutes=1)
# Our choice: what one cause takes goes within seconds, so hold-downs that end within these are judged together.
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
    membership__incident__fault_type: str | None
    membership__incident__root_resource: str | None


def came_at(row: Fault | _Row) -> datetime:
    """When it was raised, or came back, by our clock where that is known."""
    return max(row.observed_at, row.last_seen_at) if row.returns else row.observed_at


def read(
    rule: GatherRule, places: Collection[str], around: Surroundings, *, since: datetime, board: Board
) -> list[Effect]:
    """The rule's effects at these places and those beside them since then. One query; what the board has counts as it
    is there."""
    rows = Fault.objects.filter(Q(observed_at__gte=since) | Q(returns__gt=0, last_seen_at__gte=since))
    if not rule.also_ended:
        rows = rows.filter(is_active=True)
    fresh = [case for case in board.faults.values() if case.row.pk is None and rule.takes(case.row.fault_type)]
    return list(_effects(_at(rows, rule, places, around), rule, fresh, board))


def read_standing(rule: GatherRule, place: str, around: Surroundings, *, board: Board) -> list[Effect]:
    """The rule's effects at this place that stand now, however old."""
    rows = Fault.objects.filter(is_active=True)
    return list(_effects(_at(rows, rule, (place,), around), rule, (), board))


def _at(rows: QuerySet[Fault], rule: GatherRule, places: Collection[str], around: Surroundings) -> QuerySet[Fault]:
    rows = rows.filter(fault_type__in=rule.types).order_by("pk")
    if rule.at is Place.SITE:
        return rows
    beside = (around.graph.siblings(place) for place in places if rule.quiet)
    near = set(places).union(*beside)
    owners = {resources.owner(place) for place in near}
    return rows.filter(owner__in=owners.union(*(tallies.machines_behind(place, around) for place in near)))


def _effects(rows: QuerySet[Fault], rule: GatherRule, fresh: Iterable[FaultCase], board: Board) -> Iterator[Effect]:
    """Few columns of each row: in a storm there are thousands, and the board has most of them."""
    known = {case.row.pk: case for case in board.faults.values() if case.row.pk is not None}
    known.update({case.row.pk: case for incident in board.incidents.values() for case in incident.members})
    for row in rows.values_list(*_Row._fields):
        told = _Row(*row)
        case = known.get(told.pk)
        if case is None:
            yield _told(told, board)
        elif case.row.is_active or rule.also_ended:
            yield _effect(case, board.now)
    for case in fresh:
        yield _effect(case, board.now)


def _told(row: _Row, board: Board) -> Effect:
    """A fault that the board does not have."""
    kind = board.catalog.get(row.fault_type)
    view = FaultView(
        fault_type=row.fault_type,
        resource=row.resource,
        component=Component(row.component),
        severity=Severity(row.severity),
        action=Action(row.action),
        occurred_at=row.raised_at,
        observed_at=row.observed_at,
        opens_incident=kind is None or kind.opens_incident,
        is_sympathetic=kind is not None and kind.is_sympathetic,
        is_active=row.is_active,
    )
    return Effect(
        row.fingerprint,
        view,
        came_at(row),
        is_held=row.held_until is not None and row.held_until > board.now + SPREAD,
        root_type=row.membership__incident__fault_type or "",
        root_place=row.membership__incident__root_resource or "",
    )


def _effect(case: FaultCase, now: datetime) -> Effect:
    incident = case.member.row if case.member is not None else None
    return Effect(
        case.row.fingerprint,
        case.view(),
        came_at(case.row),
        is_held=case.is_held(now + SPREAD),
        root_type=incident.fault_type if incident is not None else "",
        root_place=incident.root_resource if incident is not None else "",
    )


def with_spells(rule: GatherRule, effects: Sequence[Effect]) -> list[Effect]:
    """Each effect with the jobs that ran there then, or its own moment where none is known; those that other GPUs of
    these jobs showed too are a program's, and left out."""
    return [spelled for effect in effects if (spelled := _spelled(rule, effect)) is not None]


def _spelled(rule: GatherRule, effect: Effect) -> Effect | None:
    owner = effect.fault.owner
    on, of = jobs.running_on({owner}, at=effect.at, around=_TOGETHER)
    ran = on.get(owner, frozenset())
    machines = {owner}.union(*(of.get(job, frozenset()) for job in ran))
    beside = Fault.objects.filter(
        owner__in=machines,
        fault_type__in=rule.types,
        observed_at__range=(effect.at - _TOGETHER, effect.at + _TOGETHER),
    )
    if beside.exclude(resource=effect.fault.resource).exists():
        return None
    return replace(effect, spell=" ".join(sorted(ran)) or f"at {effect.at.isoformat()}")
