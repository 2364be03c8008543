"""Since when the database knows of everything that has ended: older history is in files
(KINTSUGI_KEEP). The only writer of `KeptPeriod`."""

from __future__ import annotations

from datetime import datetime

from incidents.models import KeptPeriod

_KEY = 1


def begin_at(begins_at: datetime, *, now: datetime) -> None:
    """What ended before this moment is no longer complete. It never goes back."""
    later = KeptPeriod.objects.filter(pk=_KEY, begins_at__lt=begins_at)
    if later.update(begins_at=begins_at, changed_at=now):
        return
    row = KeptPeriod(pk=_KEY, begins_at=begins_at, changed_at=now)
    KeptPeriod.objects.bulk_create([row], ignore_conflicts=True)


def get_begin() -> datetime | None:
    """None: nothing has been removed."""
    return KeptPeriod.objects.filter(pk=_KEY).values_list("begins_at", flat=True).first()
