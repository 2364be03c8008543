"""How each part of Kintsugi gets on, for the people who keep it running. Reads only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from detectors import resources
from incidents.checks import own_health
from incidents.checks import own_health_texts as texts
from incidents.checks.heartbeats import is_fresh, list_latest
from incidents.models import Heartbeat


class PartState(StrEnum):
    RUNNING = "running"
    DEGRADED = "degraded"
    """It runs, and something keeps it from its work."""
    SILENT = "silent"
    """It has written nothing for a minute."""


_ORDER = (PartState.SILENT, PartState.DEGRADED, PartState.RUNNING)


@dataclass(frozen=True)
class PartStatus:
    """A part on a host, by the process that wrote last. `trouble` says what is wrong and what to
    do, and is empty while it runs. Sizes are bytes, `clock_ahead_s` is seconds before the
    database's clock; None: it did not say."""

    part: str
    host: str
    pid: int
    version: str
    state: PartState
    began_at: datetime
    seen_at: datetime
    queues: tuple[str, ...] = ()
    trouble: str = ""
    backlog_bytes: int | None = None
    backlog_since: datetime | None = None
    directory: str = ""
    disk_free: int | None = None
    disk_size: int | None = None
    clock_ahead_s: float | None = None

    @property
    def backlog(self) -> str:
        """What a receiver has on disk and has not delivered; empty: nothing, or it is none."""
        return texts.format_size(self.backlog_bytes) if self.backlog_bytes else ""

    @property
    def disk(self) -> str:
        if self.disk_free is None or self.disk_size is None:
            return ""
        free, size = texts.format_size(self.disk_free), texts.format_size(self.disk_size)
        return f"{free} of {size} free"


def list_part_statuses(now: datetime) -> list[PartStatus]:
    """All that were seen within a day; what does not get on comes first."""
    rows = list_latest()
    statuses = [_make_status(row, rows, now) for row in rows]
    return sorted(statuses, key=lambda status: _ORDER.index(status.state))


def list_part_troubles(now: datetime) -> list[str]:
    """A sentence for each part of the site that is silent, or that is kept from its work. Empty:
    all that was seen within a day gets on, or nothing was seen."""
    return [status.trouble for status in list_part_statuses(now) if status.trouble]


def _make_status(row: Heartbeat, rows: list[Heartbeat], now: datetime) -> PartStatus:
    state, trouble = PartState.RUNNING, ""
    if not is_fresh(row, now):
        state, trouble = PartState.SILENT, own_health.describe_silence(row, rows, now)
    elif row.trouble:
        state, trouble = PartState.DEGRADED, texts.describe_degraded_part(row)
    part = resources.printable(row.part)
    host = resources.printable(row.host)
    version = resources.printable(row.version)
    directory = resources.printable(row.directory)
    queues = tuple(map(resources.printable, row.queues))
    printable_trouble = resources.printable(trouble)
    process = PartStatus(
        part=part,
        host=host,
        pid=row.pid,
        version=version,
        state=state,
        began_at=row.began_at,
        seen_at=row.seen_at,
        queues=queues,
    )
    return replace(
        process,
        trouble=printable_trouble,
        backlog_bytes=row.backlog_bytes,
        backlog_since=row.backlog_since,
        directory=directory,
        disk_free=row.disk_free,
        disk_size=row.disk_size,
        clock_ahead_s=row.clock_ahead_s,
    )
