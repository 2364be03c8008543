"""What machines of one role mostly show: driver and firmware versions by key, for comparing one
with its peers.

Detectors mark such observations with the attribute `key`. The only writer of `Shown`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache

from django.db.models import Count

from detectors import resources
from detectors.faults import Observation
from incidents.db.prepared import Prepared
from incidents.models import Node, Shown, Switch

# Of two that differ nobody can say which is the odd one.
_FEWEST = 3
# Facts that detectors tell without a key.
_KEYS = {"gpu.driver_version": "driver_version"}


def store_values(observations: Iterable[Observation]) -> int:
    """Keeps each machine's values; returns how many changed. One query while none has."""
    seen: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for observation in observations:
        key = observation.attributes.get("key") or _KEYS.get(observation.metric)
        if key and isinstance(observation.value, str) and observation.value:
            owner = resources.owner(observation.resource)
            value = observation.value[:160]
            seen[(owner, key[:96])][value] += 1
    if not seen:
        return 0
    frequent = {shown: _get_most_frequent(count) for shown, count in seen.items()}
    owners = {owner for owner, _ in frequent}
    rows = Shown.objects.filter(owner__in=owners)
    known = {(row.owner, row.key): row.value for row in rows}
    changed = [shown for shown, value in frequent.items() if known.get(shown) != value]
    if changed:
        roles = _get_roles({owner for owner, _ in changed})
        fresh = []
        for owner, key in changed:
            role = roles.get(owner, "")
            fresh.append(Shown(owner=owner, key=key, value=frequent[owner, key], role=role))
        Shown.objects.bulk_create(
            fresh,
            update_conflicts=True,
            unique_fields=["owner", "key"],
            update_fields=["value", "role"],
        )
    return len(changed)


def _get_most_frequent(count: Counter[str]) -> str:
    """Of several the first in the alphabet."""
    return max(sorted(count), key=lambda value: count[value])


def _get_roles(owners: set[str]) -> dict[str, str]:
    names = {owner.partition("/")[2] for owner in owners}
    nodes = Node.objects.filter(name__in=names).values_list("name", "role")
    switches = Switch.objects.filter(name__in=names).values_list("name", "role")
    roles = {resources.node(name): role for name, role in nodes}
    roles.update({resources.switch(name): role for name, role in switches})
    return roles


@lru_cache(maxsize=4)
def _prepare_shown(kind: str) -> Prepared:
    """Role, key, value, and how many machines show it."""
    rows = Shown.objects.filter(owner__startswith=f"{kind}/").exclude(role="").order_by()
    return Prepared(lambda: rows.values_list("role", "key", "value").annotate(machines=Count("pk")))


def get_usual(kind: str) -> dict[str, dict[str, str]]:
    """By role: key to the value that more than half of at least three machines show. One query."""
    count: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for role, key, value, machines in _prepare_shown(kind).rows():
        count[(role, key)][value] = machines
    usual_values: dict[str, dict[str, str]] = defaultdict(dict)
    for (role, key), machines_by_value in count.items():
        value, most = max(machines_by_value.items(), key=lambda item: item[1])
        total = sum(machines_by_value.values())
        if total >= _FEWEST and most * 2 > total:
            usual_values[role][key] = value
    return dict(usual_values)
