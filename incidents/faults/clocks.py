"""Whose time counts for an event: the device's or ours. Pure.

`occurred_at` is what the device says, `observed_at` is when we saw it. A line that comes late and a
clock that is behind look the same by these two alone, so what else is known decides: the kernel's
own seconds, and how far the machine's dates were behind when it last spoke
(incidents.triage.clock_check).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from detectors.faults import FaultEvent

# Our choice. Clocks that NTP keeps differ by milliseconds and syslog takes seconds, so a minute is
# neither; within it what a cause does to its effects is still told in order. RFC 5905 (appendix
# A.1.1) steps a clock that is 128 ms off (STEPT): one that is a minute off is not kept at all.
TOLERANCE = timedelta(seconds=60)
# Our choice. No log is as old as this; clocks that have lost their battery begin at 1970 or in
# their firmware's year.
_EARLIEST = datetime(2015, 1, 1, tzinfo=UTC)


class Whose(StrEnum):
    """The clock that a time is of, as `Fault.clock` stores it."""

    DEVICE = "device"
    OURS = "ours"
    PERSON = "person"
    """People alone have told of it."""


@dataclass(frozen=True)
class Dated:
    """The times by which an event counts.

    `at` is what statistics use: the device's time where it lies within the tolerance, else ours.
    `order_at` is what is compared with boots, repairs and ends: the device's date too when the line
    may just have come late, ours when the clock is known to be wrong. `lag` is how long before we
    saw it the device dates it.
    """

    at: datetime
    order_at: datetime
    whose: Whose
    lag: timedelta

    @property
    def may_be_late(self) -> bool:
        """Dated well before we saw it, and nothing says that the clock is at fault."""
        return self.order_at < self.at


def compute_lag(event: FaultEvent) -> timedelta:
    """How long before our sight of it the device dates the event; negative when its clock is
    ahead."""
    return event.observed_at - event.occurred_at


def is_impossible(event: FaultEvent) -> bool:
    """A date that only a wrong clock gives: ahead of ours, or from before there was anything to
    log."""
    return compute_lag(event) < -TOLERANCE or event.occurred_at < _EARLIEST


def is_usual(event: FaultEvent, usual: timedelta | None) -> bool:
    """As far behind as the machine's dates were when it last spoke, to the tolerance: then its
    clock is behind."""
    return usual is not None and usual > TOLERANCE and abs(compute_lag(event) - usual) <= TOLERANCE


def get_date(event: FaultEvent, *, is_live: bool = False) -> Dated:
    """`is_live`: it is known to be of the moment at which we saw it, whatever its date
    (incidents.triage.clock_check)."""
    behind = compute_lag(event)
    if abs(behind) <= TOLERANCE:
        return Dated(event.occurred_at, event.occurred_at, Whose.DEVICE, behind)
    is_wrong = is_live or is_impossible(event)
    order_at = event.observed_at if is_wrong else event.occurred_at
    return Dated(event.observed_at, order_at, Whose.OURS, behind)


def parse_kernel_stamp(source_key: str) -> tuple[str, timedelta | None]:
    """Boot id without dashes and time since boot, of `host|boot|seconds|text`
    (detectors.logs.header.source_key)."""
    parts = source_key.split("|", 3)
    if len(parts) < 4:
        return "", None
    try:
        return parts[1].replace("-", "").lower(), timedelta(seconds=float(parts[2]))
    except (ValueError, OverflowError):
        return "", None
