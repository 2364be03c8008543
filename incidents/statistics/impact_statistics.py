"""What incidents cost over a time, and how soon the owners of lost jobs were told. Reads only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from detectors.faults import Component
from incidents.evaluation.impact_rules import shares
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


def figures(since: datetime, until: datetime) -> ImpactFigures:
    """Of incidents with an onset from `since` to `until`, both timezone-aware. One query."""
    rows = _rows(since, until)
    known = [
        (row.incident_id, row.job_id, row.gpu_hours_lost)
        for row in rows
        if row.gpu_hours_lost is not None
    ]
    shared = shares((incident, job, hours) for incident, job, hours in known)
    components = {row.incident_id: row.incident.component for row in rows}
    by_component: dict[str, float] = {}
    for incident, hours in shared.items():
        by_component[components[incident]] = by_component.get(components[incident], 0.0) + hours
    jobs = {row.job_id for row in rows}
    exact = {row.job_id for row in rows if row.gpu_hours_lost is not None and not row.is_estimate}
    found = {job for _, job, _ in known}
    return ImpactFigures(
        jobs_lost=len(jobs),
        people=len({row.job.user for row in rows}),
        gpu_hours_lost=sum(shared.values()) if known else None,
        least=len(found - exact),
        unknown=len(jobs - found),
        by_component={
            str(word): by_component[str(word)] for word in Component if str(word) in by_component
        },
        told=_told(rows),
    )


def _rows(since: datetime, until: datetime) -> list[IncidentJob]:
    those = IncidentJob.objects.filter(
        is_harmed=True, incident__onset_at__gte=since, incident__onset_at__lt=until
    )
    return list(
        those.exclude(incident__state__in=NOT_FAILURES)
        .select_related("job", "incident")
        .order_by("pk")
    )


def _told(rows: list[IncidentJob]) -> Told:
    """Each owner once an incident: from the first fault that harmed a job of theirs to the first
    word to them."""
    faults: dict[tuple[int, str], datetime] = {}
    words: dict[tuple[int, str], datetime] = {}
    for row in rows:
        pair = (row.incident_id, row.job.user)
        fault_at = row.fault_at or row.incident.onset_at
        faults[pair] = min(fault_at, faults.get(pair, fault_at))
        if row.owner_told_at is not None:
            words[pair] = min(row.owner_told_at, words.get(pair, row.owner_told_at))
    # A device's clock may run ahead: what is told before it began is told at once.
    minutes = np.array([max(0.0, (at - faults[pair]) / _MINUTE) for pair, at in words.items()])
    if not minutes.size:
        return Told(untold=len(faults))
    median, p90 = np.percentile(minutes, [50, 90])
    return Told(float(median), float(p90), len(words), len(faults) - len(words))


def sentences(found: ImpactFigures) -> list[tuple[str, str]]:
    """(name, sentence) for people."""
    if not found.jobs_lost:
        return [("jobs lost", "None that is known.")]
    lost = f"{found.jobs_lost:,} of {found.people:,} people"
    hours = "not known" if found.gpu_hours_lost is None else f"at least {found.gpu_hours_lost:,.1f}"
    if found.gpu_hours_lost is not None and not (found.least or found.unknown):
        hours = f"{found.gpu_hours_lost:,.1f}"
    open_points = (
        f" ({found.least:,} jobs without a known checkpoint, {found.unknown:,} without a known"
        " loss)"
    )
    parts = ", ".join(
        f"{name.replace('_', ' ')} {value:,.1f}" for name, value in found.by_component.items()
    )
    told = found.told
    when = "Nobody yet"
    if told.median is not None and told.p90 is not None:
        half = f"{told.median:,.1f} min after the fault in the median"
        when = f"{half}, 90 % within {told.p90:,.1f} min (n = {told.count:,})"
    untold = f"; {told.untold} not told" if told.untold else ""
    return [
        ("jobs lost", f"{lost}."),
        ("GPU-hours lost", f"{hours}{open_points if found.least or found.unknown else ''}."),
        *([("by class", f"{parts}.")] if parts else []),
        ("owners told", f"{when}{untold}."),
    ]


def as_json(found: ImpactFigures) -> dict[str, Any]:
    """The key `impact` of `manage.py reliability --json` (docs/reference/contracts.md)."""
    told = {
        "median_minutes": found.told.median,
        "p90_minutes": found.told.p90,
        "count": found.told.count,
        "untold": found.told.untold,
    }
    return {**asdict(found), "told": told, "definitions": DEFINITIONS}
