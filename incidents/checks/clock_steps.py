"""The clock by which Kintsugi works was set back: without a hand, nothing would be polled, sent or
repaired until it has caught up, and a fault that comes again would seem older than its own end.

What was noted as done or due in the hour that never was is moved back by it. The step shows in the
heartbeats: every process writes one in ten seconds, so the latest is the time that it was before,
and none overwrites one that lies ahead.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import F, Model

from detectors.faults import EventKind, FaultEvent
from incidents.checks.heartbeats import CLOCK_TOLERANCE
from incidents.correlation.conclusions import make_conclusion
from incidents.models import (
    Fault,
    FleetLook,
    Heartbeat,
    Incident,
    Node,
    NodeReport,
    Notification,
    NotificationChannel,
    Poll,
    PollChunk,
    PollPause,
)
from incidents.text.wording import format_duration, format_moment

FAULT_TYPE = "kintsugi.clock_set_back"
RESOURCE = "kintsugi/clock"

_Columns = tuple[str, ...]
# What something waits for, and what events are compared with. What people wrote, and what a page
# shows as history, stays.
_MOVED: tuple[tuple[type[Model], _Columns], ...] = (
    (Fault, ("raised_at", "observed_at", "last_seen_at", "cleared_at", "held_until", "clears_at")),
    (Node, ("boot_seen_at",)),
    (Incident, ("held_until", "repaired_at")),
    (Notification, ("due_at", "leased_until")),
    (NotificationChannel, ("open_at",)),
    (PollChunk, ("next_poll_at", "leased_until", "polled_at")),
    (Poll, ("next_poll_at", "leased_until", "polled_at")),
    (NodeReport, ("looked_at",)),
    (PollPause, ("until",)),
    (FleetLook, ("asked_at", "answered_at", "silent_since")),
    (Heartbeat, ("seen_at", "unbroken_since", "began_at", "backlog_since")),
)


def get_step_back(now: datetime) -> timedelta | None:
    """By how much the clock was set back since the last heartbeat; None: it was not.

    Within a transaction: the heartbeats that tell it stay locked, so that one process moves what
    it dated.
    """
    ahead = Heartbeat.objects.filter(seen_at__gt=now + CLOCK_TOLERANCE).order_by("pk")
    seen = [row.seen_at for row in ahead.select_for_update()]
    return max(seen) - now if seen else None


def move_times_back(step: timedelta, now: datetime) -> list[FaultEvent]:
    """Moves every time that lies ahead, and says so. The fault ends when it has been quiet."""
    for model, columns in _MOVED:
        for name in columns:
            ahead = model._default_manager.filter(**{f"{name}__gt": now})
            ahead.update(**{name: F(name) - step})
    text = (
        f"The clock of Kintsugi's database was set back by {format_duration(step)}; it is now"
        f" {format_moment(now)}. Polls, messages, runs and hold-downs that were due by the old"
        " time have"
        " been moved with it and go on. Incidents of that time show times that lie ahead. See that"
        " the machine of the database keeps its time (`chronyc tracking`)."
    )
    return [make_conclusion(EventKind.RAISED, FAULT_TYPE, RESOURCE, text=text, now=now)]
