"""Ingest: fault events become faults and incidents, one transaction per batch. The only writer of
new faults.

An event that breaks its batch is found by halving and put aside with its error; the rest commits.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import OperationalError, transaction

from detectors import resources
from detectors.catalog import catalog as fault_catalog
from detectors.faults import (
    EventKind,
    FaultEvent,
    Severity,
    Verdict,
    VerdictKind,
    event_id,
    to_wire,
)
from incidents.db import own_errors, upsert
from incidents.db.prepared import Given, Prepared
from incidents.faults import clocks, dedup, flapping
from incidents.inventory import aliases
from incidents.maintenance import silences
from incidents.models import Fault, Node, QuarantinedEvent, Switch
from incidents.state.board import Board, new_fault
from incidents.state.cases import Entry, FaultCase
from incidents.state.settle import settle
from incidents.triage import boots, earlier, early_ends, gathering, grace, renewals, returning
from incidents.triage.counting import NotOnlyRepeats, count_repeats, may_repeat
from incidents.triage.items import (
    Item,
    clean,
    component,
    key,
    prepared,
    redated,
    seen,
    seen_before,
    storable,
)
from incidents.vocabulary.changes import KINTSUGI, Change, ChangeKind

_log = logging.getLogger("kintsugi.ingest")

_LONGEST_NAME = 64
QUARANTINED = "kintsugi.event_quarantined"
OURSELVES = "kintsugi/ingest"
_ACTIVE = Prepared(
    lambda: (
        Fault.objects.filter(fingerprint__among=Given("marks"), is_active=True)
        .order_by("fingerprint")
        .select_for_update()
    )
)


def ingest(events: Sequence[FaultEvent], *, now: datetime) -> list[Change]:
    """Counts events and gives each new fault its place. Safe to call again with the same events.

    Raises OperationalError when the database is at fault, and then nothing was counted.
    """
    with transaction.atomic():
        changes = _halving(list(events), now)
        changes += _told_of(changes, now)
    return changes


def _told_of(changes: Sequence[Change], now: datetime) -> list[Change]:
    """What was put aside is a fault of its own, so that a person hears of it as of any other."""
    errors = [change.text for change in changes if change.kind is ChangeKind.QUARANTINED]
    if not errors:
        return []
    kind = fault_catalog.load()[QUARANTINED]
    alarm = FaultEvent(
        event_id=event_id(QUARANTINED, secrets.token_hex(16)),
        fault_type=kind.id,
        event=EventKind.RAISED,
        resource=OURSELVES,
        source=KINTSUGI,
        occurred_at=now,
        observed_at=now,
        severity=kind.severity,
        action=kind.action,
        component=kind.component,
        count=len(errors),
        excerpt=clean(errors[0]),
    )
    return _halving([alarm], now, is_whole=False)


def _halving(events: list[FaultEvent], now: datetime, *, is_whole: bool = True) -> list[Change]:
    if not events:
        return []
    try:
        return _counted(events, now, may_be_short=is_whole)
    except OperationalError:
        raise  # the database, not the event
    except Exception as error:  # noqa: BLE001  one ingest batch: halve it, put the culprit aside
        # Nothing is locked now. The halves share a transaction, so the first lock is taken for all
        # of them.
        upsert.lock_placement()
        if len(events) == 1:
            return [_quarantine(events[0], error, now)]
        middle = len(events) // 2
        return _halving(events[:middle], now, is_whole=False) + _halving(
            events[middle:], now, is_whole=False
        )


def _counted(events: list[FaultEvent], now: datetime, *, may_be_short: bool) -> list[Change]:
    """Counts repeats the short way when they are nothing else, anything the long way."""
    catalog = fault_catalog.load()
    names = aliases.load({event.resource for event in events})
    items = prepared(events, catalog, names)
    if may_be_short and may_repeat(items):
        with contextlib.suppress(NotOnlyRepeats), transaction.atomic():
            return count_repeats(items, names, now=now)
    with transaction.atomic():
        return _placed(items, names, Board(catalog, now))


def _quarantine(event: FaultEvent, error: Exception, now: datetime) -> Change:
    if isinstance(error, ValueError):  # what is wrong with the event, in words of our own
        text = str(error)
    else:
        _log.error("An event cannot be counted.", exc_info=error)
        text = own_errors.described(error)
    return _put_aside(key(event.event_id), storable(to_wire(event)), text, now)


def _put_aside(name: str, wire: Any, error: str, now: datetime) -> Change:
    """Keeps the whole record. One that was put aside before is not told again."""
    is_new = QuarantinedEvent.objects.get_or_create(
        event_id=name, defaults={"wire": wire, "error": clean(error), "recorded_at": now}
    )[1]
    if not is_new:
        return Change(None, None, ChangeKind.IGNORED, f"put aside before: {error}")
    _log.error(
        "An event was put aside as %s: %s. The console shows it under quarantined events.",
        name,
        error,
    )
    return Change(None, None, ChangeKind.QUARANTINED, error)


def _placed(items: Sequence[Item], names: aliases.Names, board: Board) -> list[Change]:
    """The long way: new, cleared and escalated faults change incidents, one batch at a time."""
    upsert.lock_placement()
    items, counted_before = _told_apart(items)
    if not items:
        return counted_before
    renewed = renewals.find_renewals(items, board.now)
    of_boots = boots.find_boots(items, names, renewed)
    items = [*items, *prepared(boots.alarms(items, of_boots, board.catalog), board.catalog, names)]
    items = grace.waiting([_in_order(item, of_boots) for item in items], board.now)
    _read_standing(board, sorted({item.fingerprint for item in items}))
    fresh = upsert.remember(sorted({key for item in items for key in item.keys}), board.now)
    _prepare(board, items, names)
    tally: Counter[tuple[VerdictKind, str, str]] = Counter()
    ends = early_ends.Ends.load(items)
    for item in items:
        node, renewal = names.node_of(item.owner), renewed.get(item.resource)
        known = dedup.Known(
            seen=seen(item, fresh),
            booted_at=node.boot_seen_at if node else None,
            renewed_at=renewal.at if renewal else None,
            renewed=renewal.how if renewal else "",
            ended_at=ends.get_end(item),
        )
        if not _take(board, item, known, names, tally) and not known.seen:
            ends.take(item)
    ends.keep()
    _conclude(board, items, names, tally)
    silences.apply(board)
    board.write()
    touched = [case for case in board.incidents.values() if case.is_unsettled]
    settled = settle(touched, board=board, now=board.now) if touched else []
    return counted_before + board.changes + settled + _tallied(board, tally)


def _told_apart(items: Sequence[Item]) -> tuple[list[Item], list[Change]]:
    """What may count, and what does not since it was counted before: with two log hosts, each line
    comes twice.

    The second copy is put aside before anything is read for it, so that a storm is placed once and
    not twice.
    """
    known = upsert.known(sorted({key for item in items for key in item.keys}))
    new = [item for item in items if not seen_before(item, known)]
    old = Counter(reason for item in items if (reason := seen_before(item, known)))
    return new, [
        Change(None, None, ChangeKind.IGNORED, f"{count} x {reason}")
        for reason, count in old.items()
    ]


def _in_order(item: Item, of_boots: Mapping[str, boots.Boot]) -> Item:
    """By our clock where the event is known to be of the moment at which we saw it."""
    is_live = of_boots.get(item.event.event_id) is boots.Boot.THIS
    return redated(item, clocks.dated(item.event, is_live=True)) if is_live else item


def _conclude(
    board: Board,
    items: Sequence[Item],
    names: aliases.Names,
    tally: Counter[tuple[VerdictKind, str, str]],
) -> None:
    """What the batch's faults add up to gets its place in the same transaction."""
    events = gathering.conclude(board, items)
    if not events:
        return
    more = prepared(events, board.catalog, names)
    _read_standing(board, sorted({item.fingerprint for item in more} - board.faults.keys()))
    _prepare(board, more, names)
    for item in more:
        _take(board, item, dedup.Known(), names, tally)
    gathering.record(board, more)


