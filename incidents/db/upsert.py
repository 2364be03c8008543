"""The statements of ingest whose speed matters, as raw SQL for PostgreSQL and SQLite. Decides
nothing.

Callers aggregate in memory and sort their keys first: two batches that share rows then lock them in
one order.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, cast
from zlib import crc32

import msgspec
from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.db.models import Field, ForeignKey, Model

from detectors.faults import Role

# Any fixed number: the key of the advisory lock under which faults are placed into incidents.
_PLACEMENT_LOCK = 0x6B696E7473756769 & 0x7FFFFFFFFFFFFFFF
# Any fixed number: the first key of the advisory locks of single pods; the second is of the name.
_POD_LOCK = 0x6B706F64
_HALF_OF_CRC = 1 << 31
# SQLite takes 32,766 parameters per statement; older builds 999.
_CHUNK = 900
FIRST_EXCERPTS = 5
LAST_EXCERPTS = 5


@dataclass(frozen=True)
class Repeat:
    """What a batch adds to one active fault. `excerpts` is how many excerpts it brought,
    `provenance` that of its last event in wire form; None: no event."""

    fault: int
    count: int
    last_seen_at: datetime
    clears_at: datetime | None
    excerpts: int
    provenance: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Excerpt:
    """`slot` 0 to 4 are the first five, 5 to 9 the last five, overwritten in turn."""

    fault: int
    slot: int
    source: str
    occurred_at: datetime
    text: str


def is_postgresql() -> bool:
    return connection.vendor == "postgresql"


class WiderLockNeeded(Exception):
    """What is placed reaches beyond the pods that the transaction has locked, to these machines."""

    def __init__(self, machines: Iterable[str]) -> None:
        self.machines = frozenset(machines)
        super().__init__(", ".join(sorted(self.machines)))


def lock_placement() -> None:
    """One placement at a time, in all pods, until the transaction ends. Never after `lock_pods` in
    one transaction: two that did would wait for each other. SQLite's transactions are exclusive
    anyway."""
    if is_postgresql():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_PLACEMENT_LOCK])


def get_lock_key(name: str) -> int:
    """A name as the second key of an advisory lock. Two names may share one: they wait more."""
    return crc32(name.encode()) - _HALF_OF_CRC


def lock_pods(pods: Collection[str]) -> None:
    """One placement at a time in these pods, and none elsewhere that locks all, until the
    transaction ends or is rolled back to a savepoint before. On PostgreSQL alone."""
    keys = sorted({get_lock_key(pod) for pod in pods})
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [_PLACEMENT_LOCK])
        cursor.execute(
            "SELECT pg_advisory_xact_lock(%s, key) FROM unnest(%s::integer[]) AS key",
            [_POD_LOCK, keys],
        )


def get_known(keys: Sequence[str]) -> set[str]:
    """Those of the keys of events that are stored already."""
    if is_postgresql():
        with connection.cursor() as cursor:
            statement = (
                "SELECT key FROM incidents_seenevent WHERE key = ANY(string_to_array(%s, ' '))"
            )
            return {row[0] for row in _fetch_rows(cursor, statement, [" ".join(keys)])}
    with connection.cursor() as cursor:
        return {
            row[0]
            for part in _split_into_chunks(keys)
            for row in _fetch_rows(
                cursor,
                f"SELECT key FROM incidents_seenevent WHERE key IN ({_format_marks(part)})",  # noqa: S608
                part,
            )
        }


def remember(keys: Sequence[str], now: datetime) -> set[str]:
    """Stores the keys of events and returns those that were not known. `keys` are sorted and
    distinct."""
    if not keys:
        return set()
    if is_postgresql():
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO incidents_seenevent (key, recorded_at) SELECT"
                " unnest(string_to_array(%s, ' ')), %s ON CONFLICT DO NOTHING RETURNING key",
                [" ".join(keys), now],
            )
            return {row[0] for row in cursor.fetchall()}
    stored = get_known(keys)
    fresh = [key for key in keys if key not in stored]
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO incidents_seenevent (key, recorded_at) VALUES (%s, %s)",
            [(key, now) for key in fresh],
        )
    return set(fresh)


def add_repeats(repeats: Sequence[Repeat]) -> None:
    """Adds counts to active faults, whose rows the caller has locked."""
    if not repeats:
        return
    with connection.cursor() as cursor:
        if is_postgresql():
            cursor.execute(
                "UPDATE incidents_fault AS f SET count = f.count + n.count, last_seen_at ="
                " GREATEST(f.last_seen_at, n.last_seen_at), clears_at = GREATEST(f.clears_at,"
                " n.clears_at), excerpts = f.excerpts + n.excerpts, last_provenance ="
                " COALESCE(n.provenance, f.last_provenance) FROM json_to_recordset(%s) AS"
                " n(fault bigint, count bigint, last_seen_at timestamptz, clears_at timestamptz,"
                " excerpts bigint, provenance jsonb) WHERE f.id = n.fault",
                [_format_json(repeats)],
            )
            return
        rows = []
        for repeat in repeats:
            last_seen_at, clears_at = (
                _format_moment(repeat.last_seen_at),
                _format_moment(repeat.clears_at),
            )
            told_by = None if repeat.provenance is None else json.dumps(repeat.provenance)
            times = (last_seen_at, clears_at, clears_at)
            rows.append((repeat.count, *times, repeat.excerpts, told_by, repeat.fault))
        cursor.executemany(
            "UPDATE incidents_fault SET count = count + %s, last_seen_at = MAX(last_seen_at, %s),"
            " clears_at = COALESCE(MAX(clears_at, %s), clears_at, %s), excerpts = excerpts + %s,"
            " last_provenance = COALESCE(%s, last_provenance) WHERE id = %s",
            rows,
        )


def put_excerpts(excerpts: Sequence[Excerpt]) -> None:
    """Writes each excerpt into its slot, over what stood there. One excerpt per fault and slot."""
    if not excerpts:
        return
    columns = "(fault_id, slot, position, source, occurred_at, excerpt)"
    over = (
        " ON CONFLICT (fault_id, slot) DO UPDATE SET source = excluded.source,"
        " occurred_at = excluded.occurred_at, excerpt = excluded.excerpt"
    )
    with connection.cursor() as cursor:
        if is_postgresql():
            cursor.execute(
                f"INSERT INTO incidents_evidence {columns} SELECT fault, slot,"  # noqa: S608
                f" CASE WHEN slot < {FIRST_EXCERPTS} THEN 'first' ELSE 'last' END,"
                " source, occurred_at, text FROM json_to_recordset(%s)"
                " AS n(fault bigint, slot smallint, source text, occurred_at timestamptz, text"
                f" text){over}",
                [_format_json(excerpts)],
            )
            return
        rows = []
        for item in excerpts:
            position, occurred_at = _format_position(item), _format_moment(item.occurred_at)
            rows.append((item.fault, item.slot, position, item.source, occurred_at, item.text))
        cursor.executemany(
            f"INSERT INTO incidents_evidence {columns} VALUES (%s, %s, %s, %s, %s, %s){over}",  # noqa: S608
            rows,
        )


def insert(rows: Sequence[Model], *, ignore_conflicts: bool = False) -> None:
    """Inserts rows of one table, whose keys the database gives. The rows know their keys then,
    unless conflicts are ignored. Raises IntegrityError for a row that breaks a constraint."""
    if not rows:
        return
    if not is_postgresql():
        type(rows[0])._default_manager.bulk_create(rows, ignore_conflicts=ignore_conflicts)
        return
    table = type(rows[0])._meta
    fields = [field for field in table.concrete_fields if not field.primary_key]
    columns = ", ".join(f'"{field.column}"' for field in fields)
    conflicts = " ON CONFLICT DO NOTHING" if ignore_conflicts else ""
    statement = (
        f'INSERT INTO "{table.db_table}" ({columns}) SELECT {columns} FROM'  # noqa: S608
        f" json_populate_recordset(NULL::{table.db_table}, %s){conflicts} RETURNING id"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [_encode_rows(rows, fields)])
        keys = [] if ignore_conflicts else cursor.fetchall()
    for row, (key,) in zip(rows, keys, strict=not ignore_conflicts):
        row.pk = key
        row._state.adding, row._state.db = False, connection.alias


def _encode_rows(rows: Sequence[Model], fields: Sequence[Field[Any, Any]]) -> str:
    """The values of the fields as they stand in memory. A row that another one names may have got
    its key only now."""
    names = [field.column for field in fields]
    get_values = attrgetter(*(field.attname for field in fields))
    links = [field for field in fields if isinstance(field, ForeignKey)]
    for row in rows:
        for link in links:
            if link.is_cached(row):
                linked = link.get_cached_value(row)
                setattr(row, link.attname, linked.pk if linked is not None else None)
    records = [dict(zip(names, get_values(row), strict=True)) for row in rows]
    return msgspec.json.encode(records).decode()


def update_columns(rows: Sequence[Model], columns: Sequence[str]) -> None:
    """Writes these columns of rows of one table, which the caller has locked: one short statement,
    run for each."""
    if not rows:
        return
    table = type(rows[0])._meta
    fields = [cast("Field[Any, Any]", table.get_field(name)) for name in columns]
    values = []
    for row in rows:
        stored = [
            field.get_db_prep_save(getattr(row, field.attname), connection) for field in fields
        ]
        values.append((*stored, row.pk))
    assignments = ", ".join(f"{field.column} = %s" for field in fields)
    with connection.cursor() as cursor:
        cursor.executemany(
            f"UPDATE {table.db_table} SET {assignments} WHERE id = %s",  # noqa: S608
            values,
        )


def update_roles(links: Sequence[tuple[int, Role, str, str]]) -> None:
    """These faults are roots or symptoms from now on, in this order: the fault's key, its role, the
    rule and the sentence that say why."""
    if not links:
        return
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE incidents_incidentfault SET role = %s, rule = %s, reason = %s WHERE fault_id"
            " = %s",
            [(str(role), rule, reason, fault) for fault, role, rule, reason in links],
        )


def choose_slots(already: int, brought: int) -> list[tuple[int, int]]:
    """Where `brought` new excerpts go when a fault has had `already`: (index among the new, slot)
    pairs.

    An excerpt that a later one of the same batch would overwrite is left out.
    """
    placed: dict[int, int] = {}
    for index in range(brought):
        ordinal = already + index
        slot = (
            ordinal
            if ordinal < FIRST_EXCERPTS
            else FIRST_EXCERPTS + (ordinal - FIRST_EXCERPTS) % LAST_EXCERPTS
        )
        placed[slot] = index
    return sorted((index, slot) for slot, index in placed.items())


def _format_json(rows: Sequence[Repeat] | Sequence[Excerpt]) -> str:
    """One text for the database to take apart: binding arrays value by value costs several times as
    much."""
    return msgspec.json.encode(rows).decode()


def _format_position(excerpt: Excerpt) -> str:
    return "first" if excerpt.slot < FIRST_EXCERPTS else "last"


def _split_into_chunks(keys: Sequence[str]) -> Iterable[Sequence[str]]:
    return (keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK))


def _format_marks(part: Sequence[str]) -> str:
    return ", ".join(["%s"] * len(part))


def _fetch_rows(
    cursor: CursorWrapper, statement: str, parameters: Sequence[Any]
) -> list[tuple[Any, ...]]:
    cursor.execute(statement, list(parameters))
    return list(cursor.fetchall())


def _format_moment(moment: datetime | None) -> Any:
    """As Django stores it in SQLite, so that the database compares like with like."""
    return connection.ops.adapt_datetimefield_value(moment)
