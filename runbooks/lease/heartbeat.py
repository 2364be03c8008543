"""Keeps the leases of the turns under way in this process alive, so that a lease can be short: a
worker that was killed is missed within seconds, and one that takes long over a step is not. Never
starts or ends a lease.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connection, connections
from django.db.models import F

from runbooks.models import Run

_log = logging.getLogger(__name__)
# Several beats in a lease: one that comes late, on a loaded machine, costs nothing.
BEAT = timedelta(seconds=1)
# Longer than the longest turn: four commands at 30 s each, which is also Celery's time limit for a
# task. A turn that hangs for longer is given up: another worker looks what it has done.
LONGEST_TURN = timedelta(seconds=150)


class _Heart:
    """One thread for all turns of a process, there while one is under way."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # When each turn began and when its lease was last renewed.
        self._turns: dict[tuple[int, int], tuple[float, float]] = {}
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    @contextmanager
    def keep_alive(self, run: Run) -> Iterator[None]:
        """While it lasts the run's lease, as this fence holds it, does not run out.

        Inside a transaction of the caller (a replay, a test) there is nothing to keep: no other
        worker sees the lease before that ends, and a beat would only wait for it ("database table
        is locked" with SQLite in memory).
        """
        if connection.in_atomic_block:
            yield
            return
        turn = (run.pk, run.fence)
        with self._guard:
            if self._process != os.getpid():  # a fork has the table of its parent, and no thread
                self._turns, self._thread, self._process = {}, None, os.getpid()
            self._turns[turn] = (time.monotonic(), time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._guard:
                self._turns.pop(turn, None)

    def _beat(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(BEAT.total_seconds())
            with self._guard:
                if not self._turns:
                    self._thread = None
                    return
                now = time.monotonic()
                late = self._get_late(now)
            self._renew(late, now)
            # The next beat asks for the settings anew: a replay, which has a database of its own,
            # may have begun or ended meanwhile.
            del connections[DEFAULT_DB_ALIAS]

    def _get_late(self, now: float) -> dict[tuple[int, int], float]:
        """The turns whose lease is to be renewed, by how much. What hangs is left to run out."""
        late = {}
        for turn, (begun, renewed) in self._turns.items():
            is_late = now - renewed >= BEAT.total_seconds()
            if is_late and now - begun < LONGEST_TURN.total_seconds():
                late[turn] = now - renewed
        return late

    def _renew(self, turns: dict[tuple[int, int], float], now: float) -> None:
        """By the time that has passed: the run's own clock may be another than the wall's.

        What the database refuses is made up for by the next beat.
        """
        try:
            for turn, passed in turns.items():
                run_id, fence = turn
                leased = Run.objects.filter(pk=run_id, fence=fence, leased_until__isnull=False)
                leased.update(leased_until=F("leased_until") + timedelta(seconds=passed))
                with self._guard:
                    if turn in self._turns:
                        self._turns[turn] = (self._turns[turn][0], now)
        except DatabaseError as error:  # the turn itself meets it too, and says so
            _log.info("leases could not be renewed: %s", error)
        finally:
            connection.close()


_heart = _Heart()
keep_alive = _heart.keep_alive
