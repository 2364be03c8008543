"""The memory of the ladder: which rung was tried on which part for which fault, and what came of
it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db.models import (
    DateTimeField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    prefetch_related_objects,
)

from detectors.faults import Recovery
from incidents.db.prepared import Given, Prepared
from incidents.models import Fault, Incident, InService, Node
from incidents.vendor import cases
from runbooks.lease import lease
from runbooks.models import CureAttempt, Run, RunState
from runbooks.plan import escalation
from runbooks.plan.choose import Past
from runbooks.plan.escalation import Tried
from runbooks.plan.runbook import Runbook

_LONGEST = 255
# How a run ended tells of its rung at once; after the others it is seen within the window whether
# the fault comes back.
_NOT_CURED = frozenset({RunState.FAILED, RunState.NOT_CURED})
_NOT_KNOWN = frozenset({RunState.ABORTED, RunState.WITHDRAWN})


def record_attempt(run: Run, rung: Recovery, now: datetime) -> None:
    """In the transaction of the attempt: an act of unknown outcome may have been done, and
    counts."""
    if run.node is None:
        return  # a run beside nodes cures nothing
    if run.cures.filter(rung=rung).exists():
        return  # asked again, since what was asked was lost
    resource = run.facts.get("resource") or run.incident.root_resource
    serial = _get_serials([resource]).get(resource, "")
    CureAttempt.objects.create(
        run=run,
        node=run.node,
        resource=resource,
        serial=serial,
        fault_type=run.fault_type,
        rung=rung,
        tried_at=now,
    )


def record_verification(run: Run, *, has_cured: bool | None, why: str, now: datetime) -> None:
    """What the run's own verification says of its rungs, in the transaction of that turn.

    A part that has just been put in and does not pass is dead on arrival.
    """
    _store_outcome(run, has_cured=has_cured, why=why, now=now)
    if has_cured is False and run.facts.get("recovery") == Recovery.VENDOR_REPLACEMENT:
        cases.record_dead_part(run.incident_id, run.facts.get(lease.VENDOR_CASE), note=why, now=now)


def _store_outcome(run: Run, *, has_cured: bool | None, why: str, now: datetime) -> None:
    """A judgement once made stands."""
    run.cures.filter(judged_at=None).update(has_cured=has_cured, why=why[:_LONGEST], judged_at=now)


def _get_unjudged() -> QuerySet[CureAttempt]:
    return CureAttempt.objects.filter(judged_at=None, run__finished_at__isnull=False)


_UNJUDGED = Prepared(lambda: _get_unjudged().values_list("pk")[:1])


def evaluate_outcomes(now: datetime, books: Mapping[str, Runbook]) -> int:
    """What came of rungs whose runs have ended: one query where there is none to judge. How many
    were judged."""
    if not _UNJUDGED.values():
        return 0
    rows = _get_unjudged().annotate(back_at=_get_back_at()).select_related("run")
    by_run = {row.run_id: row for row in rows}
    verdicts: dict[int, tuple[bool | None, str]] = {}
    for row in by_run.values():
        window = get_window(row.run.runbook, books)
        verdict = _evaluate_outcome(row.run, row.back_at, now, window)
        if verdict is not None:
            verdicts[row.run_id] = verdict
    for run_id, (has_cured, why) in verdicts.items():
        _store_outcome(by_run[run_id].run, has_cured=has_cured, why=why, now=now)
    return len(verdicts)


def _get_back_at() -> Subquery:
    """When the fault was last seen, where that was after the attempt's run."""
    ended_at = OuterRef("run__finished_at")
    same = Fault.objects.filter(resource=OuterRef("resource"), fault_type=OuterRef("fault_type"))
    after = same.filter(Q(last_seen_at__gt=ended_at) | Q(observed_at__gt=ended_at))
    last = after.order_by("-pk").values("last_seen_at")[:1]
    return Subquery(last, output_field=DateTimeField())


