"""Fault events on disk between the receiver and the database: append-only segments that outlive
every process.

Never decides what is delivered when, and never reads the database: the caller says how far the
inbox has taken it.

What is promised, and by what. Once `append` has returned, the record is in the kernel's page cache:
SIGKILL of the receiver, of Redis, of a worker or of the database loses nothing. `sync` (the
receiver calls it within a second, off the hot path) brings it to the disk, so that only a power cut
can lose the last second. An fsync before each delivery would cost a drain several milliseconds and
protect nothing more: syslog has no acknowledgement, so what a machine without power had in its
socket buffers is gone anyway. A segment's number is never used twice, since an offset written again
would give a new event the id of an old one: each start opens a new segment, whose directory entry
is synced before anything is written to it. Numbers are seconds since 1970, or one more than the
last: so a data directory that was restored from a copy does not use those again that it had used
since the copy.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec

from detectors.faults import FaultEvent, event_id

SEGMENT_BYTES = 16 * 1024 * 1024
# Checksum, length, and when its turn is: records of before 0.2 do not say.
_RECORD = re.compile(rb"([0-9a-f]{8}) (\d{1,9}) (?:([012]) )?")
_SEGMENT = re.compile(r"(\d{12})\.segment")
_HEADER_BYTES = 22
_STEP_BYTES = 64 * 1024
_encode = msgspec.json.Encoder().encode

Wires = list[dict[str, Any]]
"""Events as JSON objects, as `detectors.faults` writes them."""


class SpoolError(Exception):
    """The spool cannot be used: says which file, why, and what to do."""


class SpoolFull(SpoolError):
    """A record could not be written whole, and nothing of it was kept. Room on the disk is needed;
    then retry."""


@dataclass(frozen=True, order=True)
class Extent:
    """Where one batch lies: bytes `start` to `end` of a segment."""

    segment: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Turn(IntEnum):
    """When a batch is taken; the number stands in its record."""

    ORDINARY = 0
    URGENT = 1  # before the others: events of critical severity
    LAST = 2  # after the others: of sources that have had their share


@dataclass(frozen=True)
class Batch:
    """Up to 500 events. `payload` is a JSON list of them in wire form, still without their ids."""

    receiver: str
    extent: Extent
    payload: bytes
    turn: Turn = Turn.ORDINARY

    @property
    def is_urgent(self) -> bool:
        return self.turn is Turn.URGENT

    @property
    def wires(self) -> Wires:
        """The events, each with the id that its place in the spool gives it."""
        return decode(self.payload, self.receiver, self.extent.segment, self.extent.start)


def decode(payload: bytes, receiver: str, segment: int, start: int) -> Wires:
    """The events of a batch in wire form, each with its id. Raises ValueError for what is no JSON
    list of objects."""
    wires: Wires = msgspec.json.decode(payload, type=Wires)
    for index, wire in enumerate(wires):
        wire["event_id"] = event_id(receiver, segment, start, index)
    return wires


class Spool:
    """One receiver's spool. One process at a time; `append` and `sync` may run in different
    threads."""

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._lock = _open_locked(directory / "lock")
        self.receiver = _get_kept_name(directory)
        self.torn_bytes = 0
        self._damaged: set[Extent] = set()
        self._sizes = {number: self._trim(number) for number in self._list_numbers()}
        self._file = -1
        self._is_dirty = False
        self._switching = threading.Lock()
        self._open_segment(self._get_next_number())

    def append(self, events: Sequence[FaultEvent], *, turn: Turn = Turn.ORDINARY) -> Batch:
        """Writes one batch as one record, whose place gives its events their ids. Raises SpoolFull,
        nothing kept, on a full disk."""
        if self._sizes[self.current] >= self._segment_bytes:
            self._open_segment(self._get_next_number())
        payload = _encode(events)
        checksum = zlib.crc32(payload)
        record = b"%08x %d %d %b\n" % (checksum, len(payload), turn, payload)
        start = self._sizes[self.current]
        self._write(record, start)
        extent = Extent(self.current, start, start + len(record))
        self._sizes[self.current] = extent.end
        self._is_dirty = True
        return Batch(self.receiver, extent, payload, turn)

    def read(self, extent: Extent) -> Batch:
        """The batch at `extent`, as `append` returned it. Raises SpoolError when it is no longer
        whole, OSError when it cannot be read now."""
        path = self._get_path(extent.segment)
        with path.open("rb") as file:
            file.seek(extent.start)
            record = _parse_record(file.read(extent.size))
        if record is None:
            raise SpoolError(f"{path} at {extent.start}: this record is damaged.")
        return Batch(self.receiver, extent, record.payload, record.turn)

    def list_extents(self, *, after: Extent | None = None) -> Iterator[Extent]:
        """Whole records in the order they were written. What is torn or damaged is skipped and
        counted."""
        for number in sorted(self._sizes):
            if after is None or number >= after.segment:
                start = after.end if after is not None and number == after.segment else 0
                yield from self._list_records(number, start)

    def list_batches(self) -> Iterator[Batch]:
        """Everything that is on disk, oldest first."""
        for extent in self.list_extents():
            yield self.read(extent)

    def remove_delivered(self, position: Extent | None) -> list[int]:
        """Removes closed segments that end at or before `position`; returns their numbers."""
        if position is None:
            return []
        removed = []
        for number in self.segments:
            is_whole = number < position.segment or (
                number == position.segment and position.end >= self._find_undamaged_end(number)
            )
            if is_whole and number != self.current:
                self._get_path(number).unlink(missing_ok=True)
                del self._sizes[number]
                removed.append(number)
        return removed

    def compute_size_after(self, position: Extent | None) -> int:
        """Bytes on disk behind `position`; all of them if None."""
        if position is None:
            return self.size
        sizes = list(self._sizes.items())
        later = [size for number, size in sizes if number > position.segment]
        rest = self._sizes.get(position.segment, position.end) - position.end
        return sum(later) + rest

    def _find_undamaged_end(self, number: int) -> int:
        """Where the last whole record of a segment ends, as far as it was read."""
        end = self._sizes[number]
        damaged = {extent.end: extent.start for extent in self._damaged if extent.segment == number}
        while end in damaged:
            end = damaged[end]
        return end

    def sync(self) -> None:
        """Brings what was appended to the disk. Raises OSError when the disk fails."""
        with self._switching:
            descriptor = os.dup(self._file) if self._is_dirty else -1
            self._is_dirty = False
        if descriptor >= 0:
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        self.sync()
        os.close(self._file)
        os.close(self._lock)

    @property
    def segments(self) -> list[int]:
        return sorted(self._sizes)

    @property
    def damaged_records(self) -> int:
        """Records found with a wrong checksum: their events are lost, which only a failing disk
        does."""
        return len(self._damaged)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(list(self._sizes.values()))  # copied first: another thread removes segments

    def _get_next_number(self) -> int:
        return max(max(self._sizes, default=0) + 1, int(time.time()))

    def _write(self, record: bytes, start: int) -> None:
        try:
            written = os.write(self._file, record)
        except OSError as error:
            written, reason = 0, error.strerror
        else:
            reason = "only a part fitted"
        if written != len(record):
            os.ftruncate(self._file, start)
            raise SpoolFull(
                f"{self._get_path(self.current)}: cannot write ({reason}). Make room on this disk."
            )

    def _open_segment(self, number: int) -> None:
        """Raises SpoolFull, the segment before it still in use, when the disk has no room for
        another file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL | os.O_CLOEXEC
        path = self._get_path(number)
        try:
            fresh = os.open(path, flags, 0o600)
        except OSError as error:
            raise SpoolFull(
                f"{path}: cannot create ({error.strerror}). Make room on this disk."
            ) from error
        _sync_directory(self.directory)
        if self._file >= 0:
            self.sync()
        with self._switching:
            before, self._file = self._file, fresh
        if before >= 0:
            os.close(before)
        self.current = number
        self._sizes[number] = 0

    def _list_records(self, number: int, start: int) -> Iterator[Extent]:
        with self._get_path(number).open("rb") as file:
            file.seek(start)
            while line := file.readline():
                if _parse_record(line) is not None:
                    yield Extent(number, start, start + len(line))
                else:
                    self._damaged.add(Extent(number, start, start + len(line)))
                start += len(line)

    def _trim(self, number: int) -> int:
        """Cuts a record that a kill left half written from a segment's end; returns the segment's
        size."""
        with self._get_path(number).open("r+b") as file:
            size = whole = file.seek(0, os.SEEK_END)
            while whole:
                step = min(whole, _STEP_BYTES)
                file.seek(whole - step)
                newline = file.read(step).rfind(b"\n")
                whole += newline + 1 - step
                if newline >= 0:
                    break
            file.truncate(whole)
        self.torn_bytes += size - whole
        return whole

    def _list_numbers(self) -> Iterator[int]:
        for path in self.directory.iterdir():
            if (found := _SEGMENT.fullmatch(path.name)) is not None:
                yield int(found[1])

    def _get_path(self, number: int) -> Path:
        return self.directory / f"{number:012d}.segment"


@dataclass(frozen=True)
class _Record:
    payload: bytes
    turn: Turn


def _parse_record(record: bytes) -> _Record | None:
    """None when it is torn or its checksum is wrong."""
    head = _RECORD.match(record[:_HEADER_BYTES])
    if head is None or not record.endswith(b"\n"):
        return None
    payload = record[head.end() : -1]
    if len(payload) != int(head[2]) or zlib.crc32(payload) != int(head[1], 16):
        return None
    return _Record(payload, Turn(int(head[3] or b"0")))


def _open_locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise SpoolError(
            f"{path.parent} is in use by another receiver (process {holder}). "
            "Stop it, or give this one its own KINTSUGI_DATA_DIR."
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _get_kept_name(directory: Path) -> str:
    """This spool's name in event ids: made once and kept beside the segments, so that both are lost
    together."""
    path = directory / "name"
    if not path.exists():
        fresh = path.with_suffix(".new")
        fresh.write_text(f"{socket.gethostname().split('.')[0][:40]}-{secrets.token_hex(4)}")
        fresh.replace(path)
        _sync_directory(directory)
    return path.read_text().strip()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
