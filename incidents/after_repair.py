"""Faults that came before a repair was over and are seen again after it: they are judged then, and bring it back.

Called by the sweep. Ingest only counts what repeats, so that a storm needs no lock. Never touches an incident that is
still under repair.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import F

from detectors import catalog as fault_catalog
from incidents import upsert
from incidents.board import Board
from incidents.cases import FaultCase, IncidentCase
from incidents.changes import Change
from incidents.clocks import TOLERANCE
from incidents.lifecycle import State
from incidents.models import Incident
from incidents.settling import settle

_MOST_AT_ONCE = 500


def returned(now: datetime) -> list[Change]:
    """Opens again what its repair did not mend. One query while every repair holds."""
    seen_again = Incident.objects.filter(
        state=State.MONITORING.value,
        members__fault__is_active=True,
        members__fault__last_seen_at__gt=F("repaired_at") + TOLERANCE,
    )
    ids = list(seen_again.distinct().order_by("pk").values_list("pk", flat=True)[:_MOST_AT_ONCE])
    if not ids:
        return []
    with transaction.atomic():
        upsert.lock_placement()
        board = Board(fault_catalog.load(), now)
        cases = board.read_incidents(ids)
        for case in cases:
            for fault in case.members:
                fault.has_come = _is_seen_again(fault, case)
        return settle(cases, board=board, now=now)


def _is_seen_again(fault: FaultCase, incident: IncidentCase) -> bool:
    """After the repair by more than a device's clock may be ahead. Whether it was what the repair was for, or as bad,
    is for `incidents.settling` to say."""
    repaired_at = incident.row.repaired_at
    return repaired_at is not None and fault.row.is_active and fault.row.last_seen_at > repaired_at + TOLERANCE
