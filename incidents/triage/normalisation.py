"""Events made ready to be counted: checked, their names resolved, their identities worked out.
Writes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from detectors import resources
from detectors.catalog.catalog import Catalog, FaultType
from detectors.faults import ClearRule, Component, EventType, FaultEvent, fingerprint
from incidents.faults import clocks
from incidents.faults.clocks import Dated
from incidents.faults.fault_views import LINK, is_one_of
from incidents.faults.flapping import USUAL, FlapLimits
from incidents.inventory.aliases import Names
from incidents.topology.graph import Graph

# Columns of the fault table; PostgreSQL would refuse longer values, SQLite would not.
_LONGEST_PATH = 160
_LONGEST_TYPE = 96
_LARGEST_COUNT = 2**48


class EventRefused(ValueError):
    """An event that cannot be counted; the message says what is wrong with it."""


@dataclass(frozen=True)
class Item:
    """An event with its resolved resource, its type, its identity, and the keys by which it counts
    once.

    The event's `occurred_at` is the time by which it is put in order: see `dated`.
    """

    event: FaultEvent
    kind: FaultType
    resource: str
    fingerprint: str
    keys: tuple[str, ...]

    quiet: timedelta | None
    """The period of a type that clears after it."""

    dated: Dated
    """Whose time counts for it."""

    waits_until: datetime | None = None
    """Until when a boot or planned work explains it (incidents.triage.grace_periods)."""

    booted_at: datetime | None = None
    """The last confirmed boot of its node."""

    repaired_at: datetime | None = None
    repair: str = ""
    """The last confirmed repair of its resource, and which it was (`last_repair`)."""

    @property
    def limits(self) -> FlapLimits:
        """When a fault of this type flaps."""
        return get_limits(self.kind)

    @property
    def owner(self) -> str:
        return resources.owner(self.resource)

    @property
    def held_until(self) -> datetime | None:
        """No incident before: the type's hold-down, and what a boot or planned work makes it wait
        for."""
        hold = self.kind.hold_down
        held = self.event.observed_at + hold if hold > timedelta(0) else None
        return max((at for at in (held, self.waits_until) if at is not None), default=None)


def get_limits(kind: FaultType | None) -> FlapLimits:
    """When a fault of the type flaps; what its row leaves open is as usual."""
    if kind is None:
        return USUAL
    start_percent = USUAL.start_percent if kind.flap_start is None else kind.flap_start
    stop_percent = USUAL.stop_percent if kind.flap_stop is None else kind.flap_stop
    return FlapLimits(start_percent, stop_percent, look=kind.flap_look or USUAL.look)


def redate(item: Item, dated: Dated) -> Item:
    """The item by the time that is now known to count."""
    return replace(item, dated=dated, event=replace(item.event, occurred_at=dated.order_at))


def normalise(events: Sequence[FaultEvent], catalog: Catalog, names: Names) -> list[Item]:
    """Raises EventRefused for an event that must not reach a table."""
    return [_make_item(event, catalog, names) for event in events]


def _make_item(event: FaultEvent, catalog: Catalog, names: Names) -> Item:
    """Raises EventRefused for what must not reach a table."""
    for name, value, longest in (
        ("fault_type", event.fault_type, _LONGEST_TYPE),
        ("qualifier", event.qualifier, _LONGEST_TYPE),
        ("resource", event.resource, _LONGEST_PATH),
    ):
        if len(value) > longest or "\x00" in value:
            raise EventRefused(f"{name} is longer than {longest} characters or holds a NUL")
    if not event.event_id or not event.fault_type:
        raise EventRefused("an event needs an event_id and a fault_type")
    if event.occurred_at.utcoffset() is None or event.observed_at.utcoffset() is None:
        raise EventRefused("times need a UTC offset")
    if not 1 <= event.count <= _LARGEST_COUNT:
        raise EventRefused(f"count is {event.count}; expected 1 to {_LARGEST_COUNT}")
    resource = names.resolve(event.resource)
    kind = catalog.get(event.fault_type) or _make_unlisted_type(event)
    keys = [compute_key(event.event_id)]
    if event.source_key:
        keys.append(f"k:{hashlib.sha256(event.source_key.encode()).hexdigest()[:32]}")
    if not event.excerpt.isprintable():
        event = replace(event, excerpt=clean(event.excerpt))
    quiet = kind.quiet if kind.clears is ClearRule.AFTER_QUIET else None
    dated = clocks.get_date(event)
    if dated.order_at != event.occurred_at:
        event = replace(event, occurred_at=dated.order_at)
    identity = fingerprint(resource, event.fault_type, event.qualifier)
    return Item(event, kind, resource, identity, tuple(keys), quiet, dated)


def compute_key(event_id: str) -> str:
    """Ids of our own making stand as they are; a caller's own may be longer than the column."""
    if len(event_id) <= 36 and ":" not in event_id and "\x00" not in event_id:
        return event_id
    return f"e:{hashlib.sha256(event_id.encode()).hexdigest()[:32]}"


def _make_unlisted_type(event: FaultEvent) -> FaultType:
    """A type that this catalogue does not have, as a newer detector may send: kept, for a person to
    close."""
    return FaultType(
        id=event.fault_type,
        title=event.fault_type,
        component=event.component,
        event_type=EventType.EQUIPMENT,
        severity=event.severity,
        action=event.action,
        clears=ClearRule.BY_OPERATOR,
        meaning="not in the catalogue",
        source="the event itself",
        code=event.code,
    )


def choose_component(
    fault_type: str, resource: str, said: Component, names: Names, graph: Graph
) -> Component:
    """The class of a fault that was told as `said`, by the platform or by a person.

    A switch's faults take their class from its role; those of a port from the far end of its cable:
    a host's link is of the class "NIC and transceiver", whichever end tells of it.
    """
    switch = names.find_switch(resources.owner(resource))
    if switch is not None and is_one_of(fault_type, LINK) and "/port/" in resource:
        far = graph.find_peer(resource) or ""
        if far.startswith("node/"):
            return Component.NIC
    if not fault_type.startswith("switch.") or switch is None:
        return said
    roles = {"storage": Component.STORAGE_SWITCH, "management": Component.FACILITY}
    return roles.get(switch.role, Component.INTERCONNECT_SWITCH)


def clean(text: str) -> str:
    """Nothing that PostgreSQL does not store (NUL, lone surrogates), nor a terminal would obey."""
    return "\n".join(resources.printable(line) for line in text.split("\n"))


def make_storable(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(name)): make_storable(inner) for name, inner in value.items()}
    return value
