"""The latest fault of a fingerprint that stands no more, with the incident that it belonged to.
Reads only."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Max

from incidents.models import Fault


def load_faults(fingerprints: Collection[str]) -> list[Fault]:
    """By fingerprint at most one. Its membership, the incident and the one that this repeats are
    read along."""
    if not fingerprints:
        return []
    same = Fault.objects.filter(fingerprint__in=fingerprints).order_by()
    newest = same.values("fingerprint").annotate(newest=Max("pk")).values("newest")
    rows = Fault.objects.filter(pk__in=newest)
    return list(rows.select_related("membership__incident__duplicate_of"))
