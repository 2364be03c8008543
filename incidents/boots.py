"""Whether an event that a node dates before its last boot is of that boot all the same. Reads only.

A node whose clock runs behind dates what it says now before its boot; a relay that was down delivers old lines with
such dates too. By the date alone the two cannot be told apart, and a live fault that is dropped as old reads as health.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from django.db.models import F

from detectors.catalog import Catalog
from detectors.faults import EventKind, FaultEvent, event_id
from incidents.items import Item
from incidents.models import Fault
from incidents.naming import Names
from incidents.wording import duration

CLOCK_DOUBTED = "node.clock_doubted"
_SOURCE = "kintsugi"
# Delivery by syslog takes seconds; a clock that is less behind than this drops nothing but what the boot itself says.
_PROMPT = timedelta(seconds=60)


class Boot(StrEnum):
    """Which boot an event with an early date is of."""

    THIS = "this"
    EARLIER = "earlier"
    UNSURE = "unsure"


def judged(items: Iterable[Item], names: Names) -> dict[str, Boot]:
    """By event id, for those that are dated before their node's last boot: few, so that queries for each will do."""
    found: dict[str, Boot] = {}
    lags: dict[str, timedelta | None] = {}
    for item in items:
        node = names.node_of(item.owner)
        if node is None or node.boot_seen_at is None or item.event.occurred_at >= node.boot_seen_at:
            continue
        boot = of_boot(item.event, node.boot_seen_at, node.boot_id)
        if boot is Boot.UNSURE:
            if item.owner not in lags:
                lags[item.owner] = _usual_lag(item.owner)
            boot = _by_lag(item, lags[item.owner])
        found[item.event.event_id] = boot
    return found


def of_boot(event: FaultEvent, booted_at: datetime, boot_id: str) -> Boot:
    """By what does not depend on the node's clock: when we saw it, the boot id, the kernel's seconds since boot.

    `booted_at` is by our clock. Counted from there, a kernel stamp of this boot gives the moment we saw a live line.
    """
    if event.observed_at < booted_at:
        return Boot.EARLIER
    said_boot, seconds = _kernel(event.source_key)
    if said_boot and said_boot == boot_id.replace("-", "").lower():
        return Boot.THIS
    since = None if seconds is None else event.observed_at - (booted_at + seconds)
    if since is not None and abs(since) <= _PROMPT:
        return Boot.THIS
    if since is not None and since < timedelta(0):  # this boot has not run for so long
        return Boot.EARLIER
    return Boot.UNSURE if _lag(event) > _PROMPT else Boot.EARLIER


def alarms(items: Iterable[Item], boots: Mapping[str, Boot], catalog: Catalog) -> list[FaultEvent]:
    """One per fault that may have been live and is left out, so that a person looks at the node's clock."""
    kind = catalog[CLOCK_DOUBTED]
    return [
        FaultEvent(
            event_id=event_id(CLOCK_DOUBTED, item.event.event_id),
            fault_type=kind.id,
            event=EventKind.RAISED,
            resource=item.owner,
            source=_SOURCE,
            occurred_at=item.event.observed_at,
            observed_at=item.event.observed_at,
            severity=kind.severity,
            action=kind.action,
            component=kind.component,
            count=item.event.count,
            excerpt=f"Left out, dated {duration(_lag(item.event))} before it came: {item.event.excerpt}",
        )
        for item in items
        if boots.get(item.event.event_id) is Boot.UNSURE and item.kind.opens_incident and _is_raised(item.event)
    ]


def _by_lag(item: Item, usual: timedelta | None) -> Boot:
    """A clock is behind by the same time before and after; a late delivery of what is known already loses nothing."""
    if usual is not None and usual > _PROMPT and abs(_lag(item.event) - usual) <= _PROMPT:
        return Boot.THIS
    told = Fault.objects.filter(
        fingerprint=item.fingerprint,
        raised_at__lte=item.event.occurred_at + _PROMPT,
        last_seen_at__gte=item.event.occurred_at - _PROMPT,
    )
    return Boot.EARLIER if told.exists() else Boot.UNSURE


def _usual_lag(owner: str) -> timedelta | None:
    """How far the node's own dates were behind our clock when it last raised a fault; polls have our dates."""
    rows = Fault.objects.filter(owner=owner).exclude(raised_at=F("observed_at")).order_by("-observed_at", "-pk")
    last = rows.values_list("raised_at", "observed_at").first()
    return None if last is None else last[1] - last[0]


def _is_raised(event: FaultEvent) -> bool:
    return event.event is EventKind.RAISED


def _lag(event: FaultEvent) -> timedelta:
    return event.observed_at - event.occurred_at


def _kernel(source_key: str) -> tuple[str, timedelta | None]:
    """Boot id without dashes and time since boot, of `host|boot|seconds|text` (detectors.log_header.source_key)."""
    parts = source_key.split("|", 3)
    if len(parts) < 4:
        return "", None
    try:
        return parts[1].replace("-", "").lower(), timedelta(seconds=float(parts[2]))
    except (ValueError, OverflowError):
        return "", None
