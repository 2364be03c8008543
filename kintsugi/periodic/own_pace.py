"""How long a second of this process's computing takes: what the kernel says its threads waited for
a processor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from incidents.checks.overload import Pace

_WINDOW_S = 60.0
# A shorter time or less computing say nothing yet.
_LEAST_S, _LEAST_RUN_S = 20.0, 0.05
_THREADS = Path("/proc/self/task")
_NS = 1e-9

Times = Mapping[int, tuple[int, int]]
"""By thread: nanoseconds on a processor, and waiting for one."""


class _Sample(NamedTuple):
    at_s: float
    run_s: float
    waited_s: float


def read_thread_times(threads: Path = _THREADS) -> dict[int, tuple[int, int]]:
    """Empty where the kernel does not say (no Linux, no /proc)."""
    times = {}
    for path in threads.glob("*/schedstat"):
        try:
            run, waited, _ = path.read_text().split()
        except (OSError, ValueError):  # a thread that has just ended
            continue
        times[int(path.parent.name)] = (int(run), int(waited))
    return times


class OwnPace:
    """Asked every few seconds; answers by the last minute."""

    def __init__(self) -> None:
        self._begun_s: float | None = None
        self._last: Times = {}
        self._samples: deque[_Sample] = deque()

    def measure(self) -> Pace:
        return self.update(read_thread_times(), time.monotonic())

    def update(self, threads: Times, now_s: float) -> Pace:
        if self._begun_s is None:
            self._begun_s = now_s
        else:
            self._samples.append(self._compute_sample(threads, now_s))
        self._last = threads
        while self._samples and self._samples[0].at_s < now_s - _WINDOW_S:
            self._samples.popleft()
        up_s = now_s - self._begun_s
        up_for = timedelta(seconds=up_s)
        run_s = sum(sample.run_s for sample in self._samples)
        waited_s = sum(sample.waited_s for sample in self._samples)
        if up_s < _LEAST_S or run_s < _LEAST_RUN_S:
            return Pace(None, up_for)
        return Pace((run_s + waited_s) / run_s, up_for)

    def _compute_sample(self, threads: Times, now_s: float) -> _Sample:
        """What all threads computed and waited since the last measurement."""
        run_ns = waited_ns = 0
        for thread, (run, waited) in threads.items():
            run_before, waited_before = self._last.get(thread, (0, 0))
            run_ns += max(0, run - run_before)
            waited_ns += max(0, waited - waited_before)
        return _Sample(now_s, run_ns * _NS, waited_ns * _NS)
