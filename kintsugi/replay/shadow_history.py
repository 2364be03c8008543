"""What the site's database knows of the last days: inventory, jobs, windows, its faults as events,
and what was done.

Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from detectors.provenance import from_wire
from incidents.faults import flapping
from incidents.faults.fault_views import USER_REPORT
from incidents.models import Evidence, Fault, IncidentFault, Job, JobNode, PlannedWork, Silence
from kintsugi.replay import shadow_steps
from kintsugi.replay.shadow_outcome import Placed, ShadowOutcome
from kintsugi.replay.shadow_steps import FaultMark, ShadowStep

_INVENTORY = "incidents.models.inventory"
# A node's last boot lies after most events of the period: by it they would all be old.
_FORGOTTEN: dict[str, dict[str, Any]] = {"node": {"boot_id": "", "boot_seen_at": None}}

_SAME_FIELDS = ("fault_type", "resource", "qualifier", "code")

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
    faults = _read_faults(since, until, concluded)
    numbers = {fault.pk for fault in faults}
    starts_at = min([since, *(fault.observed_at for fault in faults)])
    events = [event for event in _make_events(faults) if event.observed_at <= until]
    events.sort(key=lambda event: (event.observed_at, event.event is EventKind.CLEARED))
    marks = [FaultMark(fault.pk, fault.fingerprint, fault.raised_at) for fault in faults]
    steps = shadow_steps.read(starts_at, until)
    recorded = _read_outcome(numbers)
    return History(
        starts_at,
        since,
        until,
        tables=tuple(_read_tables(since)),
        events=tuple(events),
        marks=tuple(marks),
        steps=tuple(steps),
        recorded=recorded,
    )


def _read_faults(since: datetime, until: datetime, concluded: frozenset[str]) -> list[Fault]:
    is_of_period = Q(is_active=True) | Q(last_seen_at__gte=since) | Q(cleared_at__gte=since)
    faults = Fault.objects.filter(is_of_period, observed_at__lte=until)
    return list(faults.exclude(fault_type__in=concluded).order_by("observed_at", "pk"))


def _read_tables(since: datetime) -> Iterator[Rows]:
    for model in apps.get_app_config("incidents").get_models():
        if model.__module__ == _INVENTORY:
            forgotten = _FORGOTTEN.get(model.__name__.lower(), {})
            rows = _read_values(model._default_manager.all())
            yield model, [{**row, **forgotten} for row in rows]
    jobs = Job.objects.filter(Q(ended_at=None) | Q(ended_at__gte=since - timedelta(days=1)))
    yield Job, _read_values(jobs)
    yield JobNode, _read_values(JobNode.objects.filter(job__in=jobs))
    yield Silence, _read_values(Silence.objects.all())
    yield PlannedWork, _read_values(PlannedWork.objects.all())


def _read_values(rows: QuerySet[Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows.order_by("pk").values()]


def _read_first_evidence(faults: set[int]) -> dict[int, tuple[str, str]]:
    """The first source and excerpt of each fault."""
    evidence = Evidence.objects.filter(slot=0, fault__observed_at__isnull=False)
    rows = evidence.values_list("fault_id", "source", "excerpt")
    return {fault: (source, excerpt) for fault, source, excerpt in rows if fault in faults}


def _read_outcome(faults: set[int]) -> ShadowOutcome:
    placed = {fault: Placed(None) for fault in faults}
    titles = {}
    for link in IncidentFault.objects.select_related("incident__duplicate_of", "fault"):
        if link.fault_id in faults:
            incident = link.incident.duplicate_of or link.incident
            is_root = incident.root_fault_id == link.fault_id
            placed[link.fault_id] = Placed(incident.pk, is_root, link.rule, link.reason)
            titles[incident.pk] = incident.title
    return ShadowOutcome(placed, titles)


def _make_events(faults: Sequence[Fault]) -> Iterator[FaultEvent]:
    evidence = _read_first_evidence({fault.pk for fault in faults})
    for fault in faults:
        source, excerpt = evidence.get(fault.pk, ("", ""))
        for event in _iterate_events(fault):
            yield replace(event, source=source or event.source, excerpt=excerpt)


def _iterate_events(fault: Fault) -> Iterator[FaultEvent]:
    """The fault's life as far as it is known: raised, gone and back, last seen, ended. Quiet ends
    by itself."""
    delay = fault.observed_at - fault.raised_at
    yield _build_event(fault, EventKind.RAISED, fault.raised_at, delay)
    changes = [at for at in flapping.read(fault.changes_at) if at > fault.raised_at]
    has_ended = fault.cleared_at is not None
    for back, at in enumerate(reversed(changes)):
        is_end = (back % 2 == 0) is has_ended
        if not is_end:
            yield _build_event(fault, EventKind.RAISED, at, delay)
        elif back > 0:  # the last end has its own time
            yield _build_event(fault, EventKind.CLEARED, at, delay)
    if fault.last_seen_at > fault.raised_at:
        yield _build_event(fault, EventKind.RAISED, fault.last_seen_at, delay, count=fault.count)
    if fault.cleared_at is not None and fault.clears != str(ClearRule.AFTER_QUIET):
        yield _build_event(fault, EventKind.CLEARED, fault.cleared_at, delay)


def _build_event(
    fault: Fault, kind: EventKind, at: datetime, delay: timedelta, *, count: int = 1
) -> FaultEvent:
    """Seen as long after it happened as the fault's first line was."""
    number = event_id("shadow", fault.pk, kind, at.isoformat())
    observed_at = max(at + delay, at)
    return FaultEvent(
        event_id=number,
        event=kind,
        occurred_at=at,
        observed_at=observed_at,
        count=max(1, count),
        source="shadow",
        provenance=from_wire(fault.best_provenance),
        **_get_common_fields(fault),
    )


def _get_common_fields(fault: Fault) -> dict[str, Any]:
    """What all events of the fault have in common."""
    fields = {name: getattr(fault, name) for name in _SAME_FIELDS}
    fields["severity"] = Severity(fault.severity)
    fields["action"] = Action(fault.action)
    fields["component"] = Component(fault.component)
    is_report = fault.fault_type == USER_REPORT
    fields["channel"] = Channel.USER if is_report else Channel.PLATFORM
    return fields
