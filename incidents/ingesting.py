"""Ingest: fault events become faults and incidents, one transaction per batch. The only writer of new faults.

An event that breaks its batch is found by halving and put aside with its error; the rest commits.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from django.db import OperationalError, transaction
from django.db.models import Max

from detectors import catalog as fault_catalog
from detectors import resources
from detectors.catalog import Catalog, FaultType
from detectors.faults import (
    ClearRule,
    Component,
    EventKind,
    EventType,
    FaultEvent,
    Severity,
    Verdict,
    VerdictKind,
    event_id,
    fingerprint,
    to_wire,
)
from incidents import dedup, naming, upsert
from incidents.board import Board, new_fault, quiet_period
from incidents.cases import Entry, FaultCase
from incidents.changes import Change, ChangeKind
from incidents.models import Fault, Node, QuarantinedEvent, SpoolMark, Switch
from incidents.settling import settle

_log = logging.getLogger("kintsugi.ingest")

# Columns of the fault table; PostgreSQL would refuse longer values, SQLite would not.
_LONGEST_PATH = 160
_LONGEST_TYPE = 96
_LONGEST_NAME = 64
_LARGEST_COUNT = 2**48


class ExtentLike(Protocol):
    """A range of a receiver's spool (detectors.receivers.spool.Extent)."""

    @property
    def receiver(self) -> str: ...
    @property
    def segment(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class EventRefused(ValueError):
    """An event that cannot be counted; the message says what is wrong with it."""


class _Raced(Exception):
    """A fault that stood when we looked has ended meanwhile: placing needs the lock after all."""


@dataclass(frozen=True)
class _Item:
    """An event with its resolved resource, its type and its keys."""

    event: FaultEvent
    kind: FaultType
    resource: str
    fingerprint: str
    keys: tuple[str, ...]

    @property
    def owner(self) -> str:
        return resources.owner(self.resource)


def ingest(events: Sequence[FaultEvent], *, now: datetime, extent: ExtentLike | None = None) -> list[Change]:
    """Counts events and gives each new fault its place. Safe to call again with the same events.

    `extent` says which part of a receiver's spool these events are; it is committed with them. Raises
    OperationalError when the database is at fault, and then nothing was counted.
    """
    with transaction.atomic():
        changes = _halving(list(events), now)
        if extent is not None:
            SpoolMark.objects.get_or_create(
                receiver=extent.receiver, segment=extent.segment, start=extent.start, defaults={"end": extent.end}
            )
    return changes


def _halving(events: list[FaultEvent], now: datetime) -> list[Change]:
    try:
        return _counted(events, now)
    except OperationalError:
        raise  # the database, not the event
    except Exception as error:  # noqa: BLE001  one ingest batch: halve it, put the culprit aside
        if len(events) == 1:
            return [_quarantine(events[0], error, now)]
        middle = len(events) // 2
        return _halving(events[:middle], now) + _halving(events[middle:], now)


def _counted(events: list[FaultEvent], now: datetime) -> list[Change]:
    try:
        with transaction.atomic():
            return _apply(events, now, may_skip_lock=True)
    except _Raced:
        with transaction.atomic():
            return _apply(events, now, may_skip_lock=False)


def _quarantine(event: FaultEvent, error: Exception, now: datetime) -> Change:
    text = f"{type(error).__name__}: {error}"
    _put_aside(_key(event.event_id), _storable(to_wire(event)), text, now)
    return Change(None, None, ChangeKind.QUARANTINED, text)


def _put_aside(name: str, wire: Any, error: str, now: datetime) -> None:
    _log.error("An event was put aside as %s: %s. The console shows it under quarantined events.", name, error)
    QuarantinedEvent.objects.get_or_create(
        event_id=name, defaults={"wire": wire, "error": _clean(error), "recorded_at": now}
    )


def _apply(events: list[FaultEvent], now: datetime, *, may_skip_lock: bool) -> list[Change]:
    catalog = fault_catalog.load()
    names = naming.load({event.resource for event in events})
    items = [_item(event, catalog, names) for event in events]
    fresh = upsert.remember(sorted({key for item in items for key in item.keys}), now)
    fingerprints = sorted({item.fingerprint for item in items})
    is_structural = not may_skip_lock or _is_structural(items, fingerprints)
    if is_structural:
        upsert.lock_placement()
    board = Board(catalog, now)
    _read_standing(board, fingerprints)
    if not is_structural and len(board.faults) < len(fingerprints):
        raise _Raced
    if is_structural:
        _prepare(board, items, names)
    tally: Counter[tuple[VerdictKind, str, str]] = Counter()
    for item in items:
        _take(board, item, _seen(item, fresh), names, tally)
    board.write()
    touched = [case for case in board.incidents.values() if case.is_unsettled]
    settled = settle(touched, board=board, now=now) if touched else []
    return board.changes + settled + _tallied(board, tally)


def _item(event: FaultEvent, catalog: Catalog, names: naming.Names) -> _Item:
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
    kind = catalog.get(event.fault_type) or _unlisted(event)
    keys = [_key(event.event_id)]
    if event.source_key:
        keys.append(f"k:{hashlib.sha256(event.source_key.encode()).hexdigest()[:32]}")
    if "\x00" in event.excerpt:
        event = replace(event, excerpt=_clean(event.excerpt))
    return _Item(event, kind, resource, fingerprint(resource, event.fault_type, event.qualifier), tuple(keys))


def _key(event_id: str) -> str:
    """Ids of our own making stand as they are; a caller's own may be longer than the column."""
    if len(event_id) <= 36 and ":" not in event_id and "\x00" not in event_id:
        return event_id
    return f"e:{hashlib.sha256(event_id.encode()).hexdigest()[:32]}"


def _unlisted(event: FaultEvent) -> FaultType:
    """A type that this catalogue does not have, as a newer detector may send: kept, for a person to close."""
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


def _is_structural(items: Sequence[_Item], fingerprints: Sequence[str]) -> bool:
    """Whether anything but counting may happen: only then the placement lock is taken."""
    if any(item.event.event is EventKind.CLEARED for item in items):
        return True
    standing = {
        mark: (Severity(severity).rank, action, flapping)
        for mark, severity, action, flapping in Fault.objects.filter(
            fingerprint__in=fingerprints, is_active=True
        ).values_list("fingerprint", "severity", "action", "is_flapping")
    }
    if len(standing) < len(fingerprints):
        return True
    return any(_exceeds(item.event, standing[item.fingerprint]) for item in items)


def _exceeds(event: FaultEvent, standing: tuple[int, str, bool]) -> bool:
    rank, action, is_flapping = standing
    return is_flapping or event.severity.rank > rank or event.action.rank > type(event.action)(action).rank


def _read_standing(board: Board, fingerprints: Sequence[str]) -> None:
    """The active fault of each fingerprint, locked in one order; where there is none, the latest that ended."""
    active = Fault.objects.filter(fingerprint__in=fingerprints, is_active=True).order_by("fingerprint")
    for row in active.select_for_update():
        board.faults[row.fingerprint] = board.case(row)


def _read_ended(board: Board, fingerprints: Sequence[str]) -> None:
    latest = (
        Fault.objects.filter(fingerprint__in=fingerprints).values("fingerprint").annotate(newest=Max("pk")).order_by()
    )
    rows = Fault.objects.filter(pk__in=[row["newest"] for row in latest])
    for row in rows.select_related("membership__incident__duplicate_of"):
        board.faults[row.fingerprint] = board.case(row)


def _prepare(board: Board, items: Sequence[_Item], names: naming.Names) -> None:
    """Reads what placing needs: ended faults, the neighbourhood's incidents, the machines."""
    missing = sorted({item.fingerprint for item in items} - set(board.faults))
    _read_ended(board, missing)
    owners = {item.owner for item in items}
    add_provisional(names, owners)
    board.nodes = {f"node/{name}": node for name, node in names.nodes.items()}
    board.read_neighbourhood({(item.event.fault_type, item.resource) for item in items})


def add_provisional(names: naming.Names, owners: set[str]) -> None:
    """Machines that only spoke to us get a row of their own: full incidents, never acted upon."""
    for owner in sorted(owners):
        kind, _, name = owner.partition("/")
        if name == resources.UNKNOWN_HOST or len(name) > _LONGEST_NAME:
            continue
        if kind == "node" and names.node_of(owner) is None:
            names.nodes[name] = Node.objects.get_or_create(
                name=name, defaults={"is_provisional": True, "role": "unknown"}
            )[0]
        elif kind == "switch" and names.switch_of(owner) is None:
            names.switches[name] = Switch.objects.get_or_create(
                name=name, defaults={"is_provisional": True, "role": "unknown"}
            )[0]


def _seen(item: _Item, fresh: set[str]) -> str:
    """Empty for an event that counts; its keys are used up, so that a twin in the same batch does not."""
    told = ""
    if item.keys[0] not in fresh:
        told = "delivered before: counted once"
    elif any(key not in fresh for key in item.keys[1:]):
        told = "the same line came by another path: counted once"
    fresh.difference_update(item.keys)
    return told


def _take(
    board: Board, item: _Item, seen: str, names: naming.Names, tally: Counter[tuple[VerdictKind, str, str]]
) -> None:
    case = board.faults.get(item.fingerprint)
    node = names.node_of(item.owner)
    known = dedup.Known(case.standing() if case else None, seen, node.boot_seen_at if node else None)
    verdict = dedup.decide(item.event, known, now=board.now, quiet=quiet_period())
    if verdict.kind in (VerdictKind.IGNORED, VerdictKind.STALE):
        tally[verdict.kind, item.fingerprint, verdict.reason] += item.event.count
    elif item.event.event is EventKind.CLEARED and case is not None:
        _end(board, case, item, verdict)
    elif verdict.kind is VerdictKind.REPEAT and case is not None:
        case.count(item.event, _quiet(item))
        tally[verdict.kind, item.fingerprint, verdict.reason] += item.event.count
    elif verdict.kind is VerdictKind.ESCALATED and case is not None:
        _escalate(board, case, item, verdict)
    else:
        _raise(board, case, item, verdict, names)


def _end(board: Board, case: FaultCase, item: _Item, verdict: Verdict) -> None:
    if verdict.kind is VerdictKind.FLAPPING:
        case.row.clears_at, case.is_changed = item.event.observed_at + quiet_period(), True
        return
    case.clear(item.event.occurred_at, verdict.reason)
    if case.member is not None:
        case.member.entries.append(
            Entry("cleared", f"{case.row.fault_type} on {case.row.resource} has cleared", item.event.occurred_at, "end")
        )
        case.member.is_unsettled = True
    board.note(ChangeKind.CLEARED, case, case.member, verdict.reason)


def _escalate(board: Board, case: FaultCase, item: _Item, verdict: Verdict) -> None:
    row, event = case.row, item.event
    row.severity = str(max(Severity(row.severity), event.severity, key=lambda word: word.rank))
    row.action = str(max(type(event.action)(row.action), event.action, key=lambda word: word.rank))
    case.is_changed = True
    case.count(event, _quiet(item))
    if case.member is not None:
        case.member.raise_to(case)
        case.member.entries.append(Entry("escalated", f"{row.fault_type}: {verdict.reason}.", event.occurred_at))
    board.note(ChangeKind.ESCALATED, case, case.member, verdict.reason)


def _raise(board: Board, case: FaultCase | None, item: _Item, verdict: Verdict, names: naming.Names) -> None:
    """A fault that did not stand: the same row while its incident is open or its end is recent, else a new one."""
    if case is None or not (case.member or case.is_new or _is_recent(case, item)):
        earlier = _earlier_incident(case)
        board.faults[item.fingerprint] = fresh = _new_case(board, item, names)
        board.settle_in(fresh, follows=earlier)
        return
    case.come_back(is_flapping=verdict.kind is VerdictKind.FLAPPING)
    case.count(item.event, _quiet(item))
    if case.member is not None:
        case.member.is_unsettled = True
        board.note(ChangeKind.RETURNED, case, case.member, verdict.reason)
        return
    # What flaps is not held down: it would never be told.
    case.row.held_until = None if case.row.is_flapping else _held_until(item)
    if case in board.loose:
        board.loose.remove(case)
    board.settle_in(case)


def _is_recent(case: FaultCase, item: _Item) -> bool:
    """An end within the quiet period, of a fault that never had an incident."""
    if getattr(case.row, "membership", None) is not None or case.row.cleared_at is None:
        return False
    return item.event.occurred_at - case.row.cleared_at <= quiet_period()


def _held_until(item: _Item) -> datetime | None:
    return item.event.observed_at + item.kind.hold_down if item.kind.hold_down > timedelta(0) else None


def _quiet(item: _Item) -> timedelta | None:
    return item.kind.quiet if item.kind.clears is ClearRule.AFTER_QUIET else None


def _earlier_incident(case: FaultCase | None) -> Any:
    membership = getattr(case.row, "membership", None) if case is not None else None
    if membership is None:
        return None
    return membership.incident.duplicate_of or membership.incident


def _new_case(board: Board, item: _Item, names: naming.Names) -> FaultCase:
    event, kind = item.event, item.kind
    row = new_fault(kind, fingerprint=item.fingerprint, resource=item.resource, qualifier=event.qualifier)
    row.component = str(_component(item, names))
    row.severity, row.action = str(event.severity), str(event.action)
    row.code = event.code if event.code is not None else kind.code
    row.raised_at = row.last_seen_at = event.occurred_at
    row.observed_at, row.recorded_at = event.observed_at, board.now
    row.held_until = _held_until(item)
    good = event.attributes.get("last_known_good_at", "")
    row.last_known_good_at = datetime.fromisoformat(good) if good else None
    case = FaultCase(row, opens_incident=kind.opens_incident, is_sympathetic=kind.is_sympathetic, is_new=True)
    case.count(event, _quiet(item))
    return case


def _component(item: _Item, names: naming.Names) -> Component:
    """A switch's faults take their class from its role."""
    switch = names.switch_of(item.owner)
    if not item.event.fault_type.startswith("switch.") or switch is None:
        return item.event.component
    roles = {"storage": Component.STORAGE_SWITCH, "management": Component.FACILITY}
    return roles.get(switch.role, Component.INTERCONNECT_SWITCH)


def _tallied(board: Board, tally: Counter[tuple[VerdictKind, str, str]]) -> list[Change]:
    """Repeats and what was ignored: one change per fault and reason, however many events."""
    changes = []
    for (kind, mark, reason), count in tally.items():
        case = board.faults.get(mark)
        incident = case.member.row.pk if case is not None and case.member is not None else None
        what = ChangeKind.REPEATED if kind is VerdictKind.REPEAT else ChangeKind.IGNORED
        changes.append(Change(incident, case.row.pk if case else None, what, f"{count} x {reason}"))
    return changes


def _clean(text: str) -> str:
    """PostgreSQL stores no NUL."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, dict):
        return {_clean(str(name)): _storable(inner) for name, inner in value.items()}
    return value


def quarantine(broken: Sequence[tuple[Mapping[str, Any], str]], *, now: datetime) -> list[Change]:
    """Puts records aside that are no events at all, each with what is wrong with it."""
    with transaction.atomic():
        for wire, error in broken:
            name = _key(str(wire.get("event_id") or event_id(repr(sorted(wire.items(), key=str)))))
            _put_aside(name, _storable(dict(wire)), error, now)
    return [Change(None, None, ChangeKind.QUARANTINED, error) for _, error in broken]


def active_fingerprints(owner: str) -> set[str]:
    """What stands on one machine (`node/gn042`), for detectors to judge against."""
    return set(Fault.objects.filter(owner=owner, is_active=True).values_list("fingerprint", flat=True))
