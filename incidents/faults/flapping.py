"""Whether a fault flaps: how much of its recent looks changed its state, with more weight on the
newest. Pure.

After Nagios Core, "Detection and Handling of State Flapping": 21 looks, so 20 places where the
state may have changed; a change weighs 0.8 in the oldest place and 1.2 in the newest; above one
threshold it begins to flap, below another it stops. Nagios looks at fixed times. Here a look is a
change of state, or a period of `Limits.look` without one: polls come by the minute and lines when
they will, and the two must tell the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

# 21 looks have 20 places between them. Nagios Core documentation, "Detection and Handling of State
# Flapping".
PLACES = 20
_OLDEST_WEIGHT = 0.8
_NEWEST_WEIGHT = 1.2


@dataclass(frozen=True)
class FlapLimits:
    """When flapping begins and ends, in percent, and how long a look without a change is.

    30 and 20 are Nagios Core's own defaults (include/nagios.h, DEFAULT_HIGH_SERVICE_FLAP_THRESHOLD
    and LOW). The look is our choice: with 90 s the 20 places last as long as the usual quiet period
    (30 min), and a poll a minute late is no look without a change.
    """

    start_percent: float = 30.0
    stop_percent: float = 20.0
    look: timedelta = timedelta(seconds=90)


USUAL = FlapLimits()


def compute_percent(
    changes: Sequence[datetime], now: datetime, limits: FlapLimits = USUAL
) -> float:
    """Weighted share of the last 20 places that are changes, 0 to 100. `changes` are in order of
    time."""
    return (
        sum(_get_weight(place) for place in _list_places(changes, now, limits.look)) / PLACES * 100
    )


def begins(changes: Sequence[datetime], now: datetime, limits: FlapLimits = USUAL) -> bool:
    return compute_percent(changes, now, limits) > limits.start_percent


def is_over(changes: Sequence[datetime], now: datetime, limits: FlapLimits = USUAL) -> bool:
    return compute_percent(changes, now, limits) < limits.stop_percent


def get_end(changes: Sequence[datetime], limits: FlapLimits = USUAL) -> datetime:
    """When flapping is over if nothing changes any more. `changes` is not empty."""
    last = changes[-1]
    quiet = (last + number * limits.look for number in range(PLACES + 1))
    return next(
        (at for at in quiet if is_over(changes, at, limits)), last + (PLACES + 1) * limits.look
    )


def add_change(changes: Sequence[datetime], at: datetime) -> list[datetime]:
    """The changes and one more, in order of time; no more of them than there are places."""
    return sorted([*changes, at])[-PLACES:]


def format_changes(changes: Sequence[datetime]) -> list[str]:
    """As `Fault.changes_at` keeps them."""
    return [at.isoformat() for at in changes]


def read(texts: Sequence[str]) -> list[datetime]:
    """Inverse of `stored`."""
    return [datetime.fromisoformat(text) for text in texts]


def _list_places(changes: Sequence[datetime], now: datetime, look: timedelta) -> list[int]:
    """Where each change stands, 0 the newest; those that have left the 20 places are left out."""
    if not changes:
        return []
    place = max(0, (now - changes[-1]) // look)
    places = [place]
    for earlier, later in zip(reversed(changes[:-1]), reversed(changes), strict=False):
        place += max(1, round((later - earlier) / look))
        places.append(place)
    return [place for place in places if place < PLACES]


def _get_weight(place: int) -> float:
    return _NEWEST_WEIGHT - (_NEWEST_WEIGHT - _OLDEST_WEIGHT) * place / (PLACES - 1)
