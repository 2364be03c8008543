"""The cables of the inventory as a topology, kept in memory until they change. Reads only."""

from __future__ import annotations

from django.db.models import Count, Max

from incidents.models import Cable
from incidents.topology import CablePlace, Topology

_kept: dict[tuple[int, int], Topology] = {}


def current() -> Topology:
    """Asked once per batch that has faults of the network: one small query while nothing has changed.

    A moved or changed cable is a new row: the number of rows and the newest one tell what another process changed.
    """
    found = Cable.objects.aggregate(count=Count("pk"), newest=Max("pk"))
    key = (found["count"], found["newest"] or 0)
    known = _kept.get(key)
    if known is None:
        rows = Cable.objects.values_list("a", "b", "speed_gbps")
        known = Topology(cables=tuple(CablePlace(*row) for row in rows))
        _kept.clear()
        _kept[key] = known
    return known


def forget() -> None:
    """The cables of this process's database have changed."""
    _kept.clear()
