"""Offers spooled batches to the ingest queue, and again when the queue has lost them, until they
are committed.

A batch is offered again when it is not committed and the queue no longer holds it: waiting in a
long queue is no reason for a copy, which would only make the queue longer. Runs in one thread of
its own beside the receiver's loop: whatever waits for a broker or a database waits here. Never
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
# Ingest commits within milliseconds of taking a batch from the queue; what took longer than this
# may have been lost.
FIRST_PATIENCE_S = 3.0
LONGEST_PATIENCE_S = 30.0
_CHECK_EVERY_S = 1.0
_CHECK_BEHIND_S = 0.25
# In memory and not yet offered at most; what exceeds it stays on disk and is read when there is
# room.
_FRESH = 256
FRESH_BYTES = 16 * 1024 * 1024
# Offered and not committed at most: the queue's memory is bounded too, also where the broker lives
# in our process. A message is about half as large again as its batch on disk. Our choice: several
# seconds of work for ingest.
_OUTSTANDING = 1000
OUTSTANDING_BYTES = 32 * 1024 * 1024
_AGAIN_PER_CHECK = 500


class OfferError(Exception):
    """The queue did not take a batch: says why. It is offered again."""


class CommittedUnknown(Exception):
    """The database did not say what is committed: says why. It is asked again."""


class Ledger(Protocol):
    """What the receiver needs of queue and database. Each call may block for a while."""

    def offer(self, batch: Batch) -> None:
        """Puts a batch at the end of the queue. Raises OfferError."""

    def waiting(self) -> int:
        """How many batches stand in the queue, whoever put them there. Raises OfferError."""

    def committed(self, receiver: str, prefixes: Mapping[int, int]) -> Sequence[Extent]:
        """What is committed of the segments named, at or after the offset of each. Raises
        CommittedUnknown."""

    def released(self, receiver: str, segments: Sequence[int]) -> None:
        """These segments are gone: their marks are needed no more. Raises CommittedUnknown."""


@dataclass
class _Offered:
    """`number` counts this receiver's offers: 0 is on disk and was not offered since the start."""

    number: int
    attempts: int
    due_s: float


