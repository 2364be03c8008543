"""The public face of what is done: everything that other packages may ask of runbooks. Only these functions write."""

from __future__ import annotations

from datetime import datetime

from runbooks import leasing, library
from runbooks.controls import (
    Controlled,
    ControlRefused,
    abort,
    approve,
    pause,
    release,
    resume,
    set_mode,
    stop,
)
from runbooks.fleet import heard, jobs_on, mode_of, stopped
from runbooks.job_stops import Leave, may_stop_job
from runbooks.running import advance
from runbooks.starting import plan, start_due

__all__ = [
    "ControlRefused",
    "Controlled",
    "Leave",
    "abort",
    "advance",
    "approve",
    "due",
    "heard",
    "is_due",
    "jobs_on",
    "may_stop_job",
    "mode_of",
    "pause",
    "plan",
    "release",
    "resume",
    "runbooks",
    "set_mode",
    "start_due",
    "stop",
    "stopped",
]


def due(now: datetime) -> list[int]:
    """Runs whose `wake_at` has come, or whose worker's lease ran out."""
    return list(leasing.due(now).order_by("wake_at").values_list("pk", flat=True))


def is_due(run_id: int, *, now: datetime) -> bool:
    return leasing.due(now).filter(pk=run_id).exists()


def runbooks() -> dict[str, str]:
    """Name and title of each runbook in the library."""
    return {name: book.title for name, book in library.load().items()}
