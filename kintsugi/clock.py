"""The time by which Kintsugi works: the database's, so that a lease and what is due mean the same
on every machine.

Between two looks at the database it goes on by the seconds since this machine was started, which
nobody sets. A process that has not asked the database yet goes by its machine's own clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection

# Our choice: once the database's clock was set back, whoever has not asked it since dates what it
# writes by the hour that never was. One read of 0.2 ms.
_ASKED_AGAIN_AFTER_S = 1.0
# An answer that took this long says too little about when it was given.
_SLOWEST_ANSWER_S = 1.0


@dataclass(frozen=True)
class _Reading:
    """What the database's clock said, and what this machine's two clocks said at that moment."""

    at: datetime
    own_at: datetime
    uptime_s: float


_readings: list[_Reading] = []
"""The latest alone; none before the database was asked."""


def now() -> datetime:
    if not _readings:
        return datetime.now(UTC)
    reading = _readings[-1]
    return reading.at + timedelta(seconds=_get_uptime_s() - reading.uptime_s)


def get_difference() -> timedelta | None:
    """How far this machine's own clock was ahead of the database's; None: not known."""
    if not _readings:
        return None
    reading = _readings[-1]
    return reading.own_at - reading.at


def synchronise() -> None:
    """Asks the database for its time. Raises the database's errors."""
    before_s = _get_uptime_s()
    at = _ask_database()
    after_s = _get_uptime_s()
    if after_s - before_s > _SLOWEST_ANSWER_S and _readings:
        return
    _readings[:] = [_Reading(at, datetime.now(UTC), (before_s + after_s) / 2)]


def is_old() -> bool:
    """Whether the database is to be asked again."""
    return not _readings or _get_uptime_s() - _readings[-1].uptime_s > _ASKED_AGAIN_AFTER_S


def forget() -> None:
    """From now on by this machine's own clock, until the database is asked."""
    _readings.clear()


def _ask_database() -> datetime:
    """SQLite has no clock but the machine's."""
    if connection.vendor != "postgresql":
        return datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        at: datetime = cursor.fetchone()[0]
    return at


def _get_uptime_s() -> float:
    """Suspended time counts, other than by `time.monotonic`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
