"""A private PostgreSQL in a temporary directory on a random port, gone when the tests are."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.services.patience import patient
from tests.services.ports import free_port, wait_until
from tests.services.programs import find, give_to, spawn, stop

_ACCOUNT = "nobody"


class Postgres:
    """`url` names its one database. `is_durable` keeps fsync on, for benchmarks and crash tests.
    `address`: of this machine, where it listens for its neighbours in 10.0.0.0/8 as well."""

    def __init__(self, *, is_durable: bool = False, address: str = "") -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-pg-", ignore_cleanup_errors=True
        )
        self.home = Path(self._directory.name)
        give_to(_ACCOUNT, self.home)
        self.port = free_port()
        self._settings = [] if is_durable else ["-c", "fsync=off", "-c", "synchronous_commit=off"]
        self._process: subprocess.Popen[bytes] | None = None
        initdb = [
            str(find("initdb")),
            "-D",
            str(self.home / "db"),
            "-U",
            "kintsugi",
            "-A",
            "trust",
            "-E",
            "UTF8",
        ]
        made = spawn(
            [*initdb, "--locale=C", "-N"], user=_ACCOUNT, stdout=subprocess.DEVNULL, cwd="/"
        )
        if made.wait(patient(60)):
            raise RuntimeError("initdb failed")
        self._addresses = ",".join(filter(None, ("127.0.0.1", address)))
        if address:
            with (self.home / "db" / "pg_hba.conf").open("a") as rules:
                rules.write("host all all 10.0.0.0/8 trust\n")

    @property
    def url(self) -> str:
        return f"postgresql://kintsugi@127.0.0.1:{self.port}/postgres"

    def start(self) -> Postgres:
        options = [
            "-p",
            str(self.port),
            "-c",
            f"listen_addresses={self._addresses}",
            "-k",
            str(self.home),
            *self._settings,
        ]
        argv = [
            str(find("postgres")),
            "-D",
            str(self.home / "db"),
            "-c",
            "max_connections=200",
            *options,
        ]
        with (self.home / "log").open("ab") as log:
            self._process = spawn(argv, user=_ACCOUNT, stdout=log, stderr=log, cwd="/")
        wait_until(self._answers, within_s=30, what=f"PostgreSQL on port {self.port}")
        return self

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended: {(self.home / 'log').read_text()[-2000:]}")
        ready = [
            str(find("pg_isready")),
            "-q",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "kintsugi",
        ]
        return (
            subprocess.run(
                ready, check=False, env=os.environ | {"PGCONNECT_TIMEOUT": "1"}
            ).returncode
            == 0
        )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if self._process is not None:
            stop(self._process, how=how)

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        self._directory.cleanup()
