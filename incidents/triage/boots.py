"""Whether an event that a machine dates well before we saw it is of that moment all the same. Reads
only.

A machine whose clock runs behind dates what it says now before its boot or its repair; a relay that
was down delivers old lines with such dates too. By the date alone the two cannot be told apart, and
a live fault that is dropped as old reads as health.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from django.db.models import Max, Q

from detectors.catalog.catalog import Catalog
from detectors.faults import EventKind, FaultEvent, event_id
from incidents.faults import clocks
from incidents.faults.clocks import TOLERANCE
from incidents.inventory.aliases import Names
from incidents.models import Fault, Node
from incidents.text.wording import duration
from incidents.triage.items import Item
from incidents.triage.renewals import Renewal

CLOCK_DOUBTED = "node.clock_doubted"
_SOURCE = "kintsugi"
# A relay empties its queue within minutes, and then its lines are all as late as each other: a
# clock that is behind shows the same lag in what was said at another time.
_APART = 2 * TOLERANCE


class Boot(StrEnum):
    """What an event with an early date is of: of this boot and after the last repair, of the time
    before, or unsure."""

    THIS = "this"
    EARLIER = "earlier"
    UNSURE = "unsure"


def find_boots(
    items: Iterable[Item], names: Names, renewed: Mapping[str, Renewal]
) -> dict[str, Boot]:
    """By event id, for those that are dated well before we saw them, or before their machine's last
    boot or repair.

    An event that is left out stands by its own date: nothing contradicts it. `renewed` is by
    resource.
    """
    early = [
        item
        for item in items
        if item.dated.may_be_late
        or _is_before(item, names.node_of(item.owner), renewed.get(item.resource))
    ]
    if not early:
        return {}
    latest_at = min(item.event.observed_at for item in early) - _APART
    usual = _usual_lags({item.owner for item in early}, latest_at)
    found: dict[str, Boot] = {}
    for item in early:
        boot = _boot(item, names, renewed.get(item.resource), usual.get(item.owner))
        if boot is not None:
            found[item.event.event_id] = boot
    return found


def of_boot(event: FaultEvent, booted_at: datetime, boot_id: str) -> Boot:
    """By what does not depend on the node's clock: when we saw it, the boot id, the kernel's
    seconds since boot.

    `booted_at` is by our clock. Counted from there, a kernel stamp of this boot gives the moment we
    saw a live line.
    """
    if event.observed_at < booted_at:
        return Boot.EARLIER
    said_boot, seconds = kernel(event.source_key)
    if said_boot and said_boot == boot_id.replace("-", "").lower():
        return Boot.THIS
    if _is_live(event, booted_at):
        return Boot.THIS
    if (
        seconds is not None and event.observed_at < booted_at + seconds
    ):  # this boot has not run for so long
        return Boot.EARLIER
    return Boot.UNSURE if clocks.lag(event) > TOLERANCE else Boot.EARLIER


def _is_live(event: FaultEvent, booted_at: datetime) -> bool:
    """Whether the kernel's stamp, counted from the boot, gives the moment at which we saw the
    line."""
    seconds = kernel(event.source_key)[1]
    return seconds is not None and abs(event.observed_at - (booted_at + seconds)) <= TOLERANCE


def kernel(source_key: str) -> tuple[str, timedelta | None]:
    """Boot id without dashes and time since boot, of `host|boot|seconds|text`
    (detectors.logs.header.source_key)."""
    parts = source_key.split("|", 3)
    if len(parts) < 4:
        return "", None
    try:
        return parts[1].replace("-", "").lower(), timedelta(seconds=float(parts[2]))
    except (ValueError, OverflowError):
        return "", None


def alarms(items: Iterable[Item], boots: Mapping[str, Boot], catalog: Catalog) -> list[FaultEvent]:
    """One per fault that may have been live and is left out, so that a person looks at the
    machine's clock."""
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
            excerpt=(
                f"Left out, dated {duration(item.dated.lag)} before it came: {item.event.excerpt}"
            ),
        )
        for item in items
        if boots.get(item.event.event_id) is Boot.UNSURE
        and item.kind.opens_incident
        and _is_raised(item.event)
    ]


def _is_before(item: Item, node: Node | None, renewal: Renewal | None) -> bool:
    return _is_dated_before(item, node) or (
        renewal is not None and item.event.occurred_at < renewal.at
    )


def _is_dated_before(item: Item, node: Node | None) -> bool:
    return (
        node is not None
        and node.boot_seen_at is not None
        and item.event.occurred_at < node.boot_seen_at
    )


def _boot(
    item: Item, names: Names, renewal: Renewal | None, usual: timedelta | None
) -> Boot | None:
    """None: it is dated after all that is known, and nothing says that its clock is wrong."""
    event, node = item.event, names.node_of(item.owner)
    is_late = item.dated.may_be_late
    if renewal is not None and event.observed_at < renewal.at:
        return Boot.EARLIER
    boot = Boot.UNSURE if is_late else Boot.EARLIER
    if node is not None and node.boot_seen_at is not None:
        if (
            is_late
            and event.observed_at >= node.boot_seen_at
            and _is_live(event, node.boot_seen_at)
        ):
            return Boot.THIS
        if _is_dated_before(item, node):
            boot = of_boot(event, node.boot_seen_at, node.boot_id)
    if boot is Boot.UNSURE and clocks.is_usual(event, usual):
        boot = Boot.THIS
    if boot is Boot.THIS:
        return boot
    if not _is_before(item, node, renewal):
        return None
    return Boot.EARLIER if boot is Boot.UNSURE and _is_recorded(item) else boot


def _is_recorded(item: Item) -> bool:
    """A late delivery of what is known already loses nothing."""
    at = item.event.occurred_at
    told = Fault.objects.filter(
        Q(raised_at__lte=at + TOLERANCE) | Q(last_seen_at__lte=at + TOLERANCE),
        fingerprint=item.fingerprint,
        last_seen_at__gte=at - TOLERANCE,
    )
    return told.exists()


def _usual_lags(owners: set[str], latest_at: datetime) -> dict[str, timedelta]:
    """How far each machine's own dates were behind our clock when it last raised a fault by then;
    polls have our dates. What it has raised since says nothing: that may have been held up together
    with what comes now.
    """
    rows = Fault.objects.filter(owner__in=owners, observed_at__lte=latest_at).exclude(lag_s=0.0)
    newest = (
        rows.values("owner").annotate(newest=Max("pk")).order_by().values_list("newest", flat=True)
    )
    found = Fault.objects.filter(pk__in=list(newest)).values_list("owner", "lag_s")
    return {owner: timedelta(seconds=lag_s) for owner, lag_s in found}


def _is_raised(event: FaultEvent) -> bool:
    return event.event is EventKind.RAISED
