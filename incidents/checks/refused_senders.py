"""Whose syslog the receiver refuses: rows for the banner that says what to write where. Written by
receivers alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from detectors.receivers.refusals import RefusedInput
from incidents.models import RefusedSender

# A sender that was accepted since, or gave up, is not worth a line above every page for longer (our
# choice).
_SHOWN_FOR = timedelta(hours=1)
# Rows; the oldest go first. Forged addresses must not fill a table.
_MOST = 500


def record(refusals: Sequence[RefusedInput]) -> None:
    """Adds to what is known of each address."""
    with transaction.atomic():
        for each in refusals:
            row, is_new = RefusedSender.objects.get_or_create(
                address=each.address,
                transport=each.transport,
                defaults={"first_at": each.last_at, "last_at": each.last_at, "count": each.count},
            )
            if not is_new:
                RefusedSender.objects.filter(pk=row.pk).update(
                    count=F("count") + each.count, last_at=each.last_at
                )
        kept = RefusedSender.objects.order_by("-last_at", "-pk").values("pk")[:_MOST]
        RefusedSender.objects.exclude(pk__in=list(kept.values_list("pk", flat=True))).delete()


def recent(now: datetime) -> list[RefusedSender]:
    """Those of the last hour, the busiest first."""
    return list(
        RefusedSender.objects.filter(last_at__gt=now - _SHOWN_FOR).order_by("-count", "address")
    )
