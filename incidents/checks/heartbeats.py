"""Who of Kintsugi's own processes is alive: each writes its rows every ten seconds. The only writer
of `Heartbeat`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from incidents.db.prepared import Prepared
from incidents.models import Heartbeat

WRITTEN_EVERY = timedelta(seconds=10)
# Our choice: five writes may be missed, by a slow statement or a busy machine.
SILENT_AFTER = timedelta(seconds=60)
# Our choice: whoever missed two writes was cut off from the database, and perhaps all others too.
_GAP = timedelta(seconds=30)
# Our choice: more than two processes' readings of the database's clock lie apart, and less than
# anything waits for.
CLOCK_TOLERANCE = timedelta(seconds=5)
# A process that is gone for a day is no longer part of the site.
FORGOTTEN_AFTER = timedelta(days=1)
_ROWS = Prepared(lambda: Heartbeat.objects.order_by("host", "part", "seen_at"))


@dataclass(frozen=True)
class Process:
    """Who writes."""

    host: str
    pid: int
    version: str
    began_at: datetime


@dataclass(frozen=True)
class DatabaseView:
    """How the database looks from a process, where it knows. `clock_ahead`: how far its machine's
    clock is before the database's; `write_time`: what the quickest of its last writes took."""

    clock_ahead: timedelta | None = None
    write_time: timedelta | None = None


_UNKNOWN_VIEW = DatabaseView()


@dataclass(frozen=True)
class PartBacklog:
    """What a part has not passed on yet, in bytes; `since` when nothing of it moves, None: it
    moves, or there is none."""

    size: int
    since: datetime | None


@dataclass(frozen=True)
class Disk:
    """The file system of a directory; `free` and `size` in bytes."""

    directory: str
    free: int
    size: int


@dataclass(frozen=True)
class PartReport:
    """What a process says of one part that it does: that it runs, what waits there, and what keeps
    it from its work."""

    part: str
    queues: Sequence[str] = ()
    backlog: PartBacklog | None = None
    disk: Disk | None = None
    trouble: str = ""


def write(
    process: Process,
    reports: Sequence[PartReport],
    now: datetime,
    view: DatabaseView = _UNKNOWN_VIEW,
) -> None:
    """The rows of one process; those of processes that are long gone are removed.

    A row that lies ahead was written before the clock was set back, and is the only sign of it: it
    stays as it is until `clock_steps` has read it and moved it back with all other times.
    """
    with transaction.atomic():
        for report in reports:
            _write_row(process, report, view, now)
        Heartbeat.objects.filter(seen_at__lte=now - FORGOTTEN_AFTER).delete()


def _write_row(process: Process, report: PartReport, view: DatabaseView, now: datetime) -> None:
    of_part = Heartbeat.objects.filter(part=report.part, host=process.host)
    row = of_part.filter(pid=process.pid).select_for_update().first()
    if row is not None and row.seen_at > now + CLOCK_TOLERANCE:
        return
    if row is None:  # those that it stands in for need no row
        of_part.filter(seen_at__lte=now - SILENT_AFTER).delete()
        row = Heartbeat(part=report.part, host=process.host, pid=process.pid)
        row.unbroken_since = now
    elif now - row.seen_at > _GAP:
        row.unbroken_since = now
    row.version = process.version
    row.began_at = process.began_at
    row.seen_at = now
    row.queues = list(report.queues)
    row.backlog_bytes = report.backlog.size if report.backlog else None
    row.backlog_since = report.backlog.since if report.backlog else None
    row.directory = report.disk.directory if report.disk else ""
    row.disk_free = report.disk.free if report.disk else None
    row.disk_size = report.disk.size if report.disk else None
    if not report.trouble:
        row.trouble_since = None
    elif row.trouble_since is None:
        row.trouble_since = now
    row.trouble = report.trouble
    row.clock_ahead_s = _to_seconds(view.clock_ahead)
    row.write_s = _to_seconds(view.write_time)
    row.save()


def _to_seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


def list_latest() -> list[Heartbeat]:
    """Of each part on each host the row that was written last, by host and part."""
    latest: dict[tuple[str, str], Heartbeat] = {}
    for row in _ROWS.objects():
        latest[row.host, row.part] = row
    return list(latest.values())


def is_fresh(row: Heartbeat, now: datetime) -> bool:
    return now - row.seen_at < SILENT_AFTER


def is_witness(row: Heartbeat, now: datetime) -> bool:
    """Whether it has written for so long without a gap that all others had their chance to."""
    return now - row.seen_at <= _GAP and now - row.unbroken_since >= SILENT_AFTER