def _read_standing(board: Board, fingerprints: Sequence[str]) -> None:
    """The active fault of each fingerprint, locked in one order."""
    for row in _ACTIVE.objects(marks=fingerprints):
        board.faults[row.fingerprint] = board.case(row)


def _prepare(board: Board, items: Sequence[Item], names: aliases.Names) -> None:
    """Reads what placing needs: ended faults, the neighbourhood's incidents, the machines."""
    missing = sorted({item.fingerprint for item in items} - set(board.faults))
    for row in earlier.load_faults(missing):
        board.faults[row.fingerprint] = board.case(row)
    owners = {item.owner for item in items}
    add_provisional(names, owners)
    board.nodes = {f"node/{name}": node for name, node in names.nodes.items()}
    board.read_neighbourhood({(item.event.fault_type, item.resource) for item in items})


def add_provisional(names: aliases.Names, owners: set[str]) -> None:
    """Machines that only spoke to us get a row of their own: full incidents, never acted upon."""
    unknown = [owner.partition("/") for owner in sorted(owners) if _is_unknown(names, owner)]
    nodes = [name for kind, _, name in unknown if kind == "node"]
    switches = [name for kind, _, name in unknown if kind == "switch"]
    if nodes:
        fresh = [Node(name=name, is_provisional=True, role="unknown") for name in nodes]
        Node.objects.bulk_create(fresh, ignore_conflicts=True)
        names.nodes.update({node.name: node for node in Node.objects.filter(name__in=nodes)})
    if switches:
        rows = [Switch(name=name, is_provisional=True, role="unknown") for name in switches]
        Switch.objects.bulk_create(rows, ignore_conflicts=True)
        names.switches.update(
            {switch.name: switch for switch in Switch.objects.filter(name__in=switches)}
        )


