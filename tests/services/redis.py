"""A private Redis on a random port, which tests may kill and start again."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path

from tests.services.ports import free_port, listens, wait_until
from tests.services.programs import find, spawn, stop


class Redis:
    """`address`: of this machine, where it listens for its neighbours as well."""

    def __init__(self, *options: str, address: str = "") -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-redis-", ignore_cleanup_errors=True
        )
        self.home = Path(self._directory.name)
        self.port = free_port()
        self._options = options or (
            "--maxmemory-policy",
            "noeviction",
            "--save",
            "",
            "--appendonly",
            "no",
        )
        self._addresses = ["127.0.0.1", *filter(None, [address])]
        if address:  # it refuses others by itself, as long as it has no password
            self._options += ("--protected-mode", "no")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Redis:
        argv = [
            str(find("redis-server")),
            "--port",
            str(self.port),
            "--bind",
            *self._addresses,
            "--dir",
            str(self.home),
        ]
        self._process = spawn([*argv, *self._options], stdout=subprocess.DEVNULL)
        wait_until(lambda: listens(self.port), within_s=10, what=f"Redis on port {self.port}")
        return self

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            stop(self._process, how=how)

    def remove(self) -> None:
        self.stop(signal.SIGKILL)
        self._directory.cleanup()
