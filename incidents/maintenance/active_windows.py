"""The windows in force, and the nodes that are under maintenance. Reads only."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import datetime

from django.db.models import F, Q, QuerySet

from detectors import resources
from incidents.db.prepared import Given, Prepared
from incidents.evaluation.windows import SETTLING, Window, WindowKind
from incidents.models import Silence
from incidents.text.wording import format_moment

# Where windows of nodes that Slurm restarts or switches off come from.
STATES = "state"
_IN_FORCE = Prepared(
    lambda: Silence.objects.filter(ended_at=None, starts_at__lte=Given("now")).exclude(
        ends_at__lte=Given("now")
    )
)


def make_window(row: Silence) -> Window:
    kind = WindowKind(row.kind)
    window = Window(row.pk, kind, row.reason, row.author, row.starts_at, row.ends_at)
    return replace(
        window,
        resource=row.resource,
        machines=frozenset(row.machines),
        fault_type=row.fault_type,
        ended_at=row.ended_at,
    )


def list_in_force(now: datetime) -> list[Window]:
    """By the clock: one whose time has passed keeps nothing, whether or not a sweep has ended it
    yet."""
    return [make_window(row) for row in _IN_FORCE.objects(now=now)]


def list_settling(now: datetime) -> list[Window]:
    """Maintenances that have ended a moment ago. Of a node that Slurm restarts the window itself is
    drawn out (incidents.polling.polling), so that it settles in none after it."""
    rows = _get_maintenances(now).exclude(origin__startswith=f"{STATES}:")
    over = Q(ended_at__isnull=False) | Q(ends_at__lte=now)
    return [make_window(row) for row in rows.filter(over)]


def get_maintained(now: datetime) -> dict[str, str]:
    """Node by name, and the maintenance that it is under, as a sentence: no repair acts on
    these."""
    found = {}
    for window in list_in_force(now):
        if window.kind is WindowKind.MAINTENANCE:
            for owner in window.machines:
                host = resources.host_of(owner)
                if host is not None:
                    found[host] = (
                        f"{host} is under maintenance {format_end(window)} ({window.author}:"
                        f" {window.reason})"
                    )
    return found


def format_end(window: Window) -> str:
    """For a sentence: when the window ends."""
    return (
        f"until {format_moment(window.ends_at)}"
        if window.ends_at is not None
        else "until it is ended"
    )


def get_owners_under_maintenance(now: datetime) -> frozenset[str]:
    """Owners that are under maintenance, or were until a moment ago: what they still have to start
    may be of its work.

    Of a node that Slurm restarts the window itself is drawn out (incidents.polling.polling), so
    that it waits no longer.
    """
    rows = _get_maintenances(now)
    return get_machines(rows.exclude(ended_at__isnull=False, origin__startswith=f"{STATES}:"))


def _get_maintenances(now: datetime) -> QuerySet[Silence]:
    """Those in force and those that ended a moment ago, but for what ended before it began."""
    lately = Q(ended_at=None) | (Q(ended_at__gt=now - SETTLING) & Q(ended_at__gt=F("starts_at")))
    rows = Silence.objects.filter(lately, kind=str(WindowKind.MAINTENANCE), starts_at__lte=now)
    return rows.exclude(ends_at__lte=now - SETTLING)


def get_machines(rows: QuerySet[Silence]) -> frozenset[str]:
    """The machines of all these windows."""
    lists = rows.values_list("machines", flat=True)
    return frozenset(itertools.chain.from_iterable(lists))
