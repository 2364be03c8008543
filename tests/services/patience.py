"""How long tests wait for real parts. A deadline ends a failure and measures nothing, so in CI it is several times as
long: on a machine that is busy with something else a server starts a minute late."""

from __future__ import annotations

import os
import time

PATIENCE = 5.0 if os.environ.get("CI") == "true" else 1.0
# No single test holds a run up for longer.
_LONGEST_S = 1800.0


def patient(seconds: float) -> float:
    """What is waited for here, of something that takes less than `seconds` on a machine with nothing else to do."""
    return max(seconds, min(seconds * PATIENCE, _LONGEST_S))


def deadline_in(seconds: float) -> float:
    """The same as a time of time.monotonic()."""
    return time.monotonic() + patient(seconds)