def _evaluate_outcome(
    run: Run, back_at: datetime | None, now: datetime, window: timedelta
) -> tuple[bool | None, str] | None:
    """None: its window is not over yet."""
    state = RunState(run.state)
    if state in _NOT_KNOWN:
        return None, f"not known: the run was {state.label.lower()}"
    if state in _NOT_CURED:
        return False, run.outcome
    if back_at is not None:
        return False, f"the fault was back at {back_at:%Y-%m-%d %H:%M %Z}"
    if run.finished_at is not None and now - run.finished_at >= window:
        return True, f"the fault did not come back within {_format_hours(window)}"
    return None


_WITHOUT_CURE = Prepared(
    lambda: Run.objects.filter(incident=Given("incident"), state=RunState.NOT_CURED)
)


def _list_without_cure(incident: Incident) -> list[Run]:
    """Mostly none: those that there are come with what they tried."""
    runs: list[Run] = _WITHOUT_CURE.objects(incident=incident.pk)
    if runs:
        prefetch_related_objects(runs, "cures")
    return runs


def load_past(
    incident: Incident, fault_type: str, books: Mapping[str, Runbook], now: datetime
) -> Past:
    """What was tried for the fault type on the incident's node, but for parts that have been
    replaced since."""
    ended = _list_without_cure(incident)
    tried: list[Tried] = []
    if incident.node is not None:
        tried = load_tried(incident.node, fault_type, books, now)
    # A rung that could not even be tried has left no attempt.
    for run in ended:
        book = books.get(run.runbook)
        rung = book.rung if book is not None else None
        if rung is not None and not run.cures.all():
            resource, ended_at = run.facts.get("resource", ""), run.finished_at or now
            tried.append(Tried(rung, resource, ended_at, has_cured=False, was_begun=False))
    return Past(tried, frozenset(run.runbook for run in ended))


_ATTEMPTS = Prepared(
    lambda: CureAttempt.objects.filter(
        node=Given("node"), fault_type=Given("fault_type"), tried_at__gt=Given("since")
    ).select_related("run")
)


def load_tried(
    node: Node, fault_type: str, books: Mapping[str, Runbook], now: datetime
) -> list[Tried]:
    """The rungs of the last 14 days, but for parts that have been replaced since."""
    since = now - escalation.MEMORY
    attempts = _ATTEMPTS.objects(node=node.pk, fault_type=fault_type, since=since)
    in_service = _get_serials({row.resource for row in attempts if row.serial})

    def is_replaced(row: CureAttempt) -> bool:
        return bool(row.serial) and in_service.get(row.resource, row.serial) != row.serial

    return [_build_tried(row, books, now) for row in attempts if not is_replaced(row)]


def _build_tried(row: CureAttempt, books: Mapping[str, Runbook], now: datetime) -> Tried:
    window = _get_counting_window(row, books, now)
    return Tried(Recovery(row.rung), row.resource, row.tried_at, row.has_cured, window)


def get_spent_runbooks(incident: Incident) -> frozenset[str]:
    """Runbooks that have ended without a cure in this incident: none of them comes twice by
    itself."""
    without_cure = Run.objects.filter(incident=incident.pk, state=RunState.NOT_CURED)
    return frozenset(without_cure.values_list("runbook", flat=True))


def get_window(runbook: str, books: Mapping[str, Runbook]) -> timedelta:
    """How long after a run of it a fault that comes back was not cured by it."""
    book = books.get(runbook)
    if book is None or not book.limits.window:
        return escalation.WINDOW
    return book.limits.window


def _get_counting_window(
    row: CureAttempt, books: Mapping[str, Runbook], now: datetime
) -> timedelta:
    """Its window begins when its run has ended: a burn-in may take longer than the window."""
    return (row.run.finished_at or now) - row.tried_at + get_window(row.run.runbook, books)


def _get_serials(slots: set[str] | list[str]) -> dict[str, str]:
    if not slots:
        return {}
    rows = InService.objects.filter(slot__in=slots, to_at=None)
    return dict(rows.values_list("slot", "serial"))


def _format_hours(span: timedelta) -> str:
    return f"{span.total_seconds() / 3600:g} h"
