"""How long tests wait for real parts. A deadline ends a failure and measures nothing, so it counts
the seconds in which no task waited for a processor: on a machine that is busy with something else a
server starts a minute late."""

from __future__ import annotations

import re
import time
from pathlib import Path

# By how much a deadline may be put off, and what is given where no load can be read.
PATIENCE = 10.0
# No single test holds a run up for longer.
_LONGEST_S = 1800.0
_PRESSURE = Path("/proc/pressure/cpu")
_STALLED_US = re.compile(r"^some .*total=(\d+)", re.MULTILINE)


def patient(seconds: float) -> float:
    """What is waited for here at most, of something that takes less than `seconds` on a machine
    with nothing else to do."""
    return max(seconds, min(seconds * PATIENCE, _LONGEST_S))


def read_stalled_s() -> float | None:
    """For how many seconds since its start some task of this machine waited for a processor."""
    try:
        found = _STALLED_US.search(_PRESSURE.read_text())
    except OSError:
        return None
    return int(found[1]) / 1e6 if found else None


class Deadline:
    """Compares with time.monotonic(), and moves on while the machine is busy."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started = time.monotonic()
        self._stalled_s = read_stalled_s()

    def get_end(self) -> float:
        longest = patient(self._seconds)
        stalled_s = read_stalled_s()
        if stalled_s is None or self._stalled_s is None:
            return self._started + longest
        return self._started + min(self._seconds + stalled_s - self._stalled_s, longest)

    def __lt__(self, now: float) -> bool:
        return self.get_end() < now

    def __gt__(self, now: float) -> bool:
        return self.get_end() > now


def deadline_in(seconds: float) -> Deadline:
    return Deadline(seconds)
