"""What may leave the database, in units that leave whole: a closed incident with all that hangs on
it, an ended fault that never had one, and single rows.

Nothing that is open, that an unfinished run or an open vendor case needs, or of which anything
happened after `before`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core import serializers
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Exists, Model, OuterRef, Q, QuerySet

from incidents.models import (
    Decision,
    Evidence,
    Fault,
    Incident,
    IncidentFault,
    IncidentJob,
    NodeInterval,
    Notification,
    QuarantinedEvent,
    SiteChange,
    TimelineEntry,
    UserReport,
    VendorCase,
    VendorMove,
)
from incidents.vocabulary.vendor_states import CaseState
from runbooks.models import (
    Approval,
    AuditEntry,
    CureAttempt,
    Question,
    Run,
    SeenAct,
    ShadowAct,
    StepRun,
)

# The rows that leave with an incident, those first that point at others. Each with the path to it.
OF_INCIDENT: tuple[tuple[type[Model], str], ...] = (
    (Notification, "incident"),
    (Approval, "run__incident"),
    (StepRun, "run__incident"),
    (Question, "run__incident"),
    (CureAttempt, "run__incident"),
    (ShadowAct, "run__incident"),
    (ShadowAct, "incident"),
    (Run, "incident"),
    (VendorMove, "case__incident"),
    (VendorCase, "incident"),
    (UserReport, "incident"),
    (IncidentJob, "incident"),
    (Decision, "incident"),
    (TimelineEntry, "incident"),
    (IncidentFault, "incident"),
)
# Those that leave with a fault.
OF_FAULT: tuple[tuple[type[Model], str], ...] = ((Decision, "fault"), (Evidence, "fault"))


@dataclass(frozen=True)
class Kind:
    """One kind of units: its rows past `before`, and which of their times says that they are."""

    name: str
    model: type[Model]
    ended_at: str

    def filter_past(self, before: datetime) -> QuerySet[Any]:
        return _PAST[self.name](before)


@dataclass(frozen=True)
class Unit:
    """Rows that leave together, as they were read. `ended_at` names its file."""

    kind: str
    number: int
    ended_at: datetime
    rows: tuple[Model, ...]

    def to_line(self) -> str:
        """One line of JSON; each row as Django's serializers write it."""
        values = {
            "kind": self.kind,
            "id": self.number,
            "ended_at": self.ended_at,
            "rows": serializers.serialize("python", self.rows),
        }
        return json.dumps(values, cls=DjangoJSONEncoder, ensure_ascii=False, sort_keys=True)


def _filter_past_incidents(before: datetime) -> QuerySet[Incident]:
    incident = OuterRef("pk")
    members = IncidentFault.objects.filter(incident=incident)
    standing = members.filter(Q(fault__is_active=True) | Q(fault__cleared_at__gte=before))
    runs = Run.objects.filter(incident=incident)
    later_runs = runs.filter(Q(finished_at=None) | Q(finished_at__gte=before))
    cases = VendorCase.objects.filter(incident=incident)
    open_cases = cases.filter(~Q(state=CaseState.CLOSED.value) | Q(closed_at__gte=before))
    # What repeats an incident goes before it: its faults are part of the incident's account.
    repeats = Incident.objects.filter(duplicate_of=incident).order_by()
    closed = Incident.objects.closed().filter(closed_at__lt=before)
    return closed.filter(
        ~Exists(standing), ~Exists(later_runs), ~Exists(open_cases), ~Exists(repeats)
    )


def _filter_past_faults(before: datetime) -> QuerySet[Fault]:
    return Fault.objects.filter(
        is_active=False, cleared_at__lt=before, membership=None, rooted_incident=None
    )


def _filter_past_shadow_acts(before: datetime) -> QuerySet[ShadowAct]:
    return ShadowAct.objects.filter(at__lt=before, settles_at__lt=before, incident=None, run=None)


def _filter_past_seen_acts(before: datetime) -> QuerySet[SeenAct]:
    return SeenAct.objects.filter(at__lt=before, shadow_act=None)


