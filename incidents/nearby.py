"""What lies around the faults of a batch: the machines where rules may find others, the jobs there, planned work.

Reads only; decides nothing. A fault type that no rule of a relation names costs no query for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db.models import Q

from detectors.catalog import Catalog
from detectors.faults import Action, Component, Severity
from incidents import correlation_file, graphs, jobs, relations
from incidents.correlation import RuleSet
from incidents.models import Silence
from incidents.relations import Relation, Surroundings
from incidents.views import FaultView


def rules() -> RuleSet:
    """The shipped rules with those of this site."""
    folder: Path | None = settings.KINTSUGI["KINTSUGI_CORRELATION"]
    return correlation_file.load(*([folder] if folder is not None else []))


@dataclass
class Nearby:
    """Machines of the other faults that this batch's faults may meet, and what relations look at besides."""

    owners: set[str] = field(default_factory=set)
    around: Surroundings = field(default_factory=Surroundings)


def of(faults: Iterable[tuple[str, str]], catalog: Catalog, *, now: datetime, window: timedelta) -> Nearby:
    """`faults` are (fault type, resource). At most one look at the graph, three at jobs, one at planned work."""
    known = rules()
    views = [_view(fault_type, resource, catalog, now) for fault_type, resource in faults]
    asked = {
        (relation, side, view) for view in views for rule, side in known.sides(view) for relation in rule.relations
    }
    with_jobs = {view.owner for relation, _, view in asked if relation is Relation.SAME_JOB}
    on, of_jobs = jobs.running_on(with_jobs, at=now, around=window) if with_jobs else ({}, {})
    windows = _windows(now) if any(relation is Relation.SAME_MAINTENANCE for relation, _, _ in asked) else {}
    around = Surroundings(graphs.current(), {**on, **_turned(of_jobs)}, of_jobs, windows)
    near = {view.owner for view in views}
    for relation, side, view in asked:
        near |= relations.owners(relation, side, view, around)
    return Nearby(near, around)


def _turned(of_jobs: dict[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Machine to jobs, also for the machines of these jobs that the batch does not speak of."""
    found: dict[str, set[str]] = {}
    for job, machines in of_jobs.items():
        for machine in machines:
            found.setdefault(machine, set()).add(job)
    return {machine: frozenset(ran) for machine, ran in found.items()}


def _windows(now: datetime) -> dict[str, frozenset[str]]:
    """Machine to the planned work in force there."""
    rows = Silence.objects.filter(kind=Silence.Kind.MAINTENANCE, ended_at=None, starts_at__lte=now)
    found: dict[str, set[str]] = {}
    for pk, machines in rows.filter(Q(ends_at=None) | Q(ends_at__gt=now)).values_list("pk", "machines"):
        for machine in machines:
            found.setdefault(machine, set()).add(f"window/{pk}")
    return {machine: frozenset(windows) for machine, windows in found.items()}


def _view(fault_type: str, resource: str, catalog: Catalog, now: datetime) -> FaultView:
    """The fault as its type alone describes it; where it may be found depends on no more."""
    row = catalog.get(fault_type)
    return FaultView(
        fault_type=fault_type,
        resource=resource,
        component=row.component if row else Component.UNKNOWN,
        severity=row.severity if row else Severity.INDETERMINATE,
        action=row.action if row else Action.NONE,
        occurred_at=now,
        observed_at=now,
        opens_incident=row is None or row.opens_incident,
        is_sympathetic=row is not None and row.is_sympathetic,
    )
