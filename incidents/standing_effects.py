"""Reads the faults that counting rules look at: those at a few places, by their machines. Reads only, never all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from detectors import resources
from incidents import jobs, tallies
from incidents.board import Board
from incidents.cases import FaultCase
from incidents.gather_rules import GatherRule, Place
from incidents.models import Fault, Incident
from incidents.relations import Surroundings
from incidents.tallies import Effect

# Our choice: what another GPU of the same job shows within a minute is the same crash.
_TOGETHER = timedelta(minutes=1)


def came_at(row: Fault) -> datetime:
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
    rows = rows.filter(fault_type__in=rule.types).select_related("membership__incident").order_by("pk")
    if rule.at is Place.SITE:
        return rows
    beside = (around.graph.siblings(place) for place in places if rule.quiet)
    near = set(places).union(*beside)
    owners = {resources.owner(place) for place in near}
    return rows.filter(owner__in=owners.union(*(tallies.machines_behind(place, around) for place in near)))


def _effects(rows: QuerySet[Fault], rule: GatherRule, fresh: Iterable[FaultCase], board: Board) -> Iterator[Effect]:
    known = {case.row.pk: case for case in board.faults.values() if case.row.pk is not None}
    known.update({case.row.pk: case for incident in board.incidents.values() for case in incident.members})
    for row in rows:
        case = known.get(row.pk)
        if case is None:
            membership = getattr(row, "membership", None)
            yield _effect(board.case(row), board.now, membership.incident if membership is not None else None)
        elif case.row.is_active or rule.also_ended:
            yield _effect(case, board.now, case.member.row if case.member is not None else None)
    for case in fresh:
        yield _effect(case, board.now, case.member.row if case.member is not None else None)


def _effect(case: FaultCase, now: datetime, incident: Incident | None) -> Effect:
    return Effect(
        case.row.fingerprint,
        case.view(),
        came_at(case.row),
        is_held=case.is_held(now),
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
