"""When rows in the database will fall due: what a sweep every few seconds would find, without the
seconds between.

Asked after everything that happens, so it is one statement in the SQL of a replay's own database
(SQLite).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from django.conf import settings
from django.db import connection

from incidents.models import Notification
from incidents.vocabulary.lifecycle import State
from runbooks.models import RunState

_SOONEST = """
    SELECT 'fault', MIN(clears_at) FROM incidents_fault WHERE is_active
    UNION ALL SELECT 'fault', MIN(held_until) FROM incidents_fault WHERE is_active
    UNION ALL SELECT 'run', MIN(wake_at) FROM runbooks_run WHERE state = %s
    UNION ALL SELECT 'message', MIN(due_at) FROM incidents_notification WHERE state = %s
    UNION ALL SELECT 'window', MIN(ends_at) FROM incidents_silence WHERE ended_at IS NULL
    UNION ALL SELECT 'window', MIN(starts_at) FROM incidents_silence
        WHERE ended_at IS NULL AND began_at IS NULL
    UNION ALL SELECT 'watched', MIN(restored_at) FROM incidents_incident
        WHERE state = %s AND needs_human = ''
"""


class Due(StrEnum):
    FAULT = "fault"
    RUN = "run"
    MESSAGE = "message"
    WINDOW = "window"
    WATCHED = "watched"


def iterate_moments() -> Iterator[tuple[Due, datetime]]:
    """The next wake of a run, message, hold-down, window and quiet period; some may lie in the
    past."""
    with connection.cursor() as cursor:
        cursor.execute(
            _SOONEST, [RunState.RUNNING, Notification.SendState.WAITING, State.MONITORING]
        )
        rows = cursor.fetchall()
    quiet: timedelta = settings.KINTSUGI["KINTSUGI_QUIET_PERIOD"]
    for word, text in rows:
        if text is not None:
            kind, at = Due(word), datetime.fromisoformat(text).replace(tzinfo=UTC)
            yield kind, at + quiet if kind is Due.WATCHED else at