class Courier:
    """One spool's way to the queue. `post` from the receiver's thread, everything else in the
    courier's."""

    def __init__(
        self, spool: Spool, ledger: Ledger, *, counters: Counters, clock: Callable[[], float]
    ) -> None:
        self._spool = spool
        self._ledger = ledger
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_stopping = False
        self._fresh: deque[Batch] = deque()
        self._fresh_bytes = 0
        # After a start, what is on disk is still to be read; `_newest` is the last batch posted.
        self._is_behind = spool.size > 0
        self._read_to: Extent | None = None
        self._newest: Extent | None = None
        self._outstanding: dict[Extent, _Offered] = {}
        self._outstanding_bytes = 0
        self._offers = 0
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
            if self._is_behind or not self._has_room():
                self._is_behind = True
            else:
                self._fresh.append(batch)
                self._fresh_bytes += batch.extent.size
                self._read_to = batch.extent
        self._wake.set()

    def _has_room(self) -> bool:
        if len(self._fresh) >= _FRESH or self._fresh_bytes >= FRESH_BYTES:
            return False
        return self.outstanding < _OUTSTANDING and self._outstanding_bytes < OUTSTANDING_BYTES

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
        """Offers what is new; every second asks what is committed and offers again what is
        overdue."""
        now = self._clock()
        while self._fresh and now >= self._broker_retry_s:
            batch = self._fresh[0]
            if not self._offer(batch, now):
                break
            self._keep(batch.extent, _Offered(self._offers, 0, now + FIRST_PATIENCE_S))
            with self._lock:
                self._fresh.popleft()
                self._fresh_bytes -= batch.extent.size
        if now >= self._check_s and (self._outstanding or self._is_behind or self._to_release):
            self._check_s = now + (_CHECK_BEHIND_S if self._is_behind else _CHECK_EVERY_S)
            if self._learn_committed(now):
                self._release()
                self._catch_up(now)
                self._offer_overdue(now)

    def _keep(self, extent: Extent, offered: _Offered) -> None:
        if extent not in self._outstanding:
            self._outstanding_bytes += extent.size
            self._outstanding[extent] = offered

    def _offer(self, batch: Batch, now: float) -> bool:
        try:
            self._ledger.offer(batch)
        except OfferError as error:
            self._counters.offers_failed += 1
            self._broker_is_away(error, now)
            return False
        self._offers += 1
        return True

    def _broker_is_away(self, error: OfferError, now: float) -> None:
        if now >= self._broker_retry_s + _CHECK_EVERY_S:
            _log.warning(
                "the ingest queue does not take events (%s); they are kept on disk and offered"
                " again",
                error,
            )
        self._broker_retry_s = now + _CHECK_EVERY_S

    def _learn_committed(self, now: float) -> bool:
        prefixes = {number: self._committed.prefix(number) for number in self._spool.segments}
        try:
            marks = self._ledger.committed(self._spool.receiver, prefixes)
        except CommittedUnknown as error:
            if self._is_database_known:
                _log.warning(
                    "the database does not say what is committed (%s); events stay on disk", error
                )
            self._is_database_known = False
            return False
        for mark in marks:
            self._committed.add(mark)
        self._outstanding = {
            extent: offered
            for extent, offered in self._outstanding.items()
            if not self._committed.covers(extent)
        }
        self._outstanding_bytes = sum(extent.size for extent in self._outstanding)
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
        is_half_full = (
            len(self._outstanding) >= _OUTSTANDING // 2
            or self._outstanding_bytes >= OUTSTANDING_BYTES // 2
        )
        if not self._is_behind or is_half_full:
            return
        with self._lock:
            newest, after = self._newest, self._read_to
        for extent in self._spool.extents(after=after):
            if (
                len(self._outstanding) >= _OUTSTANDING
                or self._outstanding_bytes >= OUTSTANDING_BYTES
            ):
                break
            after = extent
            if not self._committed.covers(extent):
                self._keep(extent, _Offered(0, 0, now))
        else:
            with self._lock:
                self._is_behind = self._newest != newest
        with self._lock:
            if after is not None and (self._read_to is None or after > self._read_to):
                self._read_to = after

    def _offer_overdue(self, now: float) -> None:
        """Offers what was lost on its way; what the queue still holds is waited for, however long
        that takes."""
        is_any_due = any(offered.due_s <= now for offered in self._outstanding.values())
        if not is_any_due or now < self._broker_retry_s or self._is_stopping:
            return
        try:
            last_taken = self._offers - self._ledger.waiting()
        except OfferError as error:
            self._broker_is_away(error, now)
            return
        for offered in self._outstanding.values():
            if offered.number and offered.number > last_taken:
                offered.due_s = max(offered.due_s, now + FIRST_PATIENCE_S)
        overdue = [extent for extent, offered in self._outstanding.items() if offered.due_s <= now]
        for extent in sorted(overdue)[:_AGAIN_PER_CHECK]:
            if now < self._broker_retry_s or self._is_stopping:
                return
            self._offer_from_disk(extent, now)

    def _offer_from_disk(self, extent: Extent, now: float) -> None:
        offered = self._outstanding[extent]
        try:
            batch = self._spool.read(extent)
        except (SpoolError, OSError) as error:
            _log.error("a batch of %s cannot be read again (%s)", self._spool.directory, error)
            offered.due_s = now + LONGEST_PATIENCE_S
            return
        if not self._offer(batch, now):
            return
        if offered.number:
            self._counters.offered_again += 1
            offered.attempts += 1
        offered.number = self._offers
        offered.due_s = now + min(
            FIRST_PATIENCE_S * 2.0 ** min(offered.attempts, 10), LONGEST_PATIENCE_S
        )