def _is_unknown(names: aliases.Names, owner: str) -> bool:
    name = owner.partition("/")[2]
    if name == resources.UNKNOWN_HOST or len(name) > _LONGEST_NAME:
        return False
    return names.node_of(owner) is None and names.switch_of(owner) is None


def _take(
    board: Board,
    item: Item,
    known: dedup.Known,
    names: aliases.Names,
    tally: Counter[tuple[VerdictKind, str, str]],
) -> bool:
    """Whether a fault stands, or stood until this event, of which it speaks."""
    case = board.faults.get(item.fingerprint)
    stands = case is not None and case.row.is_active
    known = replace(known, standing=case.get_standing() if case else None, limits=item.limits)
    verdict = dedup.decide(item.event, known, now=board.now)
    if verdict.kind in (VerdictKind.IGNORED, VerdictKind.STALE):
        tally[verdict.kind, item.fingerprint, verdict.reason] += item.event.count
    elif item.event.event is EventKind.CLEARED and case is not None:
        _end(board, case, item, verdict)
    elif verdict.kind is VerdictKind.REPEAT and case is not None:
        case.count(item.event, item.quiet)
        tally[verdict.kind, item.fingerprint, verdict.reason] += item.event.count
    elif verdict.kind is VerdictKind.ESCALATED and case is not None:
        _escalate(board, case, item, verdict)
    elif case is not None and case.row.is_active:
        returning.come_again(case, item)
    else:
        _raise(board, case, item, verdict, names)
    return stands


def _end(board: Board, case: FaultCase, item: Item, verdict: Verdict) -> None:
    if verdict.kind is VerdictKind.FLAPPING:
        case.changed(item.event.occurred_at, item.limits)
        case.row.clears_at = max(
            flapping.over_at(flapping.read(case.row.changes_at), item.limits), board.now
        )
        return
    board.ended(case, item.event.occurred_at, verdict.reason)


def _escalate(board: Board, case: FaultCase, item: Item, verdict: Verdict) -> None:
    row, event = case.row, item.event
    row.severity = str(max(Severity(row.severity), event.severity, key=lambda word: word.rank))
    row.action = str(max(type(event.action)(row.action), event.action, key=lambda word: word.rank))
    case.is_changed = True
    case.count(event, item.quiet)
    if case.member is not None:
        case.member.raise_to(case)
        case.member.entries.append(
            Entry("escalated", f"{board.named(row)}: {verdict.reason}.", event.occurred_at)
        )
    board.note(ChangeKind.ESCALATED, case, case.member, verdict.reason)


