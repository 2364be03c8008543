"""The numbers of reliability as sentences and cells for people. Pure."""

from __future__ import annotations

from incidents.reliability import Direction, Estimate
from incidents.reliability_summary import Figures

_TRENDS = {
    Direction.RISING: "Failures are becoming more frequent",
    Direction.FALLING: "Failures are becoming rarer",
}


def hours(value: float) -> str:
    """An exposure or a mean time between failures: `24,000 h`."""
    return f"{value:,.0f} h" if value >= 100 else f"{value:.3g} h"


def span(value: float) -> str:
    """A repair's duration, given in hours, in the unit a person would say: `40 s`, `25 min`, `5.2 h`, `3.1 d`."""
    if value * 3600 < 90:
        return f"{value * 3600:.0f} s"
    if value < 2:
        return f"{value * 60:.0f} min"
    return f"{value:.1f} h" if value < 48 else f"{value / 24:.1f} d"


def between_failures(estimate: Estimate) -> str:
    """`24,240 h (12,769 to 53,011)`, `above 72,824 h`, or `-` without hours to divide."""
    if estimate.low is None:
        return "-"
    if estimate.value is None or estimate.high is None:
        return f"above {hours(estimate.low)}"
    return f"{hours(estimate.value)} ({_bare(estimate.low)} to {_bare(estimate.high)})"


def to_restore(estimate: Estimate) -> str:
    """`9 min (6 min to 41 min)`, `6.0 d` where so few say nothing of an interval, or `not reached`."""
    if estimate.value is None:
        return "not reached" if estimate.low is None else f"not reached (at least {span(estimate.low)})"
    if estimate.low is None and estimate.high is None:
        return f"{span(estimate.value)} (no interval from so few)"
    low = span(estimate.low) if estimate.low is not None else "0 s"
    return f"{span(estimate.value)} ({low} to {span(estimate.high) if estimate.high is not None else 'not reached'})"


def trend(row: Figures) -> str:
    """One word or two for a table, with the p value where the test found something."""
    words = {Direction.RISING: "more frequent", Direction.FALLING: "rarer", Direction.NONE: "none found"}
    found = words.get(row.trend.direction, "too few to tell")
    return f"{found}, p {row.trend.p_value:.2g}" if row.trend.direction in _TRENDS else found


def _bare(value: float) -> str:
    return hours(value).removesuffix(" h")


def sentence(row: Figures) -> str:
    """The gist of one class in one to three sentences."""
    return " ".join(part for part in (_rate(row), _repair(row), _trend(row)) if part)


def _rate(row: Figures) -> str:
    failures = {0: "No failures", 1: "1 failure"}.get(row.failures, f"{row.failures:,} failures")
    if row.exposure <= 0:
        return f"{failures}; no {row.unit.machines} in the inventory, so no rate."
    gpus = f" ({row.gpu_exposure:,.0f} GPU-hours)" if row.gpu_exposure else ""
    seen = f"{failures} in {row.exposure:,.0f} {row.unit.hours}{gpus}"
    if row.failures == 0:
        return f"{seen}: MTBF above {hours(row.mtbf.low or 0.0)} (95 %)."
    return f"{seen}: MTBF {hours(row.mtbf.value or 0.0)}, {_range(row.mtbf)} (95 %)."


def _range(estimate: Estimate) -> str:
    return f"between {hours(estimate.low or 0.0)} and {hours(estimate.high or 0.0)}"


def _repair(row: Figures) -> str:
    if row.failures == 0:
        return ""
    still = f"; {row.open} still open" if row.open else ""
    if row.restore_median.value is None:
        return f"Half are not restored yet{still}."
    return f"Service was back after {span(row.restore_median.value)} in half of the cases{still}."


def _trend(row: Figures) -> str:
    words = _TRENDS.get(row.trend.direction)
    if words is None:
        return ""
    return f"{words} (Laplace {row.trend.score:+.1f}, p {row.trend.p_value:.2g}): one mean misstates the present."
