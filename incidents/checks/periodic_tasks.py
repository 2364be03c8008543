"""Who does the work that has a period of its own, and when it last began. The only writer of
`PeriodicTask`.

The beat calls each task once a period. Two beats, a second worker and a message delivered late do
no harm: one process claims the task's row by a compare-and-swap, all others do nothing. A process
that dies holds the row until its lease ends; then the next one takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from detectors.faults import EventKind, FaultEvent
from incidents.correlation.conclusions import make_conclusion
from incidents.db.prepared import Given, Prepared
from incidents.models import Fault, PeriodicTask

# Longer than Slurm's slowest answers take together (runbooks.slurm.client: 30 s and 60 s each).
LEASE = timedelta(seconds=150)
# A beat is never exact: what comes this share of its period early is done, what comes earlier has
# been done just now by the call of another beat.
_EARLY_SHARE = 1 / 20
# Our choice: a process that died is taken over from well before.
LATE = timedelta(minutes=5)
FAULT_TYPE = "kintsugi.clock_late"
RESOURCE = "kintsugi/clock"
_TIMES = Prepared(
    lambda: PeriodicTask.objects.filter(name=Given("name")).values_list("began_at", "leased_until")
)


def run_once(
    name: str, work: Callable[[], None], *, clock: Callable[[], datetime], every: timedelta
) -> bool:
    """Does the work, unless it was done within the period or another process is at it."""
    began_at = clock()
    if not claim(name, began_at, every=every):
        return False
    try:
        work()
    finally:
        release(name, began_at)
    return True


def claim(name: str, now: datetime, *, every: timedelta) -> bool:
    """Whether the caller does it now. Mostly it was done just now, which one read says: no call
    waits for a write then."""
    row = next(iter(_TIMES.rows(name=name)), None)
    if row is None:
        PeriodicTask.objects.bulk_create([PeriodicTask(name=name)], ignore_conflicts=True)
        row = (None, None)
    began_at, leased_until = row
    if not _is_due(began_at, now, every) or not _is_free(leased_until, now):
        return False
    same = PeriodicTask.objects.filter(name=name, began_at=began_at, leased_until=leased_until)
    return same.update(began_at=now, leased_until=now + LEASE) == 1


def _is_due(began_at: datetime | None, now: datetime, every: timedelta) -> bool:
    """What has begun ahead of the clock did so before the clock was set back."""
    period = every * (1 - _EARLY_SHARE)
    return began_at is None or began_at <= now - period or began_at > now + every


def _is_free(leased_until: datetime | None, now: datetime) -> bool:
    return leased_until is None or leased_until <= now or leased_until > now + LEASE


def release(name: str, began_at: datetime) -> None:
    """By its holder: whoever was late has lost it to the one who took over."""
    PeriodicTask.objects.filter(name=name, began_at=began_at).update(leased_until=None)


def get_late(names: Collection[str], now: datetime) -> list[str]:
    """Those that have not begun for long, or never."""
    in_time = PeriodicTask.objects.filter(name__in=names, began_at__gt=now - LATE)
    return sorted(set(names) - set(in_time.values_list("name", flat=True)))


def evaluate_lateness(late_tasks: Collection[str], now: datetime) -> list[FaultEvent]:
    """The beginning or the end of the fault that periodic work is not done, if this is either."""
    is_active = Fault.objects.active().filter(fault_type=FAULT_TYPE).exists()
    if late_tasks and not is_active:
        names = ", ".join(sorted(late_tasks))
        text = (
            f"Periodic work of Kintsugi's own has not begun for {LATE.seconds // 60} min: {names}."
            " It is done by a worker of the queue `slurm`: see that one runs (systemctl status"
            " kintsugi-slurm) and what its journal says."
        )
        return [make_conclusion(EventKind.RAISED, FAULT_TYPE, RESOURCE, text=text, now=now)]
    if is_active and not late_tasks:
        text = "all periodic work is done in time again"
        return [make_conclusion(EventKind.CLEARED, FAULT_TYPE, RESOURCE, text=text, now=now)]
    return []
