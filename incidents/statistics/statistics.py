"""Reads what reliability is computed from: a fixed number of queries, times as numbers, no object
per row.

`summary` is the door: the console's home page and `kintsugi reliability` show what it returns. Its
`overall` and each of `classes` carry `mtbf`, `mttr` with intervals and a ready `sentence`; `notice`
is not empty when the inventory is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.db.models import Case, F, Q, QuerySet, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from detectors.faults import ClearRule, Recovery
from incidents.db.prepared import Hours
from incidents.faults.fault_views import USER_REPORT
from incidents.models import Gpu, Incident, Node, Silence, Switch
from incidents.reliability.estimates import Floats
from incidents.reliability.proportions import CONFIDENCE
from incidents.reliability.summary import (
    COMPONENTS,
    REASONS,
    RECOVERIES,
    UNIT_ORDER,
    Codes,
    ExposureUnit,
    Figures,
    Incidents,
    ServiceHistory,
    StudyPeriod,
    Summary,
    compute_all_figures,
    count_left_out,
)
from incidents.reliability.texts import format_sentence
from incidents.statistics import kept_period
from incidents.vocabulary.lifecycle import State

_HOUR_S = 3600.0
NOT_FAILURES = (State.FALSE_POSITIVE.value, State.DUPLICATE.value)
_SWITCH_UNITS = {
    "leaf": ExposureUnit.INTERCONNECT_SWITCH,
    "spine": ExposureUnit.INTERCONNECT_SWITCH,
    "storage": ExposureUnit.STORAGE_SWITCH,
}
NO_INVENTORY = (
    "The inventory holds no nodes, so there are no hours to divide by: load it with"
    " `kintsugi inventory import FILE.toml`."
)


# When the root was last seen, where it cleared by going quiet: then its incident "ended" no later.
_WENT_QUIET = Case(
    When(root_fault__clears=str(ClearRule.AFTER_QUIET), then=F("root_fault__last_seen_at"))
)
_PROVISIONAL, _PROGRAM = REASONS.index("provisional"), REASONS.index("program")
# Columns that an analysis takes as they are read.
_TIMES = ("onset", "last_good", "opened", "acknowledged", "out")
_IS_UNSEEN_REPORT = Q(
    fault_type=USER_REPORT,
    has_platform_signal=False,
    is_confirmed=False,
    recovery__in=(str(Recovery.NONE), str(Recovery.SELF_CLEARED)),
)
# A job that lost its node is Slurm's word for the node; any other fault of a job is its program's.
_IS_OF_JOB = Q(fault_type__startswith="job.") & ~Q(fault_type="job.node_fail")
# Why an incident is no failure of the cluster, as its place in `REASONS`; machines outside the
# inventory come on top. What outlasts its window of planned work is announced, and is a failure
# like any other.
_LEFT_OUT = Case(
    When(
        Q(fault_type__startswith="kintsugi.") | Q(fault_type__startswith="detector."),
        then=REASONS.index("kintsugi"),
    ),
    When(silence__kind=Silence.Kind.MAINTENANCE, announced_at=None, then=REASONS.index("planned")),
    When(_IS_OF_JOB | _IS_UNSEEN_REPORT, then=_PROGRAM),
    default=-1,
)


def compute_summary(since: datetime | None, until: datetime) -> Summary:
    """Reliability from `since` (None: since the first machine entered service) to `until`, both
    timezone-aware.

    Raises ValueError when `since` is not before `until`. Of the time before the kept period
    (KINTSUGI_KEEP) the database knows too little: it is left out, and the notice says so.
    """
    incidents, fleet = _load_incidents(since), _load_fleet()
    asked = _start(incidents, fleet, until) if since is None else since
    kept_since = kept_period.get_begin()
    begin = asked if kept_since is None else min(max(asked, kept_since), until)
    if since is not None and since >= until:
        raise ValueError(f"since {since.isoformat()} is not before until {until.isoformat()}")
    window = StudyPeriod(_to_hours(begin), _to_hours(until), timezone.get_default_timezone())
    rows = [
        replace(row, sentence=format_sentence(row))
        for row in compute_all_figures(incidents, fleet, window)
    ]
    overall, *classes = rows
    has_nodes = fleet.starts[ExposureUnit.NODE].size > 0
    notice = "" if has_nodes else NO_INVENTORY
    if begin > asked:
        notice = f"{notice} {_format_kept(begin)}".strip()
    return Summary(
        since=begin,
        until=until,
        overall=overall,
        classes=tuple(classes),
        notice=notice,
        left_out=count_left_out(incidents, window),
    )


def _format_kept(begin: datetime) -> str:
    return (
        f"The numbers begin at {begin:%Y-%m-%d}: what ended before has left the database for the"
        " files of KINTSUGI_HISTORY_DIR."
    )


def _to_hours(moment: datetime) -> float:
    return round(moment.timestamp() * 1000) / 1000 / _HOUR_S


def _start(incidents: Incidents, fleet: ServiceHistory, until: datetime) -> datetime:
    """When the first machine entered service or the first incident began, whichever was earlier."""
    columns = [incidents.onset, *fleet.starts.values()]
    earliest = [float(np.nanmin(times)) for times in columns if np.isfinite(times).any()]
    first = min(earliest, default=_to_hours(until))
    return min(datetime.fromtimestamp(first * _HOUR_S, UTC), until)


def _make_column(values: Iterable[float | None]) -> Floats:
    """Times as hours, to the millisecond: SQLite's day numbers carry no more."""
    hours = np.array(list(values), dtype=float)
    return np.round(hours * _HOUR_S * 1000) / 1000 / _HOUR_S


