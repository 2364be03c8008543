"""Whether an event that a machine dates well before we saw it is of that moment all the same. Reads
only.

A machine whose clock runs behind dates what it says now before its boot or its repair; a relay that
was down delivers old lines with such dates too. By the date alone the two cannot be told apart, and
a live fault that is dropped as old reads as health.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum

from django.db.models import Max, Q

from detectors.catalog.catalog import Catalog, FaultType
from detectors.faults import EventKind, FaultEvent, event_id
from incidents.faults import clocks
from incidents.faults.clocks import TOLERANCE
from incidents.inventory.aliases import Names
from incidents.models import Fault, Node
from incidents.text.wording import format_duration
from incidents.triage import grace_periods, last_repair
from incidents.triage.last_repair import LastRepair
from incidents.triage.normalisation import Item, normalise, redate

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


def check_clocks(
    items: Sequence[Item], names: Names, catalog: Catalog, now: datetime
) -> list[Item]:
    """The items by the time that counts, with the last boot and repair before which they count for
    nothing, and until when a boot or planned work explains them. A fault of the machine's clock is
    added for each that may have been live and is left out."""
    repairs = last_repair.find_last_repairs(items, now)
    boots = find_boots(items, names, repairs)
    clock_faults = normalise(create_clock_faults(items, boots, catalog), catalog, names)
    checked = []
    for item in (*items, *clock_faults):
        is_live = boots.get(item.event.event_id) is Boot.THIS
        ordered = redate(item, clocks.get_date(item.event, is_live=True)) if is_live else item
        checked.append(_add_history(ordered, names.find_node(item.owner), repairs))
    return grace_periods.apply_grace(checked, now)


def _add_history(item: Item, node: Node | None, repairs: Mapping[str, LastRepair]) -> Item:
    booted_at = node.boot_seen_at if node is not None else None
    repair = repairs.get(item.resource)
    if repair is None:
        return replace(item, booted_at=booted_at)
    return replace(item, booted_at=booted_at, repaired_at=repair.at, repair=repair.how)


def find_boots(
    items: Iterable[Item], names: Names, repaired: Mapping[str, LastRepair]
) -> dict[str, Boot]:
    """By event id, for those that are dated well before we saw them, or before their machine's last
    boot or repair.

    An event that is left out stands by its own date: nothing contradicts it. `renewed` is by
    resource.
    """
    early = []
    for item in items:
        node, repair = names.find_node(item.owner), repaired.get(item.resource)
        if item.dated.may_be_late or _is_before(item, node, repair):
            early.append(item)
    if not early:
        return {}
    latest_at = min(item.event.observed_at for item in early) - _APART
    usual = _get_usual_lags({item.owner for item in early}, latest_at)
    found: dict[str, Boot] = {}
    for item in early:
        boot = _get_boot(item, names, repaired.get(item.resource), usual.get(item.owner))
        if boot is not None:
            found[item.event.event_id] = boot
    return found


def classify_boot(event: FaultEvent, booted_at: datetime, boot_id: str) -> Boot:
    """By what does not depend on the node's clock: when we saw it, the boot id, the kernel's
    seconds since boot.

    `booted_at` is by our clock. Counted from there, a kernel stamp of this boot gives the moment we
    saw a live line.
    """
    if event.observed_at < booted_at:
        return Boot.EARLIER
    said_boot, seconds = clocks.parse_kernel_stamp(event.source_key)
    if said_boot and said_boot == boot_id.replace("-", "").lower():
        return Boot.THIS
    if _is_live(event, booted_at):
        return Boot.THIS
    if (
        seconds is not None and event.observed_at < booted_at + seconds
    ):  # this boot has not run for so long
        return Boot.EARLIER
    return Boot.UNSURE if clocks.compute_lag(event) > TOLERANCE else Boot.EARLIER


def _is_live(event: FaultEvent, booted_at: datetime) -> bool:
    """Whether the kernel's stamp, counted from the boot, gives the moment at which we saw the
    line."""
    seconds = clocks.parse_kernel_stamp(event.source_key)[1]
    return seconds is not None and abs(event.observed_at - (booted_at + seconds)) <= TOLERANCE


def create_clock_faults(
    items: Iterable[Item], boots: Mapping[str, Boot], catalog: Catalog
) -> list[FaultEvent]:
    """One per fault that may have been live and is left out, so that a person looks at the
    machine's clock."""
    kind = catalog[CLOCK_DOUBTED]
    created = []
    for item in items:
        is_unsure = boots.get(item.event.event_id) is Boot.UNSURE
        if is_unsure and item.kind.opens_incident and _is_raised(item.event):
            created.append(_make_clock_fault(item, kind))
    return created


def _make_clock_fault(item: Item, kind: FaultType) -> FaultEvent:
    event = item.event
    identity = event_id(CLOCK_DOUBTED, event.event_id)
    excerpt = f"Left out, dated {format_duration(item.dated.lag)} before it came: {event.excerpt}"
    return kind.create_event(
        identity,
        EventKind.RAISED,
        item.owner,
        source=_SOURCE,
        at=event.observed_at,
        count=event.count,
        excerpt=excerpt,
        provenance=event.provenance,
    )


def _is_before(item: Item, node: Node | None, repair: LastRepair | None) -> bool:
    return _is_dated_before(item, node) or (
        repair is not None and item.event.occurred_at < repair.at
    )


def _is_dated_before(item: Item, node: Node | None) -> bool:
    return (
        node is not None
        and node.boot_seen_at is not None
        and item.event.occurred_at < node.boot_seen_at
    )


def _get_boot(
    item: Item, names: Names, repair: LastRepair | None, usual: timedelta | None
) -> Boot | None:
    """None: it is dated after all that is known, and nothing says that its clock is wrong."""
    event, node = item.event, names.find_node(item.owner)
    is_late = item.dated.may_be_late
    if repair is not None and event.observed_at < repair.at:
        return Boot.EARLIER
    boot = Boot.UNSURE if is_late else Boot.EARLIER
    booted_at = node.boot_seen_at if node is not None else None
    if node is not None and booted_at is not None:
        is_seen_since = event.observed_at >= booted_at
        if is_late and is_seen_since and _is_live(event, booted_at):
            return Boot.THIS
        if _is_dated_before(item, node):
            boot = classify_boot(event, booted_at, node.boot_id)
    if boot is Boot.UNSURE and clocks.is_usual(event, usual):
        boot = Boot.THIS
    if boot is Boot.THIS:
        return boot
    if not _is_before(item, node, repair):
        return None
    return Boot.EARLIER if boot is Boot.UNSURE and _is_recorded(item) else boot


def _is_recorded(item: Item) -> bool:
    """A late delivery of what is known already loses nothing."""
    at = item.event.occurred_at
    began_by_then = Q(raised_at__lte=at + TOLERANCE) | Q(last_seen_at__lte=at + TOLERANCE)
    same = Fault.objects.filter(fingerprint=item.fingerprint, last_seen_at__gte=at - TOLERANCE)
    return same.filter(began_by_then).exists()


def _get_usual_lags(owners: set[str], latest_at: datetime) -> dict[str, timedelta]:
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
