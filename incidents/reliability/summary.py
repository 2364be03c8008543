"""From columns of incidents and a fleet to the numbers people read, each with its sentence and
definition. Pure.

Hours since 1970 throughout; a time that has not come is not-a-number. No clock, no database, no
Django.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from detectors.faults import Component, Recovery
from incidents.reliability import estimates
from incidents.reliability.estimates import Floats, Trend
from incidents.reliability.proportions import Estimate

ALL = "all"
HORIZON = timedelta(days=30)  # covers the vendor lead times, "days to weeks", of arXiv 2604.13600
_HOUR_S = 3600.0


class ExposureUnit(StrEnum):
    """The machines whose hours are a class's exposure."""

    NODE = "node"
    INTERCONNECT_SWITCH = "interconnect_switch"
    STORAGE_SWITCH = "storage_switch"

    @property
    def hours(self) -> str:
        return "node-hours" if self is ExposureUnit.NODE else "switch-hours"

    @property
    def machines(self) -> str:
        return {
            ExposureUnit.NODE: "nodes",
            ExposureUnit.INTERCONNECT_SWITCH: "leaf or spine switches",
        }.get(self, "storage switches")


Codes = npt.NDArray[np.int8]
COMPONENTS = tuple(Component)
RECOVERIES = tuple(Recovery)
UNIT_ORDER = tuple(ExposureUnit)

UNITS: dict[Component, ExposureUnit] = dict.fromkeys(Component, ExposureUnit.NODE) | {
    Component.INTERCONNECT_SWITCH: ExposureUnit.INTERCONNECT_SWITCH,
    Component.STORAGE_SWITCH: ExposureUnit.STORAGE_SWITCH,
}

DEFINITIONS: dict[str, str] = {
    "failure": (
        "an incident whose onset lies in the window and whose state is neither false_positive nor"
        " duplicate, whatever its severity; not counted, but told by their number: faults of"
        " Kintsugi itself and of its detectors, users' programs (and reports that nobody confirmed"
        " or cured), machines outside the inventory, planned work"
    ),
    "exposure": (
        "hours that the inventory's machines were in service within the window, from"
        " Node.in_service_since (unknown: from the window's start); leaf and spine switches for"
        " interconnect_switch, storage switches for storage_switch, nodes for every other class and"
        " in all"
    ),
    "mtbf": (
        "exposure per failure, with the exact Poisson (chi-square) 95 % interval; without a failure"
        " the one-sided 95 % bound exposure / 2.996"
    ),
    "mttf": (
        "the same without the time out of service: from out_of_service_at until restored_at, each"
        " hour once"
    ),
    "restore": (
        "from onset to service restored; incidents still open at the window's end are censored"
        " there, so that long repairs count while they run; Kaplan-Meier median with the log-log 95"
        " % interval, which needs six repairs; left out, and counted: what ended by going quiet, of"
        " which only the last sight is known"
    ),
    "mttr": (
        "the mean of the same restricted to the stated horizon (Kaplan-Meier): open repairs do not"
        " bias it low; its interval needs twenty repairs"
    ),
    "mttd": (
        "opened_at minus onset_at: from the first known bad (the device's clock) to our knowing;"
        " what a poll found began after the poll's last good look, so that it may have taken until"
        " opened_at minus last_known_good_at"
    ),
    "mtta": "acknowledged_at minus opened_at, over those that a person acknowledged",
    "trend": (
        "Laplace's test at 5 % from four failures on, by the clock of exposure, so that a fleet"
        " that grows is not taken for one that decays; where it finds a trend one mean misstates"
        " the present"
    ),
}
# Why an incident is no failure of the cluster, and the words for it. The first that fits counts.
LEFT_OUT: dict[str, str] = {
    "kintsugi": "of Kintsugi's own",
    "planned": "in planned work",
    "provisional": "of machines outside the inventory",
    "program": "of users' programs",
}
REASONS = tuple(LEFT_OUT)


@dataclass(frozen=True)
class Incidents:
    """Columns of one shape (n,). Words are numbers, their places in `COMPONENTS`, `RECOVERIES` and
    `UNIT_ORDER`.

    `owner` numbers the machines; `owner_unit` is -1 for a machine that is not in the inventory.
    `left_out` is the place in `REASONS` of what makes it no failure of the cluster, else -1.
    `is_quiet`: its end is only when it was last seen.
    """

    component: Codes
    is_failure: npt.NDArray[np.bool_]
    left_out: Codes
    is_quiet: npt.NDArray[np.bool_]
    owner: npt.NDArray[np.int64]
    owner_unit: Codes
    recovery: Codes
    onset: Floats
    last_good: Floats
    opened: Floats
    acknowledged: Floats
    out: Floats
    restored: Floats

    def filter_by_mask(self, chosen: npt.NDArray[np.bool_]) -> Incidents:
        return Incidents(
            **{name: getattr(self, name)[chosen] for name in self.__dataclass_fields__}
        )


