"""The inbox: what receivers have handed over and ingest has not counted yet. Any number of workers
take from it, each batch once.

A batch is taken, counted and removed in one transaction: a worker that dies leaves it to the next.
On PostgreSQL workers pass over each other's batches; SQLite has one writer at a time anyway.

In a storm batches wait in numbers, and each holds events of many pods. Then some are sorted: in
their place come parts with the events of one pod each, and a worker takes parts of a pod at which
no other works. So workers stand in each other's way no more than the pods do.

Before a batch is counted, its row says that it was begun: what kills the process that counts it
leaves that behind. A batch that was begun too often is cut into single events, and the event that
goes on killing is put aside.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db import Error, connection, transaction
from django.db.models import Count, F, Min, Sum

from detectors import faults, resources
from detectors.faults import FaultEvent
from detectors.receivers import spool
from detectors.receivers.delivery import Backlog, PositionMoved
from detectors.receivers.spool import Batch, Extent, Turn
from incidents.db.prepared import Given, Prepared
from incidents.db.upsert import get_lock_key, is_postgresql
from incidents.inventory import graphs
from incidents.models import InboxBatch, SpoolMark, SpoolPosition
from incidents.triage.ingest import ingest, quarantine
from incidents.vocabulary.changes import Change

URGENT, ORDINARY, LAST = 0, 1, 2
_RANKS = {Turn.URGENT: URGENT, Turn.ORDINARY: ORDINARY, Turn.LAST: LAST}
# Taken together at most: what one transaction of ingest is good for.
_MOST_BYTES = 256 * 1024
_MOST_BATCHES = 64
_NOTHING = timedelta(0)
_WAITING = Prepared(
    lambda: InboxBatch.objects.filter(recorded_at__lt=Given("before")).values_list("pk")[:1]
)
_FREE = Prepared(
    lambda: (
        InboxBatch.objects.order_by("rank", "-is_part", "id")
        .select_for_update(skip_locked=True)
        .only("pk", "rank", "size", "attempts", "is_part", "pod")[:_MOST_BATCHES]
    )
)
_CHOSEN = Prepared(
    lambda: (
        InboxBatch.objects.filter(pk__among=Given("keys"))
        .order_by("rank", "id")
        .select_for_update()
    )
)
_PARTS_WAITING = Prepared(
    lambda: InboxBatch.objects.filter(rank=Given("rank"), is_part=True).values_list("pk")[:1]
)
# Our choice: so many are sorted together, into parts of so many events.
_MOST_SORTED, _EVENTS_OF_PART = 16, 500
# Our choice: workers are killed for many reasons, so twice may be chance. A batch begun so often is
# cut; an event alone that was begun so often is put aside. What was cut has had a part of these.
_CUT_AFTER, _CUT_WITH, _PUT_ASIDE_AFTER = 3, 2, 5
# Any fixed number: the key of the advisory lock under which batches are begun.
_BEGINNING_LOCK = 0x6B696E7462656769
_PARTS = msgspec.json.Decoder(list[dict[str, Any]])
# The first key of the advisory locks of pods at which a worker is; the second is of the name. That
# of the batches of rank LAST is no name of a pod.
_AT_WORK_LOCK = 0x6B776F72
_BEHIND_ALL = " "
_beginning = threading.Lock()
_COPY = (
    "COPY incidents_inboxbatch (receiver, segment, start, rank, payload, size, recorded_at)"
    " FROM STDIN"
)


def read_position(receiver: str) -> Extent | None:
    """The last batch of this spool that was taken; None: none was."""
    found = SpoolPosition.objects.filter(receiver=receiver).first()
    return Extent(found.segment, found.start, found.end) if found is not None else None


def put(receiver: str, batches: Sequence[Batch], after: Extent | None, *, now: datetime) -> None:
    """Takes all batches and moves the receiver's position from `after` to the last of them. Raises
    PositionMoved, and then takes none."""
    last = batches[-1].extent
    with transaction.atomic():
        if not _move_position(receiver, after, last):
            raise PositionMoved(receiver)
        _insert([_make_row(receiver, batch, now) for batch in batches])


def read_backlog(now: datetime) -> Backlog:
    found = InboxBatch.objects.aggregate(
        batches=Count("pk"), size=Sum("size"), oldest=Min("recorded_at")
    )
    age = max(now - found["oldest"], _NOTHING) if found["oldest"] else _NOTHING
    return Backlog(found["batches"], found["size"] or 0, age)


def is_waiting(before: datetime) -> bool:
    """Whether anything that came before then is not counted yet."""
    return bool(_WAITING.values(before=before))


def ingest_waiting(now: datetime) -> list[Change] | None:
    """Counts the most urgent batches that no other worker has taken, and removes them. None: there
    are none. Raises OperationalError when the database is at fault, and then nothing was counted.
    """
    with contextlib.ExitStack() as at_work, contextlib.ExitStack() as beginning:
        beginning.enter_context(_lock_beginning())
        keys = _begin(at_work)
        if not keys:
            return None
        try:
            with transaction.atomic():
                batches: list[InboxBatch] = _CHOSEN.objects(keys=keys)
                if _is_to_be_sorted(
                    batches
                ):  # one worker at a time: parts keep the order of batches
                    return _sort(batches, now)
                beginning.close()
                return _ingest_batches(batches, now)
        except Exception:
            _decrement_attempts(keys)
            raise


def _ingest_batches(batches: Sequence[InboxBatch], now: datetime) -> list[Change]:
    events: list[FaultEvent] = []
    broken: list[tuple[Mapping[str, Any], str]] = []
    for batch in batches:
        wires = _decode(batch, broken)
        if batch.attempts <= _CUT_AFTER:
            _add_events(wires, events, broken)
        elif len(wires) > 1:
            _cut(batch, wires)
        elif batch.attempts <= _PUT_ASIDE_AFTER:
            _add_events(wires, events, broken)
        else:
            text = f"the process that counted it ended {batch.attempts - 1} times"
            broken += [(wire, text) for wire in wires]
    changes = quarantine(broken, now=now) if broken else []
    changes += ingest(events, now=now, by_pod=True)
    InboxBatch.objects.filter(pk__in=[batch.pk for batch in batches]).delete()
    return changes


def ingest_wires(wires: Sequence[Mapping[str, Any]], *, now: datetime) -> list[Change]:
    """The same for events that stand in no inbox."""
    events: list[FaultEvent] = []
    broken: list[tuple[Mapping[str, Any], str]] = []
    _add_events(wires, events, broken)
    changes = quarantine(broken, now=now) if broken else []
    return changes + ingest(events, now=now)


def mark_counted(receiver: str, segment: int, start: int, end: int) -> None:
    """Tells a receiver of version 0.1 that it may forget this batch."""
    SpoolMark.objects.get_or_create(
        receiver=receiver, segment=segment, start=start, defaults={"end": end}
    )


def _move_position(receiver: str, after: Extent | None, last: Extent) -> bool:
    values = {"segment": last.segment, "start": last.start, "end": last.end}
    if after is None:
        return SpoolPosition.objects.get_or_create(receiver=receiver, defaults=values)[1]
    moved = SpoolPosition.objects.filter(
        receiver=receiver, segment=after.segment, end=after.end
    ).update(**values)
    return moved == 1


def _make_row(receiver: str, batch: Batch, now: datetime) -> tuple[Any, ...]:
    """In the order of the columns of `_COPY`."""
    extent, payload = batch.extent, batch.payload
    rank = _RANKS[batch.turn]
    return (receiver, extent.segment, extent.start, rank, payload, len(payload), now)


def _insert(rows: Sequence[tuple[Any, ...]]) -> None:
    if not is_postgresql():
        InboxBatch.objects.bulk_create([_make_batch(row) for row in rows])
        return
    with connection.cursor() as cursor, connection.wrap_database_errors, cursor.copy(_COPY) as copy:
        for row in rows:
            copy.write_row(row)


def _make_batch(row: tuple[Any, ...]) -> InboxBatch:
    receiver, segment, start, rank, payload, size, recorded_at = row
    return InboxBatch(
        receiver=receiver,
        segment=segment,
        start=start,
        rank=rank,
        payload=payload,
        size=size,
        recorded_at=recorded_at,
    )


@contextlib.contextmanager
def _lock_beginning() -> Iterator[None]:
    """One worker at a time chooses batches, says so and locks them: in between they would be free
    to others, whose attempts would count as well. A session's lock: it ends with the process."""
    if not is_postgresql():
        with _beginning:
            yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [_BEGINNING_LOCK])
    try:
        yield
    finally:
        with contextlib.suppress(Error), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_BEGINNING_LOCK])


