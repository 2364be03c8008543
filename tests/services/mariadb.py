"""A private MariaDB in a temporary directory behind a socket of its own, gone when the tests
are."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.services.patience import patient
from tests.services.ports import wait_until
from tests.services.programs import find, give_to, spawn, stop

PROGRAMS = ("mariadbd", "mariadb-install-db", "my_print_defaults")
DATABASE, USER, PASSWORD = "slurm_acct_db", "slurm", "of-tests"
_ACCOUNT = "nobody"
# Read at each start: as often as wanted.
_USERS = (
    f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
    f"CREATE USER IF NOT EXISTS {USER}@localhost IDENTIFIED BY '{PASSWORD}';\n"
    f"GRANT ALL ON {DATABASE}.* TO {USER}@localhost;\n"
)
# What makes the first start short: no host's settings, small files, nothing kept safe from a power
# cut.
_OPTIONS = (
    *(
        "--skip-networking",
        "--skip-name-resolve",
        "--skip-log-bin",
        "--innodb-buffer-pool-size=32M",
    ),
    *("--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"),
)


class MariaDb:
    """`socket` is its only door; `DATABASE` is there for `USER`."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-db-", ignore_cleanup_errors=True
        )
        self.home = Path(self._directory.name)
        give_to(_ACCOUNT, self.home)
        self.socket = self.home / "socket"
        self._process: subprocess.Popen[bytes] | None = None
        users = self.home / "users.sql"
        users.write_text(_USERS)
        give_to(_ACCOUNT, users)
        # Each start removes what others have in the folder for temporary tables.
        temporary = self.home / "tmp"
        temporary.mkdir()
        give_to(_ACCOUNT, temporary)
        self._common = (f"--datadir={self.home / 'db'}", f"--tmpdir={temporary}")
        install = [
            str(find("mariadb-install-db")),
            "--no-defaults",
            "--skip-test-db",
            *self._common,
        ]
        with (self.home / "log").open("ab") as log:
            made = spawn(install, user=_ACCOUNT, stdout=log, stderr=log, cwd="/")
        if made.wait(patient(60)):
            reason = self._log_end()
            self._directory.cleanup()
            raise RuntimeError(f"mariadb-install-db failed: {reason}")

    def start(self) -> MariaDb:
        argv = [
            str(find("mariadbd")),
            "--no-defaults",
            *self._common,
            f"--socket={self.socket}",
        ]
        argv += [
            f"--pid-file={self.home / 'pid'}",
            f"--init-file={self.home / 'users.sql'}",
            *_OPTIONS,
        ]
        with (self.home / "log").open("ab") as log:
            self._process = spawn(argv, user=_ACCOUNT, stdout=log, stderr=log, cwd="/")
        wait_until(self._answers, within_s=30, what=f"MariaDB at {self.socket}")
        return self

    def _answers(self) -> bool:
        """It opens its socket after it has read `--init-file`."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"MariaDB ended: {self._log_end()}")
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def _log_end(self) -> str:
        return (self.home / "log").read_text(errors="replace")[-2000:]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            stop(self._process, how=how)

    def remove(self) -> None:
        self.stop(signal.SIGKILL)
        self._directory.cleanup()