@dataclass(frozen=True)
class ServiceHistory:
    """When each machine entered service, hours since 1970, by unit; `gpus` holds its node's time
    for each GPU."""

    starts: dict[ExposureUnit, Floats]
    gpus: Floats


@dataclass(frozen=True)
class Times:
    """Hours: mean and median of `count` values; None without any."""

    mean: float | None
    median: float | None
    count: int


@dataclass(frozen=True)
class Figures:
    """The numbers of one component class, or of `all`. Hours. `sentence` says the gist in words.

    Of the failures, `open` are not restored, `restored` have a known time to restore, and `quiet`
    went quiet. `longest_open` is the longest of those that are open.
    """

    component: str
    unit: ExposureUnit
    units: int
    failures: int
    exposure: float
    gpu_exposure: float | None
    up: float
    mtbf: Estimate
    mttf: Estimate
    trend: Trend
    open: int
    restored: int
    quiet: int
    longest_open: float | None
    restore_median: Estimate
    mttr: Estimate
    horizon: float
    mttd: Times
    mttd_most: Times
    mtta: Times
    by_month: dict[str, int]
    by_recovery: dict[str, int]
    sentence: str = ""


@dataclass(frozen=True)
class Summary:
    """What the console's home page and `kintsugi reliability` show.

    `overall` first, then `classes` in the order of `detectors.faults.Component`; each has a ready
    `sentence` such as "No failures in 40,000 node-hours: MTBF above 13,352 h (95 %).". `left_out`
    counts by reason (`LEFT_OUT`) what began in the window and is no failure of the cluster.
    `notice` is not empty where a person must do something first, such as loading an inventory.
    """

    since: datetime
    until: datetime
    overall: Figures
    classes: tuple[Figures, ...]
    definitions: dict[str, str] = field(default_factory=lambda: dict(DEFINITIONS))
    notice: str = ""
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyPeriod:
    """From `since` to `until`, hours since 1970; `zone` is where months begin."""

    since: float
    until: float
    zone: tzinfo


def compute_all_figures(
    incidents: Incidents, fleet: ServiceHistory, window: StudyPeriod
) -> list[Figures]:
    """The numbers of `all`, then of each class in the order of `Component`. Nothing is computed
    twice."""
    lost = {unit: _compute_time_out(incidents, unit, window) for unit in ExposureUnit}
    failed = _filter_by_window(incidents, window)
    failed = failed.filter_by_mask(failed.left_out < 0)
    lost_nodes = lost[ExposureUnit.NODE]
    rows = [compute_figures(ALL, ExposureUnit.NODE, failed, fleet, window, lost=lost_nodes)]
    for code, component in enumerate(COMPONENTS):
        unit = UNITS[component]
        of_class = failed.filter_by_mask(failed.component == code)
        row = compute_figures(str(component), unit, of_class, fleet, window, lost=lost[unit])
        rows.append(row)
    return rows


def count_left_out(incidents: Incidents, window: StudyPeriod) -> dict[str, int]:
    """How many that began in the window are no failures of the cluster, by reason; reasons without
    any are absent."""
    codes = _filter_by_window(incidents, window).left_out
    counts = np.bincount(codes[codes >= 0], minlength=len(REASONS))
    return {reason: int(count) for reason, count in zip(REASONS, counts, strict=True) if count}


def _filter_by_window(incidents: Incidents, window: StudyPeriod) -> Incidents:
    in_window = (incidents.onset >= window.since) & (incidents.onset < window.until)
    return incidents.filter_by_mask(incidents.is_failure & in_window)


def compute_figures(
    name: str,
    unit: ExposureUnit,
    failed: Incidents,
    fleet: ServiceHistory,
    window: StudyPeriod,
    *,
    lost: float,
) -> Figures:
    """The numbers of these failures; `lost` are the hours that the unit's machines were out,
    whatever the reason."""
    starts = fleet.starts[unit]
    span = (window.since, window.until)
    hours = estimates.compute_exposure(starts, *span)
    up = max(0.0, hours - lost)
    gpu_hours = estimates.compute_exposure(fleet.gpus, *span) if name == Component.GPU else None
    began_by_end = np.nan_to_num(starts, nan=window.since) < window.until
    units = int(began_by_end.sum())
    count = int(failed.onset.size)
    is_restored = failed.restored <= window.until  # False for not-a-number
    by_recovery = _count_by_recovery(failed.recovery[is_restored])
    by_month = _count_by_month(failed.onset, window)
    failure_figures = _compute_failure_figures(count, hours, up)
    restore_figures = _compute_restore_figures(failed, window)
    reaction_figures = _compute_reaction_figures(failed, window)
    trend = _compute_trend(failed, starts, window)
    return Figures(
        component=name,
        unit=unit,
        units=units,
        exposure=hours,
        gpu_exposure=gpu_hours,
        up=up,
        **failure_figures,
        trend=trend,
        **restore_figures,
        **reaction_figures,
        by_month=by_month,
        by_recovery=by_recovery,
    )


