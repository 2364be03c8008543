"""Reads what reliability is computed from: four queries, times as numbers, no object per row.

`summary` is the door: the console's home page and `manage.py reliability` show what it returns. Its `overall`
and each of `classes` carry `mtbf`, `mttr` with intervals and a ready `sentence`; `notice` is not empty when the
inventory is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.db.models import F, Field, Func, QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone

from incidents.lifecycle import State
from incidents.models import Gpu, Incident, Node, Switch
from incidents.reliability import CONFIDENCE, Floats
from incidents.reliability_summary import (
    COMPONENTS,
    RECOVERIES,
    UNIT_ORDER,
    Codes,
    Figures,
    Fleet,
    Incidents,
    Summary,
    Unit,
    Window,
    all_figures,
)
from incidents.reliability_words import sentence

_HOUR_S = 3600.0
NOT_FAILURES = (State.FALSE_POSITIVE.value, State.DUPLICATE.value)
_SWITCH_UNITS = {"leaf": Unit.INTERCONNECT_SWITCH, "spine": Unit.INTERCONNECT_SWITCH, "storage": Unit.STORAGE_SWITCH}
NO_INVENTORY = (
    "The inventory holds no nodes, so there are no hours to divide by: load it with"
    " `manage.py inventory import FILE.toml`."
)


class _Hours(Func):
    """Hours since 1970, computed where the rows are: a million datetime objects would cost ten seconds.

    A plain Field: FloatField would call a converter for each value that is a float already.
    """

    template = "CAST(EXTRACT(EPOCH FROM %(expressions)s) AS double precision) / 3600.0"
    output_field = Field()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="(julianday(%(expressions)s) - 2440587.5) * 24.0", **context)


def summary(since: datetime | None, until: datetime) -> Summary:
    """Reliability from `since` (None: since the first machine entered service) to `until`, both timezone-aware.

    Raises ValueError when `since` is not before `until`.
    """
    incidents, fleet = _incidents(), _fleet()
    begin = _start(incidents, fleet, until) if since is None else since
    if since is not None and since >= until:
        raise ValueError(f"since {since.isoformat()} is not before until {until.isoformat()}")
    window = Window(_hours(begin), _hours(until), timezone.get_default_timezone())
    told = [replace(row, sentence=sentence(row)) for row in all_figures(incidents, fleet, window)]
    return Summary(
        since=begin,
        until=until,
        overall=told[0],
        classes=tuple(told[1:]),
        notice="" if fleet.starts[Unit.NODE].size else NO_INVENTORY,
    )


def _hours(moment: datetime) -> float:
    return round(moment.timestamp() * 1000) / 1000 / _HOUR_S


def _start(incidents: Incidents, fleet: Fleet, until: datetime) -> datetime:
    known = [incidents.onset, *fleet.starts.values()]
    first = min((float(np.nanmin(times)) for times in known if np.isfinite(times).any()), default=_hours(until))
    return min(datetime.fromtimestamp(first * _HOUR_S, UTC), until)


def _column(values: Iterable[float | None]) -> Floats:
    """Times as hours, to the millisecond: SQLite's day numbers carry no more."""
    return np.round(np.array(list(values), dtype=float) * _HOUR_S * 1000) / 1000 / _HOUR_S


def _incidents() -> Incidents:
    """Every incident as columns; onset is the device's clock, a resolved incident without restored_at ended then."""
    rows = list(
        Incident.objects.order_by().values_list(
            "component",
            "state",
            "owner",
            "recovery",
            _Hours("onset_at"),
            _Hours("opened_at"),
            _Hours("acknowledged_at"),
            _Hours("out_of_service_at"),
            _Hours(Coalesce(F("restored_at"), F("closed_at"))),
        )
    )
    columns: tuple[tuple[Any, ...], ...] = tuple(zip(*rows, strict=True)) if rows else ((),) * 9
    owners = {name: number for number, name in enumerate(dict.fromkeys(columns[2]))}
    units = _units_by_owner()
    counts = {state.value: state.value not in NOT_FAILURES for state in State}
    return Incidents(
        component=_codes(columns[0], {str(word): code for code, word in enumerate(COMPONENTS)}),
        is_failure=np.array([counts[state] for state in columns[1]], dtype=bool),
        owner=np.array([owners[name] for name in columns[2]], dtype=np.int64),
        owner_unit=_codes(columns[2], {name: units.get(name, -1) for name in owners}),
        recovery=_codes(columns[3], {str(word): code for code, word in enumerate(RECOVERIES)}),
        onset=_column(columns[4]),
        opened=_column(columns[5]),
        acknowledged=_column(columns[6]),
        out=_column(columns[7]),
        restored=_column(columns[8]),
    )


def _codes(words: Iterable[str], numbers: dict[str, int]) -> Codes:
    return np.array([numbers[word] for word in words], dtype=np.int8)


def _units_by_owner() -> dict[str, int]:
    """The unit of each machine in the inventory, by its resource path; machines outside count for none."""
    nodes = Node.objects.filter(is_provisional=False).values_list("name", flat=True)
    switches = Switch.objects.filter(is_provisional=False, role__in=_SWITCH_UNITS).values_list("name", "role")
    return {f"node/{name}": UNIT_ORDER.index(Unit.NODE) for name in nodes} | {
        f"switch/{name}": UNIT_ORDER.index(_SWITCH_UNITS[role]) for name, role in switches
    }


def _fleet() -> Fleet:
    nodes = Node.objects.filter(is_provisional=False)
    switches = Switch.objects.filter(is_provisional=False)
    by_unit: dict[Unit, QuerySet[Any]] = {
        Unit.NODE: nodes,
        Unit.INTERCONNECT_SWITCH: switches.filter(role__in=("leaf", "spine")),
        Unit.STORAGE_SWITCH: switches.filter(role="storage"),
    }
    starts = {unit: _starts(rows, "in_service_since") for unit, rows in by_unit.items()}
    return Fleet(starts=starts, gpus=_starts(Gpu.objects.filter(node__is_provisional=False), "node__in_service_since"))


def _starts(rows: QuerySet[Any], name: str) -> Floats:
    return _column(rows.order_by().values_list(_Hours(name), flat=True))


def as_json(found: Summary) -> dict[str, Any]:
    """The shape of `manage.py reliability --json` (docs/contracts.md): hours as numbers, times as ISO 8601."""
    return {
        "since": found.since.isoformat(),
        "until": found.until.isoformat(),
        "confidence": CONFIDENCE,
        "notice": found.notice,
        "all": _row(found.overall),
        "classes": [_row(row) for row in found.classes],
        "definitions": found.definitions,
    }


def _row(row: Figures) -> dict[str, Any]:
    values = asdict(row)
    for name in ("exposure", "gpu_exposure", "up", "horizon"):
        values[f"{name}_hours"] = values.pop(name)
    for name in ("mtbf", "mttf", "restore_median", "mttr", "mttd", "mtta"):
        values[f"{name}_hours"] = values.pop(name)
    return {**values, "unit": row.unit.hours, "trend": {**values["trend"], "direction": str(row.trend.direction)}}
