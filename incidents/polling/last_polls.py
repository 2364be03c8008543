"""When polls last saw the faults that stand. A line and a report tell of a moment; a poll says that
it is so still."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db.models import Max

from incidents.models import Evidence

_POLL = "poll"


def get_last_polls(faults: Collection[int]) -> dict[int, datetime]:
    """By the fault's number; one that no poll has seen is left out. The newest excerpts are kept,
    so none is missed but behind a storm of lines for the same fault."""
    if not faults:
        return {}
    rows = Evidence.objects.filter(fault__in=faults, source=_POLL).order_by().values_list("fault")
    return dict(rows.annotate(at=Max("occurred_at")))
