"""Moves spooled batches into the inbox of the database, each once, in the order of the spool.

The inbox keeps one position for each spool: the last batch of it that was taken. Batches and the
new position are committed together, so that after a kill at any moment the two agree, and nothing
is asked or acknowledged batch by batch. Runs in one thread of its own beside the receiver's loop:
whatever waits for a database waits here. While the database is away, or the inbox is full because
ingest is, batches stay on disk and nothing is lost.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from detectors.receivers.counters import Counters
from detectors.receivers.spool import Batch, Extent, Spool, SpoolError

_log = logging.getLogger(__name__)
_CHECK_EVERY_S = 1.0
_RETRY_EVERY_S = 1.0
# In one transaction at most: some milliseconds of COPY.
MOST_BATCHES = 64
_MOST_BYTES = 4 * 1024 * 1024
# In memory and not yet delivered at most; what exceeds it stays on disk and is read from there.
FRESH_BATCHES = 256
FRESH_BYTES = 16 * 1024 * 1024
# Past this ingest is far behind or dead: what comes now waits on disk, where it costs the database
# nothing. Our choice: as much as the spool itself may hold.
MOST_INBOX_BYTES = 2 * 1024**3
OLDEST_IN_INBOX = timedelta(hours=1)
# A worker works until the inbox is empty: past this many waiting batches one doorbell a second is
# enough, and the doorbell's own queue stays short while no worker runs.
_MANY_WAITING = 50


class InboxAway(Exception):
    """The inbox did not answer or did not take the batches: says why. They are delivered later."""


class PositionMoved(Exception):
    """Another process has delivered from this spool meanwhile, or our last transaction was
    committed although its answer was lost. The position is asked again."""


@dataclass(frozen=True)
class Backlog:
    """What waits in the inbox, whoever put it there."""

    batches: int
    size: int  # bytes
    age: timedelta  # of the oldest


class Inbox(Protocol):
    """What the receiver needs of the database. Each call may block for a while."""

    def read_position(self, receiver: str) -> Extent | None:
        """The last batch of this spool that was taken; None: none was. Raises InboxAway."""

    def put(self, receiver: str, batches: Sequence[Batch], after: Extent | None) -> None:
        """Takes all of the batches and moves the position from `after` to the last of them, or does
        nothing. Raises InboxAway, and PositionMoved when the position is not `after`."""

    def read_backlog(self) -> Backlog:
        """Raises InboxAway."""

    def wake_worker(self) -> None:
        """Wakes a worker. A bell that nobody hears costs time, never work."""


class Delivery:
    """One spool's way into the inbox. `post` from the receiver's thread, everything else in the
    delivery's own."""

    def __init__(
        self, spool: Spool, inbox: Inbox, *, counters: Counters, clock: Callable[[], float]
    ) -> None:
        self._spool = spool
        self._inbox = inbox
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_stopping = False
        self._fresh: deque[Batch] = deque()
        self._fresh_bytes = 0
        # While behind, batches are read from the disk; `_newest` is the last one posted.
        self._is_behind = True
        self._newest: Extent | None = None
        self._position: Extent | None = None
        self._is_position_known = False
        self._retry_s = 0.0
        self._check_s = 0.0
        self._rang_s = 0.0
        # Whether batches may be in the inbox for which no bell has rung: also those that a process
        # before this one put there, or a call whose answer was lost.
        self._owes_bell = False
        self._waiting_batches = 0
        self._is_held_back = False
        self._is_away = False

    @property
    def undelivered_bytes(self) -> int:
        """On disk and not known to be in the inbox."""
        return self._spool.compute_size_after(self._position)

    @property
    def position(self) -> Extent | None:
        """The last batch that is known to be in the inbox."""
        return self._position

    def post(self, batch: Batch) -> None:
        with self._lock:
            self._newest = batch.extent
            if self._is_behind:
                pass
            elif len(self._fresh) >= FRESH_BATCHES or self._fresh_bytes >= FRESH_BYTES:
                self._is_behind = True
                self._fresh.clear()
                self._fresh_bytes = 0
            else:
                self._fresh.append(batch)
                self._fresh_bytes += batch.extent.size
        self._wake.set()

    def run(self) -> None:
        while not self._is_stopping:
            self._wake.wait(0.25)
            self._wake.clear()
            self.deliver_waiting()
        self.deliver_waiting()
        if self._owes_bell:
            self._ring_doorbell()

    def stop(self) -> None:
        self._is_stopping = True
        self._wake.set()

    def deliver_waiting(self) -> None:
        """Delivers what there is, until there is no more or the inbox does not take it."""
        now = self._clock()
        if now < self._retry_s:
            return
        try:
            self._read_position_if_unknown()
            while batches := self._read_next_batches():
                self._check_backlog(now)
                if self._is_held_back:
                    return
                self._deliver(batches, now)
                now = self._clock()
            self._ring_if_due(now, is_urgent=False)
        except InboxAway as error:
            self._retry_later(f"the inbox takes no events ({error})", now)
        except OSError as error:
            self._retry_later(f"the spool cannot be read ({error})", now)
        except PositionMoved:
            self._is_position_known = False

    def _retry_later(self, trouble: str, now: float) -> None:
        self._counters.deliveries_failed += 1
        self._retry_s = now + _RETRY_EVERY_S
        if not self._is_away:
            _log.warning("%s; events stay on disk", trouble)
        self._is_away = True

    def _read_position_if_unknown(self) -> None:
        """After a start, and whenever an answer was lost."""
        if self._is_position_known:
            return
        self._position = self._inbox.read_position(self._spool.receiver)
        self._is_position_known = True
        self._owes_bell = True
        with self._lock:
            self._is_behind = True
            self._fresh.clear()
            self._fresh_bytes = 0
        self._spool.remove_delivered(self._position)

    def _read_next_batches(self) -> list[Batch]:
        """Those that follow the position, oldest first, without records whose checksum is wrong.
        Raises OSError."""
        with self._lock:
            if not self._is_behind:
                return _take_first(self._fresh)
        found: list[Batch] = []
        size = 0
        for extent in self._spool.list_extents(after=self._position):
            try:
                found.append(self._spool.read(extent))
            except SpoolError as error:
                _log.error("a batch is lost: %s", error)
                continue
            size += extent.size
            if len(found) >= MOST_BATCHES or size >= _MOST_BYTES:
                break
        if not found:
            self._catch_up()
        return found

    def _catch_up(self) -> None:
        """The disk was read to its end and holds nothing more: from here on batches come from
        memory, unless one was spooled meanwhile."""
        with self._lock:
            is_all_delivered = self._newest is None or (
                self._position is not None and self._newest <= self._position
            )
            self._is_behind = self._is_behind and not is_all_delivered

    def _check_backlog(self, now: float) -> None:
        """Once a second whether the inbox has room. Raises InboxAway."""
        if now < self._check_s:
            return
        self._check_s = now + _CHECK_EVERY_S
        backlog = self._inbox.read_backlog()
        self._waiting_batches = backlog.batches
        is_full = backlog.size >= MOST_INBOX_BYTES or backlog.age >= OLDEST_IN_INBOX
        if is_full and not self._is_held_back:
            _log.warning(
                "ingest is behind: %d batches wait in the database, the oldest for %d s; what comes"
                " now waits on disk. Does an ingest worker run?",
                backlog.batches,
                backlog.age.total_seconds(),
            )
        self._is_held_back = is_full
        if is_full:
            self._owes_bell = True
            self._ring_if_due(now, is_urgent=False)

    def _deliver(self, batches: Sequence[Batch], now: float) -> None:
        """Raises InboxAway and PositionMoved; then nothing was taken, or the position tells."""
        self._inbox.put(self._spool.receiver, batches, self._position)
        self._position = batches[-1].extent
        self._is_away = False
        with self._lock:
            while self._fresh and self._fresh[0].extent <= self._position:
                self._fresh_bytes -= self._fresh.popleft().extent.size
        self._spool.remove_delivered(self._position)
        self._owes_bell = True
        self._ring_if_due(now, is_urgent=any(batch.is_urgent for batch in batches))

    def _ring_if_due(self, now: float, *, is_urgent: bool) -> None:
        """A bell that is held back while workers work rings a second later: the last of them may
        have looked just before these batches came."""
        if not self._owes_bell:
            return
        is_at_work = self._waiting_batches > _MANY_WAITING or (
            self._waiting_batches > 0 and not is_urgent
        )
        if is_at_work and now < self._rang_s + _CHECK_EVERY_S:
            return
        self._rang_s = now
        self._ring_doorbell()

    def _ring_doorbell(self) -> None:
        self._owes_bell = False
        self._inbox.wake_worker()


def _take_first(fresh: Sequence[Batch]) -> list[Batch]:
    """As many as go into one transaction; they stay where they are until they are delivered."""
    found: list[Batch] = []
    size = 0
    for batch in fresh:
        found.append(batch)
        size += batch.extent.size
        if len(found) >= MOST_BATCHES or size >= _MOST_BYTES:
            break
    return found
