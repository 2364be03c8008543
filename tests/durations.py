"""How long each test took when it was last recorded: wall-clock and CPU seconds, in
`durations.tsv`.

A row's key is the test file's name and the test's with its parameters, without folder and class, so
that a test keeps its row when its file moves. A test without a row is quick: rows below
`WORTH_A_ROW_S` are not written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("durations.tsv")
WORTH_A_ROW_S = 0.1
_SCHEDSTAT = Path("/proc/self/schedstat")
_HEADER = "test\twall_s\tcpu_s\n"


@dataclass(frozen=True)
class Duration:
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def longest_s(self) -> float:
        """What waits counts by the clock, what computes by the processor."""
        return max(self.wall_s, self.cpu_s)

    def __add__(self, other: Duration) -> Duration:
        return Duration(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def __sub__(self, other: Duration) -> Duration:
        return Duration(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)


QUICK = Duration()


def read_clocks() -> Duration:
    """Now: by the clock without what this thread waited for a processor that others used, and by
    the processors, for this process and the children that it has waited for."""
    times = os.times()
    cpu_s = times.user + times.system + times.children_user + times.children_system
    return Duration(time.monotonic() - _read_run_delay_s(), cpu_s)


def _read_run_delay_s() -> float:
    try:
        fields = _SCHEDSTAT.read_text().split()
    except OSError:
        return 0.0
    return int(fields[1]) / 1e9 if len(fields) == 3 else 0.0


def get_key(item: pytest.Item) -> str:
    return f"{item.path.name}::{item.name}"


def load_durations(file: Path = FILE) -> dict[str, Duration]:
    if not file.exists():
        return {}
    durations = {}
    for line in file.read_text().splitlines()[1:]:
        key, wall_s, cpu_s = line.split("\t")
        durations[key] = Duration(float(wall_s), float(cpu_s))
    return durations


def save_durations(durations: dict[str, Duration], file: Path = FILE) -> None:
    rows = [
        f"{key}\t{duration.wall_s:.2f}\t{duration.cpu_s:.2f}\n"
        for key, duration in sorted(durations.items())
        if duration.longest_s >= WORTH_A_ROW_S
    ]
    file.write_text(_HEADER + "".join(rows))


def get_slowest(measured: Iterable[tuple[str, Duration]]) -> dict[str, Duration]:
    """By key, the longest of what was measured for it: two classes may have a test of one name."""
    slowest: dict[str, Duration] = {}
    for key, duration in measured:
        if duration.longest_s >= slowest.get(key, QUICK).longest_s:
            slowest[key] = duration
    return slowest
