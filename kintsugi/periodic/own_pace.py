"""How long a second of this process's computing takes: what the kernel says its threads waited for
a processor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from incidents.checks.overload import Pace

_WINDOW_S = 60.0
# Fewer looks or less computing say nothing yet.
_LEAST_S, _LEAST_RUN_S = 20.0, 0.05
_THREADS = Path("/proc/self/task")
_NS = 1e-9

Times = Mapping[int, tuple[int, int]]
"""By thread: nanoseconds on a processor, and waiting for one."""


def thread_times(threads: Path = _THREADS) -> dict[int, tuple[int, int]]:
    """Empty where the kernel does not say (no Linux, no /proc)."""
    found = {}
    for path in threads.glob("*/schedstat"):
        try:
            run, waited, _ = path.read_text().split()
        except (OSError, ValueError):  # a thread that has just ended
            continue
        found[int(path.parent.name)] = (int(run), int(waited))
    return found


class OwnPace:
    """Asked every few seconds; answers by the last minute."""

    def __init__(self) -> None:
        self._begun_s: float | None = None
        self._last: Times = {}
        self._looks: deque[tuple[float, float, float]] = deque()

    def look(self) -> Pace:
        return self.seen(thread_times(), time.monotonic())

    def seen(self, threads: Times, now_s: float) -> Pace:
        is_first = self._begun_s is None
        begun_s = self._begun_s = now_s if self._begun_s is None else self._begun_s
        if not is_first:
            since = [self._since(thread, times) for thread, times in threads.items()]
            self._looks.append(
                (
                    now_s,
                    sum(run for run, _ in since) * _NS,
                    sum(waited for _, waited in since) * _NS,
                )
            )
        self._last = threads
        while self._looks and self._looks[0][0] < now_s - _WINDOW_S:
            self._looks.popleft()
        up_for = timedelta(seconds=now_s - begun_s)
        run_s, waited_s = sum(look[1] for look in self._looks), sum(look[2] for look in self._looks)
        if now_s - begun_s < _LEAST_S or run_s < _LEAST_RUN_S:
            return Pace(None, up_for)
        return Pace((run_s + waited_s) / run_s, up_for)

    def _since(self, thread: int, times: tuple[int, int]) -> tuple[int, int]:
        run, waited = self._last.get(thread, (0, 0))
        return max(0, times[0] - run), max(0, times[1] - waited)
