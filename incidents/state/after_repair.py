"""Faults that came before a repair was over and are seen again after it: they are judged then, and
bring it back.

Called by the sweep. Ingest only counts what repeats, so that a storm needs no lock. Never touches
an incident that is still under repair.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import F

from detectors.catalog import catalog as fault_catalog
from incidents.correlation import engine
from incidents.db import upsert
from incidents.db.prepared import Prepared
from incidents.faults.clocks import TOLERANCE
from incidents.models import Incident
from incidents.state.batch import TriageBatch
from incidents.state.cases import FaultCase, IncidentCase
from incidents.state.neighbourhood import load_incidents
from incidents.state.settle import settle
from incidents.vocabulary.changes import Change
from incidents.vocabulary.lifecycle import State

_MOST_AT_ONCE = 500
_SEEN_AGAIN = Prepared(
    lambda: (
        Incident.objects.filter(
            state=State.MONITORING.value,
            members__fault__is_active=True,
            members__fault__last_seen_at__gt=F("repaired_at") + TOLERANCE,
        )
        .distinct()
        .order_by("pk")
        .values_list("pk")[:_MOST_AT_ONCE]
    )
)


def reopen_returned(now: datetime) -> list[Change]:
    """Opens again what its repair did not mend. One query, and no lock, while every repair
    holds."""
    ids = _SEEN_AGAIN.values()
    if not ids:
        return []
    due = [
        case.row.pk
        for case in load_incidents(TriageBatch(fault_catalog.load(), now), ids)
        if _find_back(case)
    ]
    if not due:
        return []
    with transaction.atomic():
        upsert.lock_placement()
        batch = TriageBatch(fault_catalog.load(), now)
        cases = load_incidents(batch, due)
        for case in cases:
            for fault in _find_back(case):
                fault.has_come = True
        return settle(cases, batch=batch, now=now)


def _find_back(incident: IncidentCase) -> list[FaultCase]:
    """What stands, was seen after the repair by more than a device's clock may be ahead, and is
    what the repair was for, or as bad."""
    repaired_at = incident.row.repaired_at
    if repaired_at is None:
        return []
    seen = [
        f
        for f in incident.members
        if f.row.is_active and f.row.last_seen_at > repaired_at + TOLERANCE
    ]
    return [fault for fault in seen if engine.is_back(fault.view(), incident.view())]
