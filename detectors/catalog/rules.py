"""How an observed value becomes a fault: the `[[rule]]` rows of the catalogue, each threshold with
its source.

Pure. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Optional

from detectors.catalog import rows
from detectors.faults import Action, Severity


class When(str, Enum):
    """What of the value makes a fault.

    `rises` and `faster` look at counters: the first sight is a baseline, a lower value is a new
    one.
    """

    FALSE = "false"
    TRUE = "true"
    DIFFERS = "differs"
    ABOVE = "above"
    BELOW = "below"
    RISES = "rises"
    FASTER = "faster"


NUMERIC = frozenset({When.ABOVE, When.BELOW, When.RISES, When.FASTER})
COUNTERS = frozenset({When.RISES, When.FASTER})


class Opinion(str, Enum):
    """What one rule makes of one value. Between its two thresholds, or of an unreadable value, it
    has none."""

    FAULTY = "faulty"
    WELL = "well"
    NONE = "none"


@dataclass(frozen=True)
class ThresholdRule:
    """One row. Several rows may raise one type on one metric at rising severities; the type clears
    when all are well.

    above, below: past `raise_at` it is faulty, back at `clear_at` or beyond it is well (default:
    `raise_at`). rises: more than `raise_at` (default 0) in all `within` the period, or since the
    last poll where that is left out. faster: more than `raise_at` a second between two polls.
    differs: other than the attribute `expected`. The attributes `raise_at` and `clear_at` of an
    observation, the device's own thresholds, go before the row's. `polls`: so many bad polls in a
    row, `hold`: bad for so long without a break, before it is raised; `clear_polls` the same for
    clearing. `grace`: bad values so soon after a boot do not count.
    """

    metric: str
    type: str
    when: When
    source: str
    raise_at: Optional[float] = None
    clear_at: Optional[float] = None
    within: timedelta = timedelta(0)
    polls: int = 1
    clear_polls: int = 1
    hold: timedelta = timedelta(0)
    grace: timedelta = timedelta(0)
    severity: Optional[Severity] = None
    action: Optional[Action] = None
    where: str = ""

    @property
    def key(self) -> str:
        """What tells the rows of one metric apart in a memory that outlives the catalogue's
        file."""
        return f"{self.type}/{self.when.value}/{self.severity or ''}"

    def opinion(
        self, value: Any, attributes: Mapping[str, str], risen: Optional[float] = None
    ) -> Opinion:
        """`risen`: for counters, what the value grew by over the rule's period (or per second);
        None: not known."""
        if self.when in (When.FALSE, When.TRUE):
            if not isinstance(value, bool):
                return Opinion.NONE
            return Opinion.FAULTY if value is (self.when is When.TRUE) else Opinion.WELL
        if self.when is When.DIFFERS:
            wanted = attributes.get("expected")
            if wanted is None or value is None:
                return Opinion.NONE
            return Opinion.WELL if str(value) == wanted else Opinion.FAULTY
        return self._compare_value(risen if self.when in COUNTERS else value, attributes)

    def _compare_value(self, value: Any, attributes: Mapping[str, str]) -> Opinion:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:
            return Opinion.NONE
        raise_at, clear_at = self._parse_limits(attributes)
        if self.when is When.BELOW:
            value, raise_at, clear_at = -value, -raise_at, -clear_at
        if value > raise_at:
            return Opinion.FAULTY
        return Opinion.WELL if value <= clear_at else Opinion.NONE

    def _parse_limits(self, attributes: Mapping[str, str]) -> tuple[float, float]:
        raise_at = _parse_number(attributes.get("raise_at"), self.raise_at or 0.0)
        if (
            "raise_at" in attributes
        ):  # the row's clear threshold belongs to the row's own raise threshold
            return raise_at, _parse_number(attributes.get("clear_at"), raise_at)
        return raise_at, raise_at if self.clear_at is None else self.clear_at


def _parse_number(text: Optional[str], default: float) -> float:
    try:
        return default if text is None else float(text)
    except ValueError:
        return default


_READERS: dict[str, Callable[[str, object, list[str]], Any]] = {
    "when": lambda name, value, reasons: rows.member(When, name, value, reasons),
    "severity": lambda name, value, reasons: rows.member(Severity, name, value, reasons),
    "action": lambda name, value, reasons: rows.member(Action, name, value, reasons),
    "raise_at": rows.number,
    "clear_at": rows.number,
    "within": rows.duration,
    "hold": rows.duration,
    "grace": rows.duration,
    "polls": rows.count,
    "clear_polls": rows.count,
}


def read(where: str, row: Mapping[str, Any]) -> ThresholdRule:
    """A `[[rule]]` row. Raises ValueError with one reason per line."""
    required = ("metric", "type", "when", "source")
    reasons = [f"unknown field {name}" for name in sorted(set(row) - set(required) - set(_READERS))]
    reasons += [f"missing {name}" for name in required if not row.get(name)]
    values = {name: _READERS[name](name, row[name], reasons) for name in _READERS if name in row}
    when = values.get("when")
    if when in NUMERIC and when is not When.RISES and "raise_at" not in row:
        reasons.append(f"when {row['when']!r} needs raise_at")
    if when not in NUMERIC and {"raise_at", "clear_at"} & set(row):
        reasons.append("raise_at and clear_at are for above, below, rises and faster")
    if "within" in row and when is not When.RISES:
        reasons.append("within is for rises")
    if when in NUMERIC and "clear_at" in row and "raise_at" in row:
        is_wrong_way = (
            values["clear_at"] < values["raise_at"]
            if when is When.BELOW
            else values["clear_at"] > values["raise_at"]
        )
        if is_wrong_way:
            reasons.append("clear_at lies on the faulty side of raise_at")
    if reasons:
        raise ValueError("\n".join(reasons))
    return ThresholdRule(
        metric=str(row["metric"]),
        type=str(row["type"]),
        source=str(row["source"]),
        where=where,
        **values,
    )
