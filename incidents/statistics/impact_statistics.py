"""What incidents cost over a time, and how soon the owners of lost jobs were told. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from detectors.faults import Component
from incidents.evaluation.impact_rules import compute_shares
from incidents.models import IncidentJob
from incidents.statistics.statistics import NOT_FAILURES

_MINUTE = timedelta(minutes=1)

DEFINITIONS: dict[str, str] = {
    "jobs_lost": (
        "jobs that a fault of an incident ended or hangs, each once, of incidents whose onset lies"
        " in the window; false positives and duplicates left out"
    ),
    "gpu_hours_lost": (
        "from the fault to each job's end, and the work since its last checkpoint where that is"
        " known; a job that several incidents touched is counted once, its loss shared between them"
        " in equal parts. A least: `unknown` jobs have no known loss, `least` ones no known"
        " checkpoint"
    ),
    "told": (
        "from the fault until the first message that names the owner was sent, or a person marked"
        " the owner as told; over the owners told, with those not told beside them"
    ),
}


@dataclass(frozen=True)
class Told:
    """Minutes from fault to owner told over `count` (incident, owner) pairs; None without any."""

    median: float | None = None
    p90: float | None = None
    count: int = 0
    untold: int = 0


@dataclass(frozen=True)
class ImpactFigures:
    """`gpu_hours_lost` is None when no loss is known. `by_component` shares sum up to it."""

    jobs_lost: int = 0
    people: int = 0
    gpu_hours_lost: float | None = None
    least: int = 0
    unknown: int = 0
    by_component: dict[str, float] = field(default_factory=dict)
    told: Told = field(default_factory=Told)


def compute_figures(since: datetime, until: datetime) -> ImpactFigures:
    """Of incidents with an onset from `since` to `until`, both timezone-aware. One query."""
    rows = _load_rows(since, until)
    losses: list[tuple[int, int, float]] = []
    exact: set[int] = set()
    for row in rows:
        if row.gpu_hours_lost is None:
            continue
        losses.append((row.incident_id, row.job_id, row.gpu_hours_lost))
        if not row.is_estimate:
            exact.add(row.job_id)
    hours_by_incident = compute_shares(losses)
    total = sum(hours_by_incident.values()) if losses else None
    jobs = {row.job_id for row in rows}
    people = {row.job.user for row in rows}
    known = {job for _, job, _ in losses}
    estimated = known - exact
    unknown = jobs - known
    hours_by_component = _sum_by_component(hours_by_incident, rows)
    notification_times = _compute_notification_times(rows)
    return ImpactFigures(
        jobs_lost=len(jobs),
        people=len(people),
        gpu_hours_lost=total,
        least=len(estimated),
        unknown=len(unknown),
        by_component=hours_by_component,
        told=notification_times,
    )


def _load_rows(since: datetime, until: datetime) -> list[IncidentJob]:
    harmed = IncidentJob.objects.filter(
        is_harmed=True, incident__onset_at__gte=since, incident__onset_at__lt=until
    )
    failures = harmed.exclude(incident__state__in=NOT_FAILURES)
    return list(failures.select_related("job", "incident").order_by("pk"))


def _sum_by_component(
    hours_by_incident: Mapping[int, float], rows: list[IncidentJob]
) -> dict[str, float]:
    """Hours by component, in the order of `Component`."""
    components = {row.incident_id: row.incident.component for row in rows}
    sums: dict[str, float] = {}
    for incident, hours in hours_by_incident.items():
        component = components[incident]
        sums[component] = sums.get(component, 0.0) + hours
    return {str(component): sums[component] for component in Component if component in sums}


def _compute_notification_times(rows: list[IncidentJob]) -> Told:
    """Each owner once an incident: from the first fault that harmed a job of theirs to the first
    word to them."""
    faults: dict[tuple[int, str], datetime] = {}
    notifications: dict[tuple[int, str], datetime] = {}
    for row in rows:
        pair = (row.incident_id, row.job.user)
        fault_at = row.fault_at or row.incident.onset_at
        faults[pair] = min(fault_at, faults.get(pair, fault_at))
        if row.owner_told_at is not None:
            earliest = notifications.get(pair, row.owner_told_at)
            notifications[pair] = min(row.owner_told_at, earliest)
    # A device's clock may run ahead: what is told before it began is told at once.
    delays = []
    for pair, notified_at in notifications.items():
        minutes = (notified_at - faults[pair]) / _MINUTE
        delays.append(max(0.0, minutes))
    if not delays:
        return Told(untold=len(faults))
    median, p90 = np.percentile(np.array(delays), [50, 90])
    count = len(notifications)
    return Told(float(median), float(p90), count, untold=len(faults) - count)


def format_sentences(found: ImpactFigures) -> list[tuple[str, str]]:
    """(name, sentence) for people."""
    if not found.jobs_lost:
        return [("jobs lost", "None that is known.")]
    rows = [("jobs lost", f"{found.jobs_lost:,} of {found.people:,} people.")]
    rows.append(("GPU-hours lost", f"{_format_gpu_hours(found)}."))
    if found.by_component:
        parts = []
        for name, hours in found.by_component.items():
            component = name.replace("_", " ")
            parts.append(f"{component} {hours:,.1f}")
        rows.append(("by class", ", ".join(parts) + "."))
    rows.append(("owners told", f"{_format_notification_times(found.told)}."))
    return rows


def _format_gpu_hours(found: ImpactFigures) -> str:
    is_exact = not (found.least or found.unknown)
    if found.gpu_hours_lost is None:
        hours = "not known"
    elif is_exact:
        hours = f"{found.gpu_hours_lost:,.1f}"
    else:
        hours = f"at least {found.gpu_hours_lost:,.1f}"
    if is_exact:
        return hours
    return (
        f"{hours} ({found.least:,} jobs without a known checkpoint, {found.unknown:,} without a"
        " known loss)"
    )


def _format_notification_times(told: Told) -> str:
    untold = f"; {told.untold} not told" if told.untold else ""
    if told.median is None or told.p90 is None:
        return f"Nobody yet{untold}"
    return (
        f"{told.median:,.1f} min after the fault in the median,"
        f" 90 % within {told.p90:,.1f} min (n = {told.count:,}){untold}"
    )


def as_json(found: ImpactFigures) -> dict[str, Any]:
    """The key `impact` of `kintsugi reliability --json` (docs/reference/contracts.md)."""
    times = found.told
    told = {
        "median_minutes": times.median,
        "p90_minutes": times.p90,
        "count": times.count,
        "untold": times.untold,
    }
    return {**asdict(found), "told": told, "definitions": DEFINITIONS}
