"""The numbers of reliability as sentences and cells for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from incidents.reliability.estimates import Direction
from incidents.reliability.proportions import Estimate
from incidents.reliability.summary import LEFT_OUT, Figures

_TRENDS = {
    Direction.RISING: "Failures are becoming more frequent",
    Direction.FALLING: "Failures are becoming rarer",
}


def format_hours(value: float) -> str:
    """An exposure or a mean time between failures: `24,000 h`."""
    return f"{value:,.0f} h" if value >= 100 else f"{value:.3g} h"


def format_span(value: float) -> str:
    """A repair's duration, given in hours, in the unit a person would say: `40 s`, `25 min`, `5.2
    h`, `3.1 d`."""
    if value * 3600 < 90:
        return f"{value * 3600:.0f} s"
    if value < 2:
        return f"{value * 60:.0f} min"
    return f"{value:.1f} h" if value < 48 else f"{value / 24:.1f} d"


def format_between_failures(estimate: Estimate) -> str:
    """`24,240 h (12,769 to 53,011)`, `above 72,824 h`, or `-` without hours to divide."""
    if estimate.low is None:
        return "-"
    if estimate.value is None or estimate.high is None:
        return f"above {format_hours(estimate.low)}"
    return (
        f"{format_hours(estimate.value)} ({_format_bare(estimate.low)} to"
        f" {_format_bare(estimate.high)})"
    )


def format_to_restore(estimate: Estimate) -> str:
    """`9 min (6 min to 41 min)`, `6.0 d` without an interval where so few say nothing of one, or
    `not reached`."""
    if estimate.value is None:
        if estimate.low is None:
            return "not reached"
        return f"not reached (at least {format_span(estimate.low)})"
    if estimate.low is None and estimate.high is None:
        return format_span(estimate.value)
    low = format_span(estimate.low) if estimate.low is not None else "0 s"
    high = format_span(estimate.high) if estimate.high is not None else "not reached"
    return f"{format_span(estimate.value)} ({low} to {high})"


def repair_time(row: Figures, estimate: Estimate) -> str:
    """The median or the mean of the row's repairs; where none has ended, how long the longest has
    lasted."""
    if row.restored:
        return format_to_restore(estimate)
    return (
        "not known"
        if row.longest_open is None
        else f"none restored yet, longest {format_span(row.longest_open)}"
    )


def format_left_out(counts: Mapping[str, int]) -> str:
    """`Not counted: 3 of Kintsugi's own, 1 in planned work.`; empty: everything counts."""
    parts = [f"{count:,} {LEFT_OUT[reason]}" for reason, count in counts.items()]
    return f"Not counted: {', '.join(parts)}." if parts else ""


def format_trend(row: Figures) -> str:
    """One word or two for a table, with the test's figures where it found something."""
    words = {
        Direction.RISING: "more frequent",
        Direction.FALLING: "rarer",
        Direction.NONE: "none found",
    }
    found = words.get(row.trend.direction, "too few to tell")
    if row.trend.direction not in _TRENDS:
        return found
    return f"{found}, Laplace {row.trend.score:+.1f}, p {row.trend.p_value:.2g}"


def _format_bare(value: float) -> str:
    return format_hours(value).removesuffix(" h")


def format_sentence(row: Figures) -> str:
    """The gist of one class in one to three sentences."""
    return " ".join(part for part in (_format_rate(row), _repair(row), _format_trend(row)) if part)


def _format_rate(row: Figures) -> str:
    failures = {0: "No failures", 1: "1 failure"}.get(row.failures, f"{row.failures:,} failures")
    if row.exposure <= 0:
        return f"{failures}; no {row.unit.machines} in the inventory, so no rate."
    gpus = f" ({row.gpu_exposure:,.0f} GPU-hours)" if row.gpu_exposure else ""
    seen = f"{failures} in {row.exposure:,.0f} {row.unit.hours}{gpus}"
    if row.failures == 0:
        return f"{seen}: MTBF above {format_hours(row.mtbf.low or 0.0)} (95 %)."
    return f"{seen}: MTBF {format_hours(row.mtbf.value or 0.0)}, {_format_range(row.mtbf)} (95 %)."


def _format_range(estimate: Estimate) -> str:
    return f"between {format_hours(estimate.low or 0.0)} and {format_hours(estimate.high or 0.0)}"


def _repair(row: Figures) -> str:
    return " ".join(part for part in (_format_restored(row), _format_quiet(row)) if part)


def _format_restored(row: Figures) -> str:
    still = f"; {row.open} still open" if row.open else ""
    if not row.restored:
        return (
            ""
            if row.longest_open is None
            else f"None is restored yet, the longest for {format_span(row.longest_open)}."
        )
    if row.restore_median.value is None:
        return f"Half are not restored yet{still}."
    return (
        f"Service was back after {format_span(row.restore_median.value)} in half of the"
        f" cases{still}."
    )


def _format_quiet(row: Figures) -> str:
    return (
        f"{row.quiet:,} went quiet, so that nobody knows when service was back."
        if row.quiet
        else ""
    )


def _format_trend(row: Figures) -> str:
    words = _TRENDS.get(row.trend.direction)
    return f"{words}: one mean misstates the present." if words is not None else ""
