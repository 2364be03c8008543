"""Free ports on loopback, for servers that tests start."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from tests.services.patience import deadline_in


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port nobody listens on now. Taken at random, so two runs side by side rarely meet."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], *, within_s: float, what: str) -> None:
    """Poll `condition` until it holds; AssertionError naming `what` when the deadline passes."""
    deadline = deadline_in(within_s)
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within_s:g} s of a quiet machine")
        time.sleep(0.02)


def listens(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0
