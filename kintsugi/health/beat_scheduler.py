"""Celery's scheduler, which says when it last got on: a beat that hangs, or whose Redis takes
nothing, must not seem alive."""

from __future__ import annotations

import time
from typing import Any

from celery.beat import Scheduler, SchedulingError

from kintsugi.health.reporter import Part

# Our choice: it ticks every five seconds at most. One that waits for a Redis that is away does not;
# one whose Redis refuses the connection ticks, and what it sends reaches nobody.
_STALLED_AFTER_S = 30.0
_ticked_s: list[float] = []
_refused_since_s: list[float] = []


class ReportingScheduler(Scheduler):
    def tick(self, *arguments: Any, **options: Any) -> Any:
        next_s = super().tick(*arguments, **options)
        _ticked_s[:] = [time.monotonic()]
        return next_s

    def apply_async(self, *arguments: Any, **options: Any) -> Any:
        try:
            sent = super().apply_async(*arguments, **options)
        except SchedulingError:
            _refused_since_s[:] = _refused_since_s or [time.monotonic()]
            raise
        _refused_since_s.clear()
        return sent


def is_working() -> bool:
    """It ticks, and what it sends is taken."""
    stalled_s = time.monotonic() - _STALLED_AFTER_S
    is_refused = bool(_refused_since_s) and _refused_since_s[0] <= stalled_s
    return bool(_ticked_s) and _ticked_s[0] > stalled_s and not is_refused


def make_beat_part() -> Part:
    return Part("beat", is_working=is_working)
