"""When a resource was last made good, as far as that is confirmed. Reads only.

A run verified its repair, a person resolved the incident, or the part in the slot is another one:
what is dated before tells of a trouble that is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from incidents.db.prepared import Given, Prepared
from incidents.faults.clocks import TOLERANCE
from incidents.models import Incident, IncidentFault, InService
from incidents.text.wording import format_moment
from incidents.triage.normalisation import Item

_REPAIRED = Prepared(
    lambda: (
        Incident.objects.filter(repaired_at__gt=Given("oldest"))
        .order_by()
        .values_list("pk", "repaired_at")
    )
)
_REPAIRED_THERE = Prepared(
    lambda: (
        IncidentFault.objects.filter(
            incident_id__among=Given("incidents"), fault__owner__among=Given("owners")
        )
        .order_by("joined_at", "id")
        .values_list("incident_id", "fault__resource")
    )
)


@dataclass(frozen=True)
class LastRepair:
    """`how` completes "it happened before"."""

    at: datetime
    how: str


def find_last_repairs(items: Sequence[Item], now: datetime) -> dict[str, LastRepair]:
    """By resource, the newest that is later than any of these items. One query while nothing was
    repaired lately."""
    oldest = min((item.event.occurred_at for item in items), default=now)
    found = list(_load_repairs(items, oldest))
    if oldest < now - TOLERANCE:
        found += _load_replacements(items, oldest)
    newest: dict[str, LastRepair] = {}
    for resource, repair in found:
        known = newest.get(resource)
        newest[resource] = repair if known is None or repair.at > known.at else known
    return newest


def may_be_older(oldest: datetime) -> bool:
    """Whether anything was repaired after this time."""
    return Incident.objects.filter(repaired_at__gt=oldest).exists()


def _load_repairs(items: Sequence[Item], oldest: datetime) -> Iterable[tuple[str, LastRepair]]:
    """An incident's repair covers the resources of its faults, and no other part of the machine."""
    repaired = dict(_REPAIRED.rows(oldest=oldest))
    if not repaired:
        return
    resources = {item.resource for item in items}
    owners = {item.owner for item in items}
    for pk, resource in _REPAIRED_THERE.rows(incidents=list(repaired), owners=owners):
        at = repaired[pk]
        if resource in resources and at is not None:
            yield (
                resource,
                LastRepair(at, f"the repair that incident #{pk} ended with at {format_moment(at)}"),
            )


def _load_replacements(items: Sequence[Item], oldest: datetime) -> list[tuple[str, LastRepair]]:
    """A part that has left its slot took its old faults along; a node's own stay ends all that it
    had."""
    slots = {slot for item in items for slot in (item.resource, item.owner)}
    gone = InService.objects.filter(slot__in=slots, to_at__gt=oldest).values_list(
        "slot", "to_at", "part"
    )
    left = {
        slot: LastRepair(at, f"the {part} there was replaced at {format_moment(at)}")
        for slot, at, part in gone
        if at
    }
    return [
        (item.resource, left[slot])
        for item in items
        for slot in (item.owner, item.resource)
        if slot in left
    ]