def _raise(
    board: Board, case: FaultCase | None, item: Item, verdict: Verdict, names: aliases.Names
) -> None:
    """A fault that did not stand: the same row while its incident is open or its end is recent,
    else a new one."""
    if case is None or not returning.is_same(case, item):
        earlier = None if case is not None and case.member else returning.earlier_incident(case)
        board.faults[item.fingerprint] = fresh = _new_case(board, item, names, case)
        if case is not None:
            board.replaced.append(case)
        if verdict.kind is VerdictKind.FLAPPING:
            fresh.row.is_flapping, fresh.row.held_until = True, item.waits_until
        board.settle_in(fresh, follows=earlier)
        returning.tell_flapping(board, fresh, verdict)
        return
    case.come_back(
        item.event.occurred_at, item.limits, is_flapping=verdict.kind is VerdictKind.FLAPPING
    )
    case.count(item.event, item.quiet)
    if case.member is not None:
        if case.member.is_watched:
            case.row.held_until = _held_until(case, item)
        case.member.is_unsettled = True
        board.note(ChangeKind.RETURNED, case, case.member, verdict.reason)
        returning.tell_flapping(board, case, verdict)
        return
    case.row.held_until = _held_until(case, item)
    if case in board.loose:
        board.loose.remove(case)
    board.settle_in(case)
    returning.tell_flapping(board, case, verdict)


def _held_until(case: FaultCase, item: Item) -> datetime | None:
    """What flaps is not held down, or it would never be told; what boots and planned work bring
    waits all the same."""
    return item.waits_until if case.row.is_flapping else item.held_until


def _new_case(
    board: Board, item: Item, names: aliases.Names, earlier: FaultCase | None
) -> FaultCase:
    event, kind = item.event, item.kind
    row = new_fault(
        kind, fingerprint=item.fingerprint, resource=item.resource, qualifier=event.qualifier
    )
    row.component = str(
        component(kind.id, item.resource, event.component, names, board.met.around.graph)
    )
    row.severity, row.action = str(event.severity), str(event.action)
    row.code = event.code if event.code is not None else kind.code
    row.raised_at, row.last_seen_at = item.dated.at, event.occurred_at
    row.clock, row.lag_s = str(item.dated.whose), item.dated.lag.total_seconds()
    row.observed_at, row.recorded_at = event.observed_at, board.now
    row.held_until = item.held_until
    good = event.attributes.get("last_known_good_at", "")
    row.last_known_good_at = datetime.fromisoformat(good) if good else None
    case = FaultCase(
        row, opens_incident=kind.opens_incident, is_sympathetic=kind.is_sympathetic, is_new=True
    )
    row.changes_at = earlier.row.changes_at if earlier is not None else []
    case.changed(event.occurred_at, item.limits)
    case.count(event, item.quiet)
    return case


def _tallied(board: Board, tally: Counter[tuple[VerdictKind, str, str]]) -> list[Change]:
    """Repeats and what was ignored: one change per fault and reason, however many events."""
    changes = []
    for (kind, mark, reason), count in tally.items():
        case = board.faults.get(mark)
        incident = case.member.row.pk if case is not None and case.member is not None else None
        what = ChangeKind.REPEATED if kind is VerdictKind.REPEAT else ChangeKind.IGNORED
        changes.append(Change(incident, case.row.pk if case else None, what, f"{count} x {reason}"))
    return changes


def quarantine(broken: Sequence[tuple[Mapping[str, Any], str]], *, now: datetime) -> list[Change]:
    """Puts records aside that are no events at all, each with what is wrong with it."""
    with transaction.atomic():
        changes = [
            _put_aside(_name(wire), storable(dict(wire)), error, now) for wire, error in broken
        ]
        return changes + _told_of(changes, now)


def _name(wire: Mapping[str, Any]) -> str:
    return key(str(wire.get("event_id") or event_id(repr(sorted(wire.items(), key=str)))))


def active_fingerprints(owner: str) -> set[str]:
    """What stands on one machine (`node/gn042`), for detectors to judge against."""
    return set(
        Fault.objects.filter(owner=owner, is_active=True).values_list("fingerprint", flat=True)
    )
