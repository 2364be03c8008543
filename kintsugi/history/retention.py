"""Keeps the database to the time that KINTSUGI_KEEP says: what ended before is written to files
first, and removed when it is on the disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from django.db import transaction

from incidents.statistics import kept_period
from kintsugi.history import files
from kintsugi.history.units import KINDS, Kind, delete_units, read_units

# Our choice: a transaction locks and removes some thousand rows, and is over within a second.
BATCH = 100
# Of one call of the beat, of each kind: an hour's share never holds up the queue for long.
MOST_AT_ONCE = 2_000


def prune(
    directory: Path, before: datetime, *, now: datetime, most: int | None = None
) -> Mapping[str, int]:
    """Exports and removes what ended before; how many units of each kind went. Safe to break off
    at any point and to call again.

    most: of each kind; None: all. Raises files.DirectoryInUse, and OSError where the files cannot
    be written: then what they were to hold stays in the database.
    """
    removed: Counter[str] = Counter()
    with files.lock_directory(directory):
        for kind in KINDS:
            removed[kind.name] = _prune_kind(kind, directory, before, now=now, most=most)
    return {name: count for name, count in removed.items() if count}


def _prune_kind(
    kind: Kind, directory: Path, before: datetime, *, now: datetime, most: int | None
) -> int:
    removed = 0
    while most is None or removed < most:
        gone = _prune_batch(kind, directory, before, now=now)
        if not gone:
            break
        removed += gone
    return removed


def _prune_batch(kind: Kind, directory: Path, before: datetime, *, now: datetime) -> int:
    """One transaction: nothing is added to what is locked between the file and the removal."""
    with transaction.atomic():
        units = read_units(kind, before, most=BATCH, is_locked=True)
        if not units:
            return 0
        files.append(directory, ((unit.ended_at, unit.to_line()) for unit in units))
        # Numbers of the time before are incomplete from the first removal on.
        kept_period.begin_at(before, now=now)
        delete_units(kind, units)
    return len(units)


def export(directory: Path, before: datetime) -> Mapping[str, int]:
    """Writes what ended before to files and removes nothing; how many units of each kind. A
    directory that holds an export already is added to."""
    written: Counter[str] = Counter()
    with files.lock_directory(directory):
        for kind in KINDS:
            after = 0
            while units := read_units(kind, before, most=BATCH, after=after):
                files.append(directory, ((unit.ended_at, unit.to_line()) for unit in units))
                written[kind.name] += len(units)
                after = units[-1].number
    return dict(written)


def count_past(before: datetime) -> Mapping[str, int]:
    """How many units of each kind `prune` would begin with; incidents that others repeat follow
    those."""
    counts = {kind.name: kind.filter_past(before).count() for kind in KINDS}
    return {name: count for name, count in counts.items() if count}
