"""The tag of the impact block: what an incident cost, for its page. Reads only."""

from __future__ import annotations

from django import template

from incidents.impact import page
from incidents.models import Incident, IncidentJob

register = template.Library()


@register.simple_tag
def impact_of(incident: Incident) -> page.ImpactPage:
    return page.get_impact_page(incident)


@register.filter
def became(row: IncidentJob) -> str:
    """What became of the job, in one word or two."""
    if row.outcome:
        return row.outcome if row.is_harmed else f"{row.outcome}, not by this"
    return "hangs" if row.is_harmed else "runs"


@register.filter
def lost(row: IncidentJob) -> str:
    if row.gpu_hours_lost is None:
        return "not known" if row.is_harmed else "-"
    return f"{'at least ' if row.is_estimate else ''}{row.gpu_hours_lost:,.1f}"