_PAST: dict[str, Callable[[datetime], QuerySet[Any]]] = {
    "incident": _filter_past_incidents,
    "fault": _filter_past_faults,
    "quarantined_event": lambda before: QuarantinedEvent.objects.filter(recorded_at__lt=before),
    "shadow_act": _filter_past_shadow_acts,
    "seen_act": _filter_past_seen_acts,
    "node_interval": lambda before: NodeInterval.objects.filter(until__lt=before),
    "site_change": lambda before: SiteChange.objects.filter(at__lt=before),
    "audit_entry": lambda before: AuditEntry.objects.filter(at__lt=before),
}
# In the order in which they leave: a fault without its incident only after the incidents.
KINDS = (
    Kind("incident", Incident, "closed_at"),
    Kind("fault", Fault, "cleared_at"),
    Kind("quarantined_event", QuarantinedEvent, "recorded_at"),
    Kind("shadow_act", ShadowAct, "at"),
    Kind("seen_act", SeenAct, "at"),
    Kind("node_interval", NodeInterval, "until"),
    Kind("site_change", SiteChange, "at"),
    Kind("audit_entry", AuditEntry, "at"),
)


def read_units(
    kind: Kind, before: datetime, *, most: int, after: int = 0, is_locked: bool = False
) -> list[Unit]:
    """The first units past `before` with numbers above `after`; a fixed number of statements.

    is_locked: until the caller's transaction ends; what another process holds is left out.
    """
    past = kind.filter_past(before).filter(pk__gt=after).order_by("pk")
    if is_locked:
        past = past.select_for_update(of=("self",), skip_locked=True)
    chosen = list(past[:most])
    if not chosen:
        return []
    rows_of: dict[int, list[Model]] = {row.pk: [row] for row in chosen}
    for number, row in _iterate_related_rows(kind, list(rows_of)):
        rows_of[number].append(row)
    return [
        Unit(kind.name, row.pk, getattr(row, kind.ended_at), tuple(rows_of[row.pk]))
        for row in chosen
    ]


def _iterate_related_rows(kind: Kind, numbers: Sequence[int]) -> Iterator[tuple[int, Model]]:
    """What leaves with each of these, by its number; there is one at least."""
    if kind.model is Incident:
        for model, path in OF_INCIDENT:
            yield from _iterate_rows_of_model(model, path, numbers)
        owners = dict(
            IncidentFault.objects.filter(incident__in=numbers).values_list("fault", "incident")
        )
        for fault in Fault.objects.filter(pk__in=owners).order_by("pk"):
            yield owners[fault.pk], fault
        for model, path in OF_FAULT:
            for number, row in _iterate_rows_of_model(model, path, list(owners)):
                yield owners[number], row
    if kind.model is Fault:
        for model, path in OF_FAULT:
            yield from _iterate_rows_of_model(model, path, numbers)


def _iterate_rows_of_model(
    model: type[Model], path: str, numbers: Collection[int]
) -> Iterator[tuple[int, Model]]:
    rows = model._default_manager.filter(**{f"{path}__in": numbers}).order_by("pk")
    pairs = rows.values_list(path, "pk")
    owners = {pk: owner for owner, pk in pairs}
    for row in rows:
        if row.pk in owners:
            yield owners[row.pk], row


def delete_units(kind: Kind, units: Sequence[Unit]) -> None:
    """Removes what `read_units` has locked, in the caller's transaction."""
    numbers = [unit.number for unit in units]
    if kind.model is AuditEntry:
        AuditEntry.objects.filter(pk__in=numbers).remove_exported()
    elif kind.model is Incident:
        _delete_incidents(numbers)
    elif kind.model is Fault:
        _delete_faults(numbers)
    else:
        kind.model._default_manager.filter(pk__in=numbers).delete()


def _delete_incidents(numbers: Sequence[int]) -> None:
    faults = list(
        IncidentFault.objects.filter(incident__in=numbers).values_list("fault", flat=True)
    )
    for model, path in OF_INCIDENT:
        model._default_manager.filter(**{f"{path}__in": numbers}).delete()
    Incident.objects.filter(pk__in=numbers).delete()
    _delete_faults(faults)


def _delete_faults(numbers: Sequence[int]) -> None:
    for model, path in OF_FAULT:
        model._default_manager.filter(**{f"{path}__in": numbers}).delete()
    Fault.objects.filter(pk__in=numbers).delete()
