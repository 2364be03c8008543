"""What the incident's page says of its impact: jobs, the largest first, what is left of the site.
Reads only."""

from __future__ import annotations

from dataclasses import dataclass, replace

from incidents.impact import capacity, impact
from incidents.impact.capacity import Capacity
from incidents.jobs import job_source
from incidents.models import Incident, IncidentJob

JOBS_SHOWN = 20


@dataclass(frozen=True)
class ImpactPage:
    """`words` is empty while jobs are not known; `notice` says why, or what is missing."""

    words: str
    notice: str
    jobs: list[IncidentJob]
    job_count: int
    untold: int
    partitions: list[Capacity]
    rails: list[Capacity]


def get_impact_page(incident: Incident) -> ImpactPage:
    """One query while nobody has counted; what is left is shown while the incident is open."""
    if incident.impact_at is None:
        return ImpactPage("", job_source.get_notice(), [], 0, 0, [], [])
    rows = list(incident.jobs.select_related("job"))
    tally = impact.get_tally(incident, rows)
    words = tally.format_words() if tally is not None else ""
    untold = sum(row.is_harmed and row.owner_told_at is None for row in rows)
    largest = sorted(rows, key=_get_sort_key)[:JOBS_SHOWN]
    page = ImpactPage(
        words=words,
        notice=job_source.get_notice(),
        jobs=largest,
        job_count=len(rows),
        untold=untold,
        partitions=[],
        rails=[],
    )
    if not incident.is_open:
        return page
    return replace(page, partitions=capacity.list_of_partitions(), rails=capacity.list_of_rails())


def _get_sort_key(row: IncidentJob) -> tuple[bool, float, int, int]:
    return not row.is_harmed, -(row.gpu_hours_lost or 0.0), -row.job.node_count, row.pk
