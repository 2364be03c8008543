"""The inbox: what receivers have handed over and ingest has not counted yet. Any number of workers
take from it, each batch once.

A batch is taken, counted and removed in one transaction: a worker that dies leaves it to the next.
On PostgreSQL workers pass over each other's batches; SQLite has one writer at a time anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Count, Min, Sum

from detectors import faults
from detectors.faults import FaultEvent
from detectors.receivers import spool
from detectors.receivers.delivery import Backlog, PositionMoved
from detectors.receivers.spool import Batch, Extent
from incidents.db.upsert import is_postgresql
from incidents.models import InboxBatch, SpoolMark, SpoolPosition
from incidents.triage.ingest import ingest, quarantine
from incidents.vocabulary.changes import Change

URGENT, ORDINARY = 0, 1
# Taken together at most: what one transaction of ingest is good for.
_MOST_BYTES = 256 * 1024
_MOST_BATCHES = 64
_NOTHING = timedelta(0)
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
    return InboxBatch.objects.filter(recorded_at__lt=before).exists()


def ingest_waiting(now: datetime) -> list[Change] | None:
    """Counts the most urgent batches that no other worker has taken, and removes them. None: there
    are none. Raises OperationalError when the database is at fault, and then nothing was counted.
    """
    with transaction.atomic():
        batches = _apply()
        if not batches:
            return None
        events: list[FaultEvent] = []
        broken: list[tuple[Mapping[str, Any], str]] = []
        for batch in batches:
            _decode(batch, events, broken)
        changes = quarantine(broken, now=now) if broken else []
        changes += ingest(events, now=now)
        InboxBatch.objects.filter(pk__in=[batch.pk for batch in batches]).delete()
    return changes


def ingest_wires(wires: Sequence[Mapping[str, Any]], *, now: datetime) -> list[Change]:
    """The same for events that stand in no inbox."""
    events: list[FaultEvent] = []
    broken: list[tuple[Mapping[str, Any], str]] = []
    for wire in wires:
        _decode_wire(wire, events, broken)
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
    rank = URGENT if batch.is_urgent else ORDINARY
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


def _apply() -> list[InboxBatch]:
    """The first batch in order, and those that follow it as long as they are few and small."""
    free = InboxBatch.objects.order_by("rank", "id").select_for_update(skip_locked=True)
    taken = list(free[:1])
    if not taken or taken[0].size >= _MOST_BYTES:
        return taken
    size = taken[0].size
    first = taken[0].pk
    sizes = InboxBatch.objects.order_by("rank", "id").exclude(pk=first)
    wanted = []
    for pk, more in sizes.values_list("pk", "size")[:_MOST_BATCHES]:
        size += more
        if size > _MOST_BYTES:
            break
        wanted.append(pk)
    return taken + list(free.filter(pk__in=wanted))


def _decode(
    batch: InboxBatch,
    events: list[FaultEvent],
    broken: list[tuple[Mapping[str, Any], str]],
) -> None:
    payload = bytes(batch.payload)
    try:
        wires = spool.decode(payload, batch.receiver, batch.segment, batch.start)
    except ValueError as error:
        text = payload.decode("utf-8", "replace")
        broken.append(({"payload": text}, f"not a batch of events: {error}"))
        return
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
