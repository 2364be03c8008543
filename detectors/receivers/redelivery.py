"""Offers spooled batches to the ingest queue, and again until the database says that they are committed.

Runs in one thread of its own beside the receiver's loop: whatever waits for a broker or a database waits here. Never
counts: an event offered twice has one id, and ingest counts it once.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from detectors.receivers.counters import Counters
from detectors.receivers.spool import Batch, Committed, Extent, Spool, SpoolError

_log = logging.getLogger(__name__)
# Ingest commits within milliseconds; what took longer than this was lost on its way, or stands in a long queue.
FIRST_PATIENCE_S = 3.0
LONGEST_PATIENCE_S = 30.0
_CHECK_EVERY_S = 1.0
_CHECK_BEHIND_S = 0.25
# In memory at most; what exceeds it stays on disk and is read when there is room.
_FRESH = 256
# Offered and not committed at most: the queue's memory is bounded too, also where the broker lives in our process.
_OUTSTANDING = 1000
_AGAIN_PER_CHECK = 500


class OfferError(Exception):
    """The queue did not take a batch: says why. It is offered again."""


class CommittedUnknown(Exception):
    """The database did not say what is committed: says why. It is asked again."""


class Ledger(Protocol):
    """What the receiver needs of queue and database. Each call may block for a while."""

    def offer(self, batch: Batch) -> None:
        """Puts a batch on the queue. Raises OfferError."""

    def committed(self, receiver: str, prefixes: Mapping[int, int]) -> Sequence[Extent]:
        """What is committed of the segments named, at or after the offset of each. Raises CommittedUnknown."""

    def released(self, receiver: str, segments: Sequence[int]) -> None:
        """These segments are gone: their marks are needed no more. Raises CommittedUnknown."""


@dataclass
class _Offered:
    attempts: int
    due_s: float


class Courier:
    """One spool's way to the queue. `post` from the receiver's thread, everything else in the courier's."""

    def __init__(self, spool: Spool, ledger: Ledger, *, counters: Counters, clock: Callable[[], float]) -> None:
        self._spool = spool
        self._ledger = ledger
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_stopping = False
        self._fresh: deque[Batch] = deque()
        # After a start, what is on disk is still to be read; `_newest` is the last batch posted.
        self._is_behind = spool.size > 0
        self._read_to: Extent | None = None
        self._newest: Extent | None = None
        self._outstanding: dict[Extent, _Offered] = {}
        self._committed = Committed()
        self._check_s = 0.0
        self._broker_retry_s = 0.0
        self._is_database_known = False
        self._to_release: list[int] = []

    @property
    def outstanding(self) -> int:
        """Batches in memory that are offered and not known to be committed."""
        return len(self._outstanding) + len(self._fresh)

    def post(self, batch: Batch) -> None:
        with self._lock:
            self._newest = batch.extent
            if self._is_behind or self.outstanding >= _OUTSTANDING or len(self._fresh) >= _FRESH:
                self._is_behind = True
            else:
                self._fresh.append(batch)
                self._read_to = batch.extent
        self._wake.set()

    def run(self) -> None:
        while not self._is_stopping:
            self._wake.wait(0.25)
            self._wake.clear()
            self.step()
        self.step()

    def stop(self) -> None:
        self._is_stopping = True
        self._wake.set()

    def step(self) -> None:
        """Offers what is new; every second asks what is committed and offers again what is overdue."""
        now = self._clock()
        while self._fresh and now >= self._broker_retry_s:
            batch = self._fresh[0]
            self._outstanding[batch.extent] = _Offered(0, now + FIRST_PATIENCE_S)
            if not self._offer(batch, now):
                break
            self._fresh.popleft()
        if now >= self._check_s and (self._outstanding or self._is_behind or self._to_release):
            self._check_s = now + (_CHECK_BEHIND_S if self._is_behind else _CHECK_EVERY_S)
            if self._learn_committed(now):
                self._release()
                self._catch_up(now)
                self._offer_overdue(now)

    def _offer(self, batch: Batch, now: float) -> bool:
        try:
            self._ledger.offer(batch)
        except OfferError as error:
            self._counters.offers_failed += 1
            if now >= self._broker_retry_s + _CHECK_EVERY_S:
                _log.warning(
                    "the ingest queue does not take events (%s); they are kept on disk and offered again", error
                )
            self._broker_retry_s = now + _CHECK_EVERY_S
            return False
        return True

    def _learn_committed(self, now: float) -> bool:
        prefixes = {number: self._committed.prefix(number) for number in self._spool.segments}
        try:
            marks = self._ledger.committed(self._spool.receiver, prefixes)
        except CommittedUnknown as error:
            if self._is_database_known:
                _log.warning("the database does not say what is committed (%s); events stay on disk", error)
            self._is_database_known = False
            return False
        for mark in marks:
            self._committed.add(mark)
        self._outstanding = {
            extent: offered for extent, offered in self._outstanding.items() if not self._committed.covers(extent)
        }
        if not self._is_database_known:
            self._is_database_known = True
            for offered in self._outstanding.values():
                offered.due_s, offered.attempts = min(offered.due_s, now + FIRST_PATIENCE_S), 0
        return True

    def _release(self) -> None:
        gone = self._spool.forget(self._committed)
        for segment in gone:
            self._committed.drop(segment)
        self._to_release += gone
        if self._to_release:
            try:
                self._ledger.released(self._spool.receiver, self._to_release)
            except CommittedUnknown:
                return
            self._to_release = []

    def _catch_up(self, now: float) -> None:
        """Takes batches that are on disk alone into memory, as far as there is room."""
        if not self._is_behind or len(self._outstanding) >= _OUTSTANDING // 2:
            return
        with self._lock:
            newest, after = self._newest, self._read_to
        for extent in self._spool.extents(after=after):
            if len(self._outstanding) >= _OUTSTANDING:
                break
            after = extent
            if not self._committed.covers(extent):
                self._outstanding.setdefault(extent, _Offered(0, now))
        else:
            with self._lock:
                self._is_behind = self._newest != newest
        with self._lock:
            if after is not None and (self._read_to is None or after > self._read_to):
                self._read_to = after

    def _offer_overdue(self, now: float) -> None:
        overdue = [extent for extent, offered in self._outstanding.items() if offered.due_s <= now]
        for extent in sorted(overdue)[:_AGAIN_PER_CHECK]:
            if now < self._broker_retry_s or self._is_stopping:
                return
            offered = self._outstanding[extent]
            try:
                batch = self._spool.read(extent)
            except (SpoolError, OSError) as error:
                _log.error("a batch of %s cannot be read again (%s)", self._spool.directory, error)
                offered.due_s = now + LONGEST_PATIENCE_S
                continue
            if not self._offer(batch, now):
                return
            self._counters.offered_again += 1
            offered.attempts += 1
            offered.due_s = now + min(FIRST_PATIENCE_S * 2.0 ** min(offered.attempts, 10), LONGEST_PATIENCE_S)
