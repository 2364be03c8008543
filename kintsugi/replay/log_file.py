"""Plain log files as lines with the time at which each is played: its own stamp's, or that of the
line before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from detectors.logs.header import parse_header


@dataclass(frozen=True)
class Stamped:
    at: datetime
    line: bytes


def read(paths: Sequence[Path], *, now: datetime, year: int | None) -> list[Stamped]:
    """The lines of all files, merged by time. Raises OSError naming a file that cannot be read.

    A stamp without a year is taken to be of `year`, or the one nearest to `now`. Seconds since boot
    count from `now`.
    """
    merged: list[Stamped] = []
    for path in paths:
        lines = path.read_bytes().splitlines()
        merged.extend(parse_lines(lines, now=now, year=year))
    return sorted(merged, key=lambda line: line.at)


def parse_lines(lines: Iterable[bytes], *, now: datetime, year: int | None) -> Iterator[Stamped]:
    """Time never runs backwards: a line that says an earlier time than the one before it is played
    with it."""
    latest: datetime | None = None
    for line in lines:
        if not line.strip():
            continue
        at = _parse_time(line, now, year)
        if at is None or (latest is not None and at < latest):
            at = latest or now
        latest = at
        yield Stamped(at, line)


def _parse_time(line: bytes, now: datetime, year: int | None) -> datetime | None:
    header = parse_header(line, observed_at=now, zone=UTC, year=year)
    if header.has_stamp:
        return header.occurred_at
    if header.kernel_seconds:
        return now + timedelta(seconds=float(header.kernel_seconds))
    return None