def _begin(at_work: contextlib.ExitStack) -> list[int]:
    """The keys of the batches to count now, whose rows say so. No disk is waited for: a database
    that crashes forgets no more than that they were begun."""
    with transaction.atomic():
        if is_postgresql():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL synchronous_commit = off")
        keys = _choose(at_work)
        InboxBatch.objects.filter(pk__in=keys).update(attempts=F("attempts") + 1)
    return keys


def _decrement_attempts(keys: Collection[int]) -> None:
    """The attempt failed and the process lives: it was no batch that kills."""
    with contextlib.suppress(Error):
        begun = InboxBatch.objects.filter(pk__in=keys, attempts__gt=0)
        begun.update(attempts=F("attempts") - 1)


def _choose(at_work: contextlib.ExitStack) -> list[int]:
    """The first batch in order, and those that follow it as long as they are few and small; of a
    part those of the same pod. One that may kill is alone. `at_work` keeps the pod's lock."""
    rows: list[InboxBatch] = _FREE.objects()
    first = _find_first(rows, at_work)
    if first is None:
        return []
    if first.attempts >= _CUT_AFTER - 1 or first.rank == LAST:
        return [first.pk]
    alike = [row for row in rows if _is_taken_with(row, first)]
    size = 0
    keys: list[int] = []
    for row in alike:
        size += row.size
        if size > _MOST_BYTES and keys:
            is_storm = is_postgresql() and not first.is_part
            return [row.pk for row in alike[:_MOST_SORTED]] if is_storm else keys
        keys.append(row.pk)
    return keys


