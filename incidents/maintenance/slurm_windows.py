"""Maintenance windows that follow what Slurm says: its reservations, and nodes that it restarts or
switches off.

Makes, moves and ends the `Silence` rows whose origin is not a person's. A window that a person
ended stays ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Q, QuerySet

from detectors import resources
from incidents.db import upsert
from incidents.db.prepared import Given, Prepared
from incidents.evaluation.windows import Draft, WindowKind, get_review_time
from incidents.maintenance import active_windows, silences
from incidents.maintenance.active_windows import STATES
from incidents.models import Incident, PlannedWork, Silence
from incidents.polling import polling
from incidents.vocabulary.changes import KINTSUGI, Change
from incidents.vocabulary.lifecycle import Trigger

SLURM = "slurm"
RESERVATIONS = "slurm"
# The flag that a reservation puts on its nodes; what else Slurm says of a node has no reservation
# behind it.
_RESERVED = "maintenance reservation"


@dataclass(frozen=True)
class Followed:
    """A window as its origin describes it now. `machines` are owners; `starts_at` may lie ahead."""

    origin: str
    machines: frozenset[str]
    reason: str
    starts_at: datetime
    ends_at: datetime


def follow(followed: Sequence[Followed], now: datetime, *, source: str) -> None:
    """Brings the windows of one origin (`slurm` and all `slurm:...`) up to what it says; those it
    names no more end.

    Takes the placement lock only when something has changed.
    """
    wanted = {}
    for window in followed:
        if window.ends_at > now and window.machines:
            wanted[window.origin] = window
    rows = list(_get_active_windows(source).order_by("pk"))
    _prolong(wanted, rows)
    is_current = all(_is_as(row, wanted.get(row.origin)) for row in rows)
    if is_current and not _list_missing(wanted, rows, source):
        return
    with transaction.atomic():
        upsert.lock_placement()
        rows = list(_get_active_windows(source))
        gone = []
        for row in rows:
            if row.origin not in wanted or _has_moved_on(row, wanted[row.origin], now):
                gone.append(row.pk)
        silences.finish(gone, by=SLURM, now=now)
        left = [row for row in rows if row.pk not in gone]
        begun = [row for row in left if _has_changed(row, wanted[row.origin], now)]
        begun += [_create_window(window, now) for window in _list_missing(wanted, left, source)]
        windows = [active_windows.make_window(row) for row in begun]
        in_force = [window for window in windows if window.is_in_force(now)]
        silences.reconsider(now, begun=in_force)


def sweep(now: datetime) -> list[Change]:
    """What time and Slurm's silence do to windows; safe to call at any time and by several at
    once."""
    follow_states(now)
    return silences.end_due(now)


def follow_states(now: datetime) -> None:
    """Windows of the nodes that Slurm says it restarts or has switched off, one for each such
    reason."""
    rows = _PLANNED.objects(now=now)
    starts = dict(_STARTS.rows())
    if not rows and not starts:
        return
    by_reason: dict[str, list[PlannedWork]] = defaultdict(list)
    for row in _list_unexplained(rows, now):
        by_reason[row.why].append(row)
    windows = []
    for reason, works in by_reason.items():
        origin = _get_origin(reason)
        machines = frozenset(resources.node(work.node) for work in works)
        starts_at = starts.get(origin) or min(work.since for work in works)
        ends_at = max(work.until for work in works)
        window = Followed(
            origin=origin,
            machines=machines,
            reason=f"Slurm says {reason}",
            starts_at=starts_at,
            ends_at=ends_at,
        )
        windows.append(window)
    follow(windows, now, source=STATES)


def _get_origin(reason: str) -> str:
    return f"{STATES}:{reason}"


def _list_unexplained(rows: Sequence[PlannedWork], now: datetime) -> Iterable[PlannedWork]:
    """Without nodes of a reservation, which has a window of its own, and those that a repair of
    ours restarts."""
    lately = Q(ended_at=None) | Q(ended_at__gte=now - polling.PLANNED_FOR)
    reservations = Silence.objects.filter(lately, origin__startswith=f"{RESERVATIONS}:")
    reserved = active_windows.get_machines(reservations)
    repairs = Incident.objects.open().filter(timeline__kind=Trigger.REPAIR_STARTED.value)
    repaired = set(repairs.values_list("owner", flat=True))
    ended = _list_ended_by_people(STATES)
    for row in rows:
        node = resources.node(row.node)
        if node in repaired or (row.why == _RESERVED and node in reserved):
            continue
        row_origin = _get_origin(row.why)
        if not any(at >= row.since and origin == row_origin for origin, at in ended):
            yield row


def _get_windows(source: str) -> QuerySet[Silence]:
    return Silence.objects.filter(Q(origin=source) | Q(origin__startswith=f"{source}:"))


def _get_active_windows(source: str) -> QuerySet[Silence]:
    return _get_windows(source).filter(ended_at=None)


_PLANNED = Prepared(lambda: PlannedWork.objects.filter(until__gt=Given("now")))
_STARTS = Prepared(lambda: _get_active_windows(STATES).values_list("origin", "starts_at"))


def _list_ended_by_people(source: str) -> list[tuple[str, datetime]]:
    rows = _get_windows(source).filter(ended_at__isnull=False)
    ends = rows.exclude(ended_by__in=(SLURM, KINTSUGI)).values_list("origin", "ended_at")
    return [(origin, at) for origin, at in ends if at is not None]


def _list_missing(
    wanted: dict[str, Followed], standing: Sequence[Silence], source: str
) -> list[Followed]:
    """Those without a row. One that a person ended while it was the same window is not made
    again."""
    there = {row.origin for row in standing}
    missing = [window for origin, window in wanted.items() if origin not in there]
    if not missing or source == STATES:
        return missing
    last_ended: dict[str, datetime] = {}
    for origin, at in _list_ended_by_people(source):
        last_ended[origin] = max(at, last_ended.get(origin, at))
    fresh = []
    for window in missing:
        ended_at = last_ended.get(window.origin)
        if ended_at is None or ended_at < window.starts_at:
            fresh.append(window)
    return fresh


def _prolong(wanted: dict[str, Followed], standing: Sequence[Silence]) -> None:
    """A later end alone changes nothing for any incident: no lock is taken for it, though it comes
    every minute."""
    for row in standing:
        window = wanted.get(row.origin)
        if window is not None and row.ends_at is not None and row.ends_at < window.ends_at:
            row.ends_at, row.review_at = window.ends_at, _get_review_time(window)
            values = {"ends_at": row.ends_at, "review_at": row.review_at}
            Silence.objects.filter(pk=row.pk, ended_at=None).update(**values)


def _is_as(row: Silence, window: Followed | None) -> bool:
    if window is None or set(row.machines) != window.machines:
        return False
    recorded = (row.starts_at, row.ends_at, row.reason)
    return recorded == (window.starts_at, window.ends_at, window.reason)


def _has_moved_on(row: Silence, window: Followed, now: datetime) -> bool:
    """A repeated reservation keeps its name and names its next time: that is another window."""
    return row.began_at is not None and window.starts_at > now


def _has_changed(row: Silence, window: Followed, now: datetime) -> bool:
    """True when machines came to a window in force, or when it is in force sooner: it begins for
    them."""
    new_machines = window.machines - set(row.machines)
    begins_anew = bool(new_machines) or window.starts_at < row.starts_at
    row.starts_at = window.starts_at
    row.ends_at = window.ends_at
    row.reason = window.reason[:255]
    row.machines = sorted(window.machines)
    row.review_at = _get_review_time(window)
    if row.began_at is None and row.starts_at <= now:
        row.began_at = now
        begins_anew = True
    row.save(update_fields=["starts_at", "ends_at", "reason", "machines", "review_at", "began_at"])
    return begins_anew


def _create_window(window: Followed, now: datetime) -> Silence:
    row = Silence(kind=WindowKind.MAINTENANCE.value, author=SLURM, recorded_at=now)
    row.machines = sorted(window.machines)
    row.reason = window.reason[:255]
    row.origin = window.origin[:128]
    row.starts_at = window.starts_at
    row.began_at = now if window.starts_at <= now else None
    row.ends_at = window.ends_at
    row.review_at = _get_review_time(window)
    row.save()
    return row


def _get_review_time(window: Followed) -> datetime | None:
    return get_review_time(
        Draft(WindowKind.MAINTENANCE, window.reason, window.starts_at, window.ends_at)
    )
