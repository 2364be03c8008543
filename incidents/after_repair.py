"""Faults that came before a repair was over and are seen again after it: they are judged then, and bring it back.

Called by the sweep. Ingest only counts what repeats, so that a storm needs no lock. Never touches an incident that is
still under repair.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import F

from detectors import catalog as fault_catalog
from incidents import correlate, upsert
from incidents.board import Board
from incidents.cases import FaultCase, IncidentCase
from incidents.changes import Change
from incidents.clocks import TOLERANCE
from incidents.lifecycle import State
from incidents.models import Incident
from incidents.prepared import Prepared
from incidents.settling import settle

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


def returned(now: datetime) -> list[Change]:
    """Opens again what its repair did not mend. Two queries, and no lock, while every repair holds."""
    ids = [pk for (pk,) in _SEEN_AGAIN.rows()]
    due = [case.row.pk for case in Board(fault_catalog.load(), now).read_incidents(ids) if _back(case)]
    if not due:
        return []
    with transaction.atomic():
        upsert.lock_placement()
        board = Board(fault_catalog.load(), now)
        cases = board.read_incidents(due)
        for case in cases:
            for fault in _back(case):
                fault.has_come = True
        return settle(cases, board=board, now=now)


def _back(incident: IncidentCase) -> list[FaultCase]:
    """What stands, was seen after the repair by more than a device's clock may be ahead, and is what the repair was
    for, or as bad."""
    repaired_at = incident.row.repaired_at
    if repaired_at is None:
        return []
    seen = [f for f in incident.members if f.row.is_active and f.row.last_seen_at > repaired_at + TOLERANCE]
    return [fault for fault in seen if correlate.is_back(fault.view(), incident.view())]
