"""Files of what left the database: a line of JSON each, a file for each month, readable by their
owner alone. No database here.

A line is on the disk before `append` returns. What a crash left of a line without its end was of
rows that are still in the database: it is cut off, and they come again. So a unit may stand in its
file twice, if the crash came between the file and the removal; the last line counts.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_SUFFIX = ".jsonl"


class DirectoryInUse(Exception):
    """Another process of this machine writes to the directory."""


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """One writer at a time. Raises DirectoryInUse."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DirectoryInUse(str(directory)) from error
        yield
    finally:
        os.close(descriptor)


def append(directory: Path, lines: Iterable[tuple[datetime, str]]) -> None:
    """Each line to the file of its month, by UTC. Under `lock_directory`. Raises OSError, as for a
    full disk: then nothing may be removed."""
    by_month: dict[str, list[str]] = defaultdict(list)
    for at, line in lines:
        by_month[f"{at.astimezone(UTC):%Y-%m}"].append(line)
    for month, texts in sorted(by_month.items()):
        _append(directory / f"{month}{_SUFFIX}", "".join(f"{text}\n" for text in texts).encode())
    _sync_directory(directory)


def _append(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        end = _end_of_whole_lines(path, file.seek(0, os.SEEK_END))
        file.truncate(end)
        file.seek(end)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _end_of_whole_lines(path: Path, size: int) -> int:
    """Where the last line that has its end ends."""
    with path.open("rb") as file:
        end = size
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(directory: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Every unit by kind and number; the last line of each counts, and one without its end does
    not."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            unit = json.loads(line)
            found[unit["kind"], unit["id"]] = unit
    return found