def _compute_failure_figures(count: int, hours: float, up: float) -> dict[str, Any]:
    """How often it failed, by the hours in service and by those that it was up."""
    mtbf = _compute_mean_time(count, hours)
    mttf = _compute_mean_time(count, up)
    return {"failures": count, "mtbf": mtbf, "mttf": mttf}


def _compute_trend(failed: Incidents, starts: Floats, window: StudyPeriod) -> Trend:
    """By the exposure that lay behind the fleet at each failure, and at the end of the window."""
    times = np.append(failed.onset, window.until)
    behind = estimates.compute_exposure_at(times, starts, window.since)
    return estimates.evaluate_trend(behind[:-1], 0.0, float(behind[-1]))


def _compute_restore_figures(failed: Incidents, window: StudyPeriod) -> dict[str, Any]:
    """How long failures lasted; those still open count up to the end of the window."""
    is_restored = failed.restored <= window.until  # False for not-a-number
    is_open = ~is_restored
    is_known = ~(is_restored & failed.is_quiet)
    ends = np.where(is_restored, failed.restored, window.until)
    durations = np.maximum(ends - failed.onset, 0.0)
    curve = estimates.compute_kaplan_meier(durations[is_known], is_restored[is_known])
    horizon = HORIZON.total_seconds() / _HOUR_S
    mttr = Estimate(None, None, None)
    if curve.ended > 0:
        mttr, horizon = estimates.estimate_restricted_mean(curve, horizon)
    open_count = int(is_open.sum())
    quiet_count = int((~is_known).sum())
    longest_open = float(durations[is_open].max()) if open_count else None
    return {
        "open": open_count,
        "restored": curve.ended,
        "quiet": quiet_count,
        "longest_open": longest_open,
        "restore_median": estimates.estimate_median(curve),
        "mttr": mttr,
        "horizon": horizon,
    }


def _compute_reaction_figures(failed: Incidents, window: StudyPeriod) -> dict[str, Any]:
    """How long it took to detect failures, at the most too, and to acknowledge them."""
    since_good = failed.opened - failed.last_good
    most_undetected = np.where(failed.last_good <= failed.onset, since_good, np.nan)
    is_acknowledged = failed.acknowledged <= window.until
    acknowledged = np.where(is_acknowledged, failed.acknowledged, np.nan)
    mttd = _summarise_times(failed.opened - failed.onset)
    mttd_most = _summarise_times(most_undetected)
    mtta = _summarise_times(acknowledged - failed.opened)
    return {"mttd": mttd, "mttd_most": mttd_most, "mtta": mtta}


def _compute_mean_time(failures: int, hours: float) -> Estimate:
    """Without hours in service there is nothing to divide by."""
    return (
        estimates.estimate_mean_time_between(failures, hours)
        if hours > 0
        else Estimate(None, None, None)
    )


def _compute_time_out(incidents: Incidents, unit: ExposureUnit, window: StudyPeriod) -> float:
    is_out = np.isfinite(incidents.out) & (incidents.owner_unit == UNIT_ORDER.index(unit))
    rows = incidents.filter_by_mask(is_out)
    ends = np.where(np.isfinite(rows.restored), rows.restored, window.until)
    return estimates.compute_covered_hours(rows.owner, rows.out, ends, window.since, window.until)


def _summarise_times(values: Floats) -> Times:
    """Clocks of devices run ahead at times: what is known before it began is known at once."""
    known = np.maximum(values[np.isfinite(values)], 0.0)
    if not known.size:
        return Times(None, None, 0)
    return Times(float(known.mean()), float(np.median(known)), int(known.size))


def _count_by_recovery(codes: Codes) -> dict[str, int]:
    counts = np.bincount(codes, minlength=len(RECOVERIES))
    return {str(word): int(count) for word, count in zip(RECOVERIES, counts, strict=True) if count}


def _count_by_month(onsets: Floats, window: StudyPeriod) -> dict[str, int]:
    """Failures by month of the zone; months without any are left out."""
    if not onsets.size:
        return {}
    month = datetime.fromtimestamp(float(onsets.min()) * _HOUR_S, UTC).astimezone(window.zone)
    year, number = month.year, month.month
    edges: list[float] = []
    names: list[str] = []
    while not edges or edges[-1] <= onsets.max():
        names.append(f"{year:04d}-{number:02d}")
        year, number = (year, number + 1) if number < 12 else (year + 1, 1)
        edges.append(datetime(year, number, 1, tzinfo=window.zone).timestamp() / _HOUR_S)
    counts = np.bincount(np.searchsorted(edges, onsets, side="right"), minlength=len(names))
    return {name: int(count) for name, count in zip(names, counts, strict=True) if count}
