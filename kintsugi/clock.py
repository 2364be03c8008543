"""The one place where the wiring reads the time."""

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)
