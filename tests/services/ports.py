"""Free ports on loopback, for servers that tests start."""

from __future__ import annotations

import itertools
import os
import random
import socket
import time
from collections.abc import Callable, Iterator

from tests.services.patience import deadline_in

# Below those of a private Slurm (slurm_daemons.PORTS), and below those that Linux gives to
# connections as they are made (net.ipv4.ip_local_port_range, 32768 to 60999): none of these takes a
# port before its server has come up and bound it.
PORTS = range(10_000, 20_000)
# Each worker of a test run has ports of its own: that of a server that is still starting is given
# to no other worker's server.
_WORKERS = 8


def list_own_ports(worker: str) -> range:
    """Those of one worker, by its name (`gw1`; empty: not distributed)."""
    size = len(PORTS) // _WORKERS
    first = int(worker.removeprefix("gw") or 0) % _WORKERS * size
    return PORTS[first : first + size]


def _walk_own_ports() -> Iterator[int]:
    """Round and round, so that none comes again soon. From a random one on: two runs side by side
    rarely meet."""
    own = list_own_ports(os.environ.get("PYTEST_XDIST_WORKER", ""))
    start = random.SystemRandom().randrange(len(own))
    return itertools.cycle([*own[start:], *own[:start]])


_candidates = _walk_own_ports()


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port nobody listens on now, and that no other test of this run is given."""
    for port in itertools.islice(_candidates, len(PORTS)):
        if is_free(port, kind):
            return port
    raise AssertionError(f"no port of {PORTS.start} to {PORTS.stop - 1} is free")


def is_free(port: int, kind: socket.SocketKind) -> bool:
    """Whether nothing is bound to it."""
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


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