def _load_incidents(since: datetime | None) -> Incidents:
    """Incidents as columns; onset is the device's clock, a resolved incident without restored_at
    ended then. Those that were over before `since` say nothing of the time from then on."""
    columns = _load_columns(since)
    owners = columns["owner"]
    owner_numbers = {name: number for number, name in enumerate(dict.fromkeys(owners))}
    units, provisional = _load_machines()
    owner_units = {name: units.get(name, -1) for name in owner_numbers}
    restored = _make_column(columns["restored"])
    reasons = np.array(columns["left_out"], dtype=np.int8)
    is_outside = np.array([name in provisional for name in owners], dtype=bool)
    reasons[is_outside & ((reasons < 0) | (reasons == _PROGRAM))] = _PROVISIONAL
    states = columns["state"]
    is_failure = np.array([state not in NOT_FAILURES for state in states], dtype=bool)
    owner_codes = np.array([owner_numbers[name] for name in owners], dtype=np.int64)
    component_codes = _encode_words(columns["component"], _number_words(COMPONENTS))
    recovery_codes = _encode_words(columns["recovery"], _number_words(RECOVERIES))
    is_quiet = restored <= _make_column(columns["quiet"])
    times = {name: _make_column(columns[name]) for name in _TIMES}
    return Incidents(
        component=component_codes,
        is_failure=is_failure,
        left_out=reasons,
        is_quiet=is_quiet,
        owner=owner_codes,
        owner_unit=_encode_words(owners, owner_units),
        recovery=recovery_codes,
        restored=restored,
        **times,
    )


def _load_columns(since: datetime | None) -> dict[str, tuple[Any, ...]]:
    """The columns of every incident that was not over before `since` (None: of all), in one order
    of rows. One query."""
    texts = ("component", "state", "owner", "recovery")
    restored_or_closed = Coalesce(F("restored_at"), F("closed_at"))
    times = {
        "onset": "onset_at",
        "opened": "opened_at",
        "acknowledged": "acknowledged_at",
        "out": "out_of_service_at",
        "restored": restored_or_closed,
        "quiet": _WENT_QUIET,
        "last_good": "last_known_good_at",
    }
    expressions: dict[str, Any] = {name: name for name in texts}
    for name, expression in times.items():
        expressions[name] = Hours(expression)
    expressions["left_out"] = _LEFT_OUT
    incidents = Incident.objects.order_by()
    if since is not None:
        is_later = Q(onset_at__gte=since) | Q(closed_at__gte=since) | Q(closed_at=None)
        incidents = incidents.filter(is_later)
    rows = list(incidents.values_list(*expressions.values()))
    if not rows:
        return dict.fromkeys(expressions, ())
    return dict(zip(expressions, zip(*rows, strict=True), strict=True))


def _number_words(words: Iterable[object]) -> dict[str, int]:
    return {str(word): number for number, word in enumerate(words)}


def _encode_words(words: Iterable[str], numbers: dict[str, int]) -> Codes:
    return np.array([numbers[word] for word in words], dtype=np.int8)


def _load_machines() -> tuple[dict[str, int], set[str]]:
    """By resource path: the unit of each machine of the inventory, and the machines that only spoke
    to us."""
    nodes = Node.objects.values_list("name", "is_provisional")
    switches = Switch.objects.values_list("name", "is_provisional", "role")
    units: dict[str, int] = {}
    provisional: set[str] = set()
    for name, is_provisional in nodes:
        if is_provisional:
            provisional.add(f"node/{name}")
        else:
            units[f"node/{name}"] = UNIT_ORDER.index(ExposureUnit.NODE)
    for name, is_provisional, role in switches:
        if is_provisional:
            provisional.add(f"switch/{name}")
        elif role in _SWITCH_UNITS:
            units[f"switch/{name}"] = UNIT_ORDER.index(_SWITCH_UNITS[role])
    return units, provisional


def _load_fleet() -> ServiceHistory:
    nodes = Node.objects.inventoried()
    switches = Switch.objects.inventoried()
    interconnect_switches = switches.filter(role__in=("leaf", "spine"))
    storage_switches = switches.filter(role="storage")
    starts = {
        ExposureUnit.NODE: _load_starts(nodes, "in_service_since"),
        ExposureUnit.INTERCONNECT_SWITCH: _load_starts(interconnect_switches, "in_service_since"),
        ExposureUnit.STORAGE_SWITCH: _load_starts(storage_switches, "in_service_since"),
    }
    gpus = Gpu.objects.filter(node__is_provisional=False)
    return ServiceHistory(starts=starts, gpus=_load_starts(gpus, "node__in_service_since"))


def _load_starts(rows: QuerySet[Any], name: str) -> Floats:
    return _make_column(rows.order_by().values_list(Hours(name), flat=True))


def as_json(found: Summary) -> dict[str, Any]:
    """The shape of `kintsugi reliability --json` (docs/reference/contracts.md): hours as numbers,
    times as ISO 8601."""
    classes = [_as_row(row) for row in found.classes]
    since = found.since.isoformat()
    until = found.until.isoformat()
    return {
        "since": since,
        "until": until,
        "confidence": CONFIDENCE,
        "notice": found.notice,
        "left_out": found.left_out,
        "all": _as_row(found.overall),
        "classes": classes,
        "definitions": found.definitions,
    }


def _as_row(row: Figures) -> dict[str, Any]:
    values = asdict(row)
    for name in ("exposure", "gpu_exposure", "up", "horizon", "longest_open"):
        values[f"{name}_hours"] = values.pop(name)
    for name in ("mtbf", "mttf", "restore_median", "mttr", "mttd", "mttd_most", "mtta"):
        values[f"{name}_hours"] = values.pop(name)
    return {
        **values,
        "unit": row.unit.hours,
        "trend": {**values["trend"], "direction": str(row.trend.direction)},
    }
