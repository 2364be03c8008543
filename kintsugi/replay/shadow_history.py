"""What the site's database knows of the last days: inventory, jobs, windows, its faults as events,
and what was done.

Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.db.models import Model, Q, QuerySet

from detectors.faults import (
    Action,
    Channel,
    ClearRule,
    Component,
    EventKind,
    FaultEvent,
    Severity,
    event_id,
)
from incidents.faults import flapping
from incidents.faults.fault_views import USER_REPORT
from incidents.models import Evidence, Fault, IncidentFault, Job, JobNode, PlannedWork, Silence
from kintsugi.replay import shadow_steps
from kintsugi.replay.shadow_outcome import Placed, ShadowOutcome
from kintsugi.replay.shadow_steps import FaultMark, ShadowStep

_INVENTORY = "incidents.models.inventory"
# A node's last boot lies after most events of the period: by it they would all be old.
_FORGOTTEN: dict[str, dict[str, Any]] = {"node": {"boot_id": "", "boot_seen_at": None}}

Rows = tuple[type[Model], list[dict[str, Any]]]


@dataclass(frozen=True)
class History:
    """The period in values, so that nothing of the site is open while it is played. What stands at
    `since` may have begun long before: `starts_at`."""

    starts_at: datetime
    since: datetime
    until: datetime
    tables: tuple[Rows, ...]
    events: tuple[FaultEvent, ...]
    marks: tuple[FaultMark, ...]
    steps: tuple[ShadowStep, ...]
    recorded: ShadowOutcome


def read(since: datetime, until: datetime, *, concluded: frozenset[str]) -> History:
    """Faults that stood or came since then. Those of `concluded` types are left to the rules that
    conclude them."""
    faults = list(
        Fault.objects.filter(
            Q(is_active=True) | Q(last_seen_at__gte=since) | Q(cleared_at__gte=since)
        )
        .filter(observed_at__lte=until)
        .exclude(fault_type__in=concluded)
        .order_by("observed_at", "pk")
    )
    told = _told([fault.pk for fault in faults])
    starts_at = min([since, *(fault.observed_at for fault in faults)])
    events = [event for fault in faults for event in _events(fault, told.get(fault.pk, ("", "")))]
    events.sort(key=lambda event: (event.observed_at, event.event is EventKind.CLEARED))
    return History(
        starts_at=starts_at,
        since=since,
        until=until,
        tables=tuple(_tables(since)),
        events=tuple(event for event in events if event.observed_at <= until),
        marks=tuple(FaultMark(fault.pk, fault.fingerprint, fault.raised_at) for fault in faults),
        steps=tuple(shadow_steps.read(starts_at, until)),
        recorded=_recorded({fault.pk for fault in faults}),
    )


def _tables(since: datetime) -> Iterator[Rows]:
    for model in apps.get_app_config("incidents").get_models():
        if model.__module__ == _INVENTORY:
            forgotten = _FORGOTTEN.get(model.__name__.lower(), {})
            yield model, [{**row, **forgotten} for row in _values(model._default_manager.all())]
    jobs = Job.objects.filter(Q(ended_at=None) | Q(ended_at__gte=since - timedelta(days=1)))
    yield Job, _values(jobs)
    yield JobNode, _values(JobNode.objects.filter(job__in=jobs))
    yield Silence, _values(Silence.objects.all())
    yield PlannedWork, _values(PlannedWork.objects.all())


def _values(rows: QuerySet[Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows.order_by("pk").values()]


def _told(faults: Sequence[int]) -> dict[int, tuple[str, str]]:
    """The first source and excerpt of each fault."""
    rows = Evidence.objects.filter(slot=0, fault__observed_at__isnull=False)
    wanted = set(faults)
    found = rows.values_list("fault_id", "source", "excerpt")
    return {fault: (source, excerpt) for fault, source, excerpt in found if fault in wanted}


def _recorded(faults: set[int]) -> ShadowOutcome:
    placed = {fault: Placed(None) for fault in faults}
    titles = {}
    for link in IncidentFault.objects.select_related("incident__duplicate_of", "fault"):
        if link.fault_id in faults:
            incident = link.incident.duplicate_of or link.incident
            is_root = incident.root_fault_id == link.fault_id
            placed[link.fault_id] = Placed(incident.pk, is_root, link.rule, link.reason)
            titles[incident.pk] = incident.title
    return ShadowOutcome(placed, titles)


def _events(fault: Fault, told: tuple[str, str]) -> Iterator[FaultEvent]:
    """The fault's life as far as it is known: raised, gone and back, last seen, ended. Quiet ends
    by itself."""
    yield _event(fault, EventKind.RAISED, fault.raised_at, fault.observed_at, told)
    late = fault.observed_at - fault.raised_at
    changes = [at for at in flapping.read(fault.changes_at) if at > fault.raised_at]
    ends_now = fault.cleared_at is not None
    for back, at in enumerate(reversed(changes)):
        is_end = (back % 2 == 0) is ends_now
        if not (is_end and back == 0):  # the last end has its own time
            yield _event(
                fault, EventKind.CLEARED if is_end else EventKind.RAISED, at, at + late, told
            )
    if fault.last_seen_at > fault.raised_at:
        yield _event(
            fault,
            EventKind.RAISED,
            fault.last_seen_at,
            fault.last_seen_at + late,
            told,
            count=fault.count,
        )
    if fault.cleared_at is not None and fault.clears != str(ClearRule.AFTER_QUIET):
        yield _event(fault, EventKind.CLEARED, fault.cleared_at, fault.cleared_at + late, told)


def _event(
    fault: Fault,
    kind: EventKind,
    at: datetime,
    seen_at: datetime,
    told: tuple[str, str],
    *,
    count: int = 1,
) -> FaultEvent:
    source, excerpt = told
    return FaultEvent(
        event_id=event_id("shadow", fault.pk, kind, at.isoformat()),
        fault_type=fault.fault_type,
        event=kind,
        resource=fault.resource,
        source=source or "shadow",
        occurred_at=at,
        observed_at=max(seen_at, at),
        severity=Severity(fault.severity),
        action=Action(fault.action),
        component=Component(fault.component),
        qualifier=fault.qualifier,
        code=fault.code,
        count=max(1, count),
        excerpt=excerpt,
        channel=Channel.USER if fault.fault_type == USER_REPORT else Channel.PLATFORM,
    )
