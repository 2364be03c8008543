"""Whether periodic work is done: a queue that nobody serves is a fault of Kintsugi's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors.faults import FaultEvent
from incidents.checks import periodic_tasks
from incidents.checks.overload import Pace

# Our choice: after a stop of the beat all is late until each task has come once.
_CATCHES_UP = timedelta(minutes=3)


@dataclass
class ClockWatch:
    """Since when this process has seen work late, without a stop of the beat in between: after one
    all of it is late for a moment."""

    names: Sequence[str]
    late_since: datetime | None = None
    evaluated_at: datetime | None = None

    def evaluate(self, now: datetime, *, pace: Pace) -> list[FaultEvent]:
        """The beginning or the end of the fault; nothing of a process that is new itself."""
        if pace.up_for <= periodic_tasks.LATE:
            return []
        if self.evaluated_at is not None and now - self.evaluated_at > _CATCHES_UP:
            self.late_since = None
        self.evaluated_at = now
        late = periodic_tasks.get_late(self.names, now)
        if not late:
            self.late_since = None
            return periodic_tasks.evaluate_lateness([], now)
        if self.late_since is None:
            self.late_since = now
        has_lasted = now - self.late_since >= _CATCHES_UP
        return periodic_tasks.evaluate_lateness(late, now) if has_lasted else []
