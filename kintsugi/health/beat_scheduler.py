"""Celery's scheduler, which says when it last got on: a beat that hangs must not seem alive."""

from __future__ import annotations

import time
from typing import Any

from celery.beat import Scheduler

from kintsugi.health.reporter import Part

# Our choice: it ticks every five seconds at most. One that waits for a Redis that is away does not.
_STALLED_AFTER_S = 30.0
_ticked_s: list[float] = []


class ReportingScheduler(Scheduler):
    def tick(self, *arguments: Any, **options: Any) -> Any:
        next_s = super().tick(*arguments, **options)
        _ticked_s[:] = [time.monotonic()]
        return next_s


def is_ticking() -> bool:
    return bool(_ticked_s) and time.monotonic() - _ticked_s[0] < _STALLED_AFTER_S


def make_beat_part() -> Part:
    return Part("beat", is_working=is_ticking)
