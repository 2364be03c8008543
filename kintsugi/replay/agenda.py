"""The virtual clock, and what is due when. Time only moves from one due moment to the next."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from datetime import datetime

Deed = Callable[[], None]


class Agenda:
    """Deeds by time; those of one moment come in the order in which they were added. Called, it
    gives the time."""

    def __init__(self, starts_at: datetime) -> None:
        self._now = starts_at
        self._heap: list[tuple[datetime, int, Deed]] = []
        self._order = itertools.count()

    def __call__(self) -> datetime:
        return self._now

    def add(self, at: datetime, deed: Deed) -> None:
        """What is already past is due now: the clock never runs backwards."""
        heapq.heappush(self._heap, (max(at, self._now), next(self._order), deed))

    def get_next_at(self) -> datetime | None:
        return self._heap[0][0] if self._heap else None

    def take(self) -> Deed:
        """The next deed; the clock moves to its time. Raises IndexError when nothing is left."""
        at, _, deed = heapq.heappop(self._heap)
        self._now = at
        return deed

    def move(self, to: datetime) -> None:
        self._now = max(self._now, to)
