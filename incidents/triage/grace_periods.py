"""What a boot or planned work makes faults wait for, before they open an incident. Reads only.

The types and their periods are the [[grace]] rows of the catalogue. A fault waits for both ends of
its cable: a node that boots takes the switch's port down with it. It is recorded at once, whatever
it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from django.db.models import Max

from detectors import resources
from detectors.faults import ClearRule, EventKind
from incidents.db.prepared import Given, Prepared
from incidents.faults import clocks
from incidents.inventory import graphs
from incidents.maintenance import active_windows
from incidents.models import Fault, Node
from incidents.triage.normalisation import Item

# While planned work goes on, and for a while after it, a fault's wait is drawn out by this much at
# a time. Our choice: no longer than the shortest grace, and no shorter, since the faults of
# hundreds of nodes may wait for hours.
_LOOK_AGAIN = timedelta(minutes=5)
_BOOTED = "switch.rebooted"
_BOOTED_NODES = Prepared(
    lambda: Node.objects.filter(name__among=Given("names"), boot_seen_at__isnull=False).values_list(
        "name", "boot_seen_at"
    )
)
_BOOTED_SWITCHES = Prepared(
    lambda: (
        Fault.objects.filter(owner__among=Given("owners"), fault_type=_BOOTED)
        .values("owner")
        .order_by()
        .annotate(at=Max("last_seen_at"))
        .values_list("owner", "at")
    )
)
# These tell their end by themselves; of the others nobody hears that they are over.
_TELLING = frozenset({ClearRule.BY_POLL, ClearRule.BY_EVENT})


@dataclass
class Machines:
    """When each of these machines booted last, and which are under maintenance or were a moment
    ago, by owner (`node/gn042`)."""

    ends: Mapping[str, frozenset[str]]
    booted_at: dict[str, datetime] = field(default_factory=dict)
    maintained: frozenset[str] = frozenset()

    def waits_until(self, resource: str, period: timedelta, now: datetime) -> datetime | None:
        """None: neither end has just booted or is worked on, or the type waits for neither."""
        if not period:
            return None
        ends = self.ends.get(resource, frozenset())
        until = [self.booted_at[end] + period for end in ends if end in self.booted_at]
        if ends & self.maintained:
            until.append(now + _LOOK_AGAIN)
        latest = max(until, default=None)
        return latest if latest is not None and latest > now else None

    def is_of_the_start(self, resource: str, period: timedelta, seen_at: datetime) -> bool:
        """Whether what was last seen then was last seen while an end started, or before."""
        booted = [
            self.booted_at[end]
            for end in self.ends.get(resource, frozenset())
            if end in self.booted_at
        ]
        return any(seen_at <= at + period for at in booted)


def load_machines(owned: Iterable[str], now: datetime) -> Machines:
    """The machines at both ends of these resources. Four small queries; none of them grows with the
    site."""
    topology = graphs.get_current().topology
    ends = {resource: frozenset(topology.ends(resource)) for resource in owned}
    owners = {owner for machines in ends.values() for owner in machines}
    names = {host for host in map(resources.host_of, owners) if host is not None}
    machines = Machines(ends)
    machines.booted_at = {resources.node(name): at for name, at in _BOOTED_NODES.rows(names=names)}
    machines.booted_at |= dict(_BOOTED_SWITCHES.rows(owners=owners))
    machines.maintained = active_windows.get_owners_under_maintenance(now)
    return machines


def apply_grace(items: Sequence[Item], now: datetime) -> list[Item]:
    """The items, those that a boot or planned work may have made with the time until which they
    wait."""
    graced = [
        item for item in items if item.kind.boot_grace and item.event.event is EventKind.RAISED
    ]
    if not graced:
        return list(items)
    machines = load_machines({item.resource for item in graced}, now)
    until = {item.event.event_id: _get_end(item, machines, now) for item in graced}
    return [replace(item, waits_until=until.get(item.event.event_id)) for item in items]


def _get_end(item: Item, machines: Machines, now: datetime) -> datetime | None:
    """A kernel's stamp tells of a boot that no poll has seen yet."""
    period = item.kind.boot_grace
    known = machines.waits_until(item.resource, period, now)
    since_boot = clocks.parse_kernel_stamp(item.event.source_key)[1]
    if since_boot is None or since_boot >= period or item.dated.may_be_late:
        return known
    by_stamp = item.event.observed_at - since_boot + period
    return by_stamp if known is None else max(known, by_stamp)


def is_over_by_itself(row: Fault, period: timedelta, machines: Machines) -> bool:
    """A fault that never tells its end and was seen only while its machine started."""
    if ClearRule(row.clears) in _TELLING:
        return False
    return machines.is_of_the_start(row.resource, period, row.last_seen_at)
