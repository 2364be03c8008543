"""Slurm's accounting: slurmdbd over a private MariaDB, with a munged that the private Slurm's
daemons use too."""

from __future__ import annotations

import getpass
import os
import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.services import mariadb
from tests.services.mariadb import MariaDb
from tests.services.ports import free_port, listens, wait_until
from tests.services.programs import find, spawn, stop

PROGRAMS = ("slurmdbd", "munged", "sacct", *mariadb.PROGRAMS)


class Slurmdbd:
    """`settings` are the lines of slurm.conf that make a Slurm keep its accounts here.

    `kill` and `start` as often as wanted: what slurmctld could not tell meanwhile it tells then.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="kz-dbd-", ignore_cleanup_errors=True)
        self.home = Path(self._directory.name)
        self.port = free_port()
        self.database = MariaDb()
        self._munge_socket = self.home / "munge"
        self._munged: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        key = self.home / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        conf = self.home / "slurmdbd.conf"
        conf.touch(mode=0o600)  # slurmdbd refuses one that others can read
        conf.write_text("".join(f"{name}={value}\n" for name, value in self._conf().items()))

    @property
    def settings(self) -> Mapping[str, str]:
        return {
            "AuthInfo": f"socket={self._munge_socket}",
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(self.port),
            "AccountingStoragePass": str(
                self._munge_socket
            ),  # with munge it is its socket (slurm.conf(5))
            "AccountingStorageTRES": "gres/gpu",
            "AccountingStoreFlags": "job_comment",
        }

    def start(self) -> Slurmdbd:
        if self._munged is None:
            self.database.start()
            self._start_munged()
        # Of libmariadb: slurmdbd.conf has no word for a socket.
        environment = os.environ | {
            "SLURM_CONF": str(self.home / "slurm.conf"),
            "MYSQL_UNIX_PORT": str(self.database.socket),
        }
        with (self.home / "out").open("ab") as log:
            self._process = spawn(
                [str(find("slurmdbd")), "-D"], stdout=log, stderr=log, env=environment
            )
        wait_until(self._answers, within_s=30, what=f"slurmdbd on port {self.port}")
        return self

    def revive(self) -> None:
        """As a service manager does: it starts it again where it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def _start_munged(self) -> None:
        at = self.home
        argv = [
            str(find("munged")),
            "-F",
            "--force",
            f"--socket={self._munge_socket}",
            f"--key-file={at}/munge.key",
        ]
        argv += [
            f"--pid-file={at}/munged.pid",
            f"--log-file={at}/munged.log",
            f"--seed-file={at}/munged.seed",
        ]
        self._munged = spawn(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._munge_socket.exists, within_s=10, what=f"munged at {self._munge_socket}")

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(
                f"slurmdbd ended: {(self.home / 'out').read_text(errors='replace')[-2000:]}"
            )
        return listens(self.port)

    def _conf(self) -> Mapping[str, str]:
        return {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self._munge_socket}",
            "DbdHost": socket.gethostname().split(".", 1)[0],
            "DbdAddr": "127.0.0.1",
            "DbdPort": str(self.port),
            "SlurmUser": getpass.getuser(),
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "localhost",
            "StorageLoc": mariadb.DATABASE,
            "StorageUser": mariadb.USER,
            "StoragePass": mariadb.PASSWORD,
            "LogFile": str(self.home / "log"),
            "PidFile": str(self.home / "pid"),
            "DebugLevel": "info",
        }

    def kill(self) -> None:
        if self._process is not None:
            stop(self._process, how=signal.SIGKILL)

    def remove(self) -> None:
        self.kill()
        if self._munged is not None:
            stop(self._munged)
        self.database.remove()
        self._directory.cleanup()
