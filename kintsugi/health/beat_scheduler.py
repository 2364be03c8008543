"""Celery's scheduler, which says when it last got on: a beat that hangs must not seem alive. One
whose Redis takes nothing says so, in one line and with its heartbeat."""

from __future__ import annotations

import logging
import time
from typing import Any

from celery.beat import Scheduler, SchedulingError
from kombu.exceptions import OperationalError

from detectors.transports import error_text
from kintsugi.health import broker
from kintsugi.health.reporter import ProcessPart

_log = logging.getLogger(__name__)
# Our choice: it ticks every five seconds at most.
_STALLED_AFTER_S = 30.0
_ticked_s: list[float] = []


class ReportingScheduler(Scheduler):
    def tick(self, *arguments: Any, **options: Any) -> Any:
        next_s = super().tick(*arguments, **options)
        _ticked_s[:] = [time.monotonic()]
        return next_s

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Sends one task. Celery's own writes a traceback for each that is not taken."""
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except SchedulingError as error:
            cause = error.__context__
            if not isinstance(cause, OperationalError | OSError):
                _log.exception("%s is not sent", entry.task)
                return
            broker.OUTAGE.begin(error_text.format_reason(cause).rstrip("."))
        else:
            broker.OUTAGE.end()


def is_working() -> bool:
    """It ticks, or it waits for Redis, of which its part tells."""
    is_ticking = bool(_ticked_s) and _ticked_s[0] > time.monotonic() - _STALLED_AFTER_S
    return is_ticking or broker.OUTAGE.since is not None


def make_beat_part() -> ProcessPart:
    return ProcessPart("beat", is_working=is_working, find_trouble=broker.find_trouble)
