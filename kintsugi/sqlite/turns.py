"""Turns in the order of arrival, for threads that want one thing. Knows no database."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A lock that goes to whoever has waited longest; `threading.Lock` may go to the one that just
    released it.

    Whoever has the turn gives it back, from whichever thread.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Lock] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, *, within_s: float) -> bool:
        """Waits for the turn. False: it did not come within that time."""
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return True
            place = threading.Lock()
            place.acquire()
            self._waiting.append(place)
        try:
            has_turn = place.acquire(timeout=within_s)
        except BaseException:
            if not self._leave(place):
                self.give_back()
            raise
        return has_turn or not self._leave(place)

    def give_back(self) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False

    def _leave(self, place: threading.Lock) -> bool:
        """Whether the place was still in the queue; otherwise the turn has just come."""
        with self._mutex:
            if place in self._waiting:
                self._waiting.remove(place)
                return True
        return False