def _find_first(rows: Sequence[InboxBatch], at_work: contextlib.ExitStack) -> InboxBatch | None:
    """The first at whose pod no other worker is. Of what waits behind all else one worker counts
    one batch at a time, so that others' events find another worker free, and wait for no more than
    that batch."""
    for row in rows:
        if row.rank == LAST and is_postgresql():
            return row if take_pod(_BEHIND_ALL, at_work) else None
        if not row.pod or take_pod(row.pod, at_work):
            return row
    return None


def _is_taken_with(row: InboxBatch, first: InboxBatch) -> bool:
    is_alike = (row.rank, row.is_part, row.pod) == (first.rank, first.is_part, first.pod)
    return is_alike and row.attempts < _CUT_AFTER - 1


def take_pod(pod: str, at_work: contextlib.ExitStack) -> bool:
    """Whether no other worker is at the pod; then this one is until `at_work` ends."""
    keys = [_AT_WORK_LOCK, get_lock_key(pod)]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", keys)
        is_free: bool = cursor.fetchone()[0]
    if is_free:
        at_work.callback(_leave_pod, keys)
    return is_free


def _leave_pod(keys: Sequence[int]) -> None:
    with contextlib.suppress(Error), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock(%s, %s)", keys)


def _is_to_be_sorted(batches: Sequence[InboxBatch]) -> bool:
    """In a storm `_choose` takes more than one transaction counts. While parts wait, or are being
    counted, what comes after them is sorted too: it must not overtake what is of the same fault."""
    first = batches[0]
    if first.is_part or first.attempts > _CUT_AFTER or not is_postgresql():
        return False
    if sum(batch.size for batch in batches) > _MOST_BYTES and len(batches) > 1:
        return True
    return bool(_PARTS_WAITING.rows(rank=first.rank))


def _sort(batches: Sequence[InboxBatch], now: datetime) -> list[Change]:
    """In place of these batches, parts with the events of one pod each; what is of no pod, or of no
    machine that the inventory knows, is together. Counts nothing but what is no batch."""
    get_pod = graphs.get_current().get_pod
    broken: list[tuple[Mapping[str, Any], str]] = []
    wires_of: dict[str, list[Mapping[str, Any]]] = {}
    for batch in batches:
        for wire in _decode(batch, broken):
            pod = get_pod(resources.owner(str(wire.get("resource"))))
            wires_of.setdefault(pod, []).append(wire)
    first = batches[0]
    parts: list[InboxBatch] = []
    for pod, wires in wires_of.items():
        for start in range(0, len(wires), _EVENTS_OF_PART):
            some = wires[start : start + _EVENTS_OF_PART]
            parts.append(_make_part(first, len(parts), some, pod=pod))
    InboxBatch.objects.bulk_create(parts)
    InboxBatch.objects.filter(pk__in=[batch.pk for batch in batches]).delete()
    return quarantine(broken, now=now) if broken else []


def _cut(batch: InboxBatch, wires: Sequence[Mapping[str, Any]]) -> None:
    """In place of the batch, each of its events alone."""
    parts = []
    for index, wire in enumerate(wires):
        parts.append(_make_part(batch, index, [wire], pod=batch.pod, attempts=_CUT_WITH))
    InboxBatch.objects.bulk_create(parts)


def _make_part(
    batch: InboxBatch,
    index: int,
    wires: Sequence[Mapping[str, Any]],
    *,
    pod: str,
    attempts: int = 0,
) -> InboxBatch:
    payload = msgspec.json.encode(wires)
    return InboxBatch(
        receiver="",
        segment=batch.pk,
        start=index,
        rank=batch.rank,
        payload=payload,
        size=len(payload),
        recorded_at=batch.recorded_at,
        attempts=attempts,
        is_part=True,
        pod=pod,
    )


def _decode(
    batch: InboxBatch, broken: list[tuple[Mapping[str, Any], str]]
) -> Sequence[Mapping[str, Any]]:
    payload = bytes(batch.payload)
    try:
        if batch.is_part:
            return _PARTS.decode(payload)
        return spool.decode(payload, batch.receiver, batch.segment, batch.start)
    except ValueError as error:
        text = payload.decode("utf-8", "replace")
        broken.append(({"payload": text}, f"not a batch of events: {error}"))
        return ()


def _add_events(
    wires: Iterable[Mapping[str, Any]],
    events: list[FaultEvent],
    broken: list[tuple[Mapping[str, Any], str]],
) -> None:
    for wire in wires:
        _decode_wire(wire, events, broken)


def _decode_wire(
    wire: Mapping[str, Any],
    events: list[FaultEvent],
    broken: list[tuple[Mapping[str, Any], str]],
) -> None:
    try:
        events.append(faults.from_wire(dict(wire)))
    except (KeyError, TypeError, ValueError) as error:
        words = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        broken.append((wire, f"not a fault event: {words}"))
