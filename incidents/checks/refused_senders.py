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
        for refusal in refusals:
            _record_refusal(refusal)
        latest = RefusedSender.objects.order_by("-last_at", "-pk").values_list("pk", flat=True)
        RefusedSender.objects.exclude(pk__in=list(latest[:_MOST])).delete()


def _record_refusal(refusal: RefusedInput) -> None:
    at = refusal.last_at
    row, is_new = RefusedSender.objects.get_or_create(
        address=refusal.address,
        transport=refusal.transport,
        defaults={"first_at": at, "last_at": at, "count": refusal.count},
    )
    if not is_new:
        count = F("count") + refusal.count
        RefusedSender.objects.filter(pk=row.pk).update(count=count, last_at=at)


def get_recent(now: datetime) -> list[RefusedSender]:
    """Those of the last hour, the busiest first."""
    recent = RefusedSender.objects.filter(last_at__gt=now - _SHOWN_FOR)
    return list(recent.order_by("-count", "address"))
