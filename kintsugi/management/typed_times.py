"""Times and durations as people type them into commands. Never guesses which of two hours is
meant."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.core.management.base import CommandError
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from kintsugi.configuration import setting_values


def parse_length(option: str, text: str) -> timedelta:
    """`90s`, `30m`, `2h` or `3d`. Raises CommandError."""
    try:
        return setting_values.parse_positive_duration(text)
    except ValueError as error:
        raise CommandError(
            f"{option} {text}: expected a number and s, m, h or d, such as 90m or 3d."
        ) from error


def parse_moment(option: str, text: str) -> datetime:
    """`2025-01-31 14:00` in the site's zone, or any time with an offset. Raises CommandError.

    An hour that the clocks skip does not exist, and one that comes twice needs its offset.
    """
    try:
        found = parse_datetime(text)
    except ValueError as error:
        raise CommandError(f"{option} {text}: there is no such time ({error}).") from error
    if found is None:
        raise CommandError(
            f"{option} {text}: expected a time such as '2025-01-31 14:00' or"
            " 2025-01-31T14:00+09:00."
        )
    if timezone.is_aware(found):
        return found
    zone = timezone.get_current_timezone()
    first, second = found.replace(tzinfo=zone, fold=0), found.replace(tzinfo=zone, fold=1)
    if first.utcoffset() == second.utcoffset():
        return first
    # In a gap the earlier fold has the smaller offset; where an hour comes twice it has the larger
    # one (PEP 495).
    if (first.utcoffset() or timedelta()) < (second.utcoffset() or timedelta()):
        raise CommandError(
            f"{option} {text}: that hour does not exist in {zone}, where the clocks go forward."
        )
    raise CommandError(
        f"{option} {text}: that hour comes twice in {zone}. Write {first.isoformat()} or"
        f" {second.isoformat()}."
    )
