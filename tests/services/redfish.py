"""A management controller that speaks Redfish: sushy-tools' emulator over machines that do not
exist."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bcrypt

from tests.services.ports import free_port, listens, wait_until
from tests.services.programs import spawn, stop

# A machine of the emulator's switches one to eleven seconds after it was asked to, as it draws; here
# after one.
_PROGRAM = """
import random, sys
random.randint = lambda least, most: least
from sushy_tools.emulator.main import main
sys.exit(main())
"""


def a_system(number: int, *, power: str = "On") -> dict[str, Any]:
    """A machine behind the emulator: `fake-1` with a UUID of its own."""
    return {
        "uuid": f"00000000-0000-4000-8000-{number:012d}",
        "name": f"fake-{number}",
        "power_state": power,
        "external_notifier": False,
        "nics": [{"mac": f"00:5c:52:31:3a:{number:02x}", "ip": f"172.22.0.{number}"}],
    }


class SushyEmulator:
    """`url` is its base. It serves a service root, systems, managers and chassis; no logs and no
    power supplies.

    `systems` are its machines, one by default; with a `password` it lets `user` in alone; `tls` are
    the files of a certificate and its key.
    """

    def __init__(
        self,
        *,
        systems: Sequence[dict[str, Any]] = (),
        user: str = "kintsugi",
        password: str = "",
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self._systems = list(systems)
        self._login = (user, password)
        self._tls = tls
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-redfish-", ignore_cleanup_errors=True
        )
        self.home = Path(self._directory.name)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def start(self) -> SushyEmulator:
        program = [sys.executable, "-c", _PROGRAM]
        argv = [*program, "--fake", "--interface", "127.0.0.1", "--port", str(self.port)]
        (self.home / "sushy.conf").write_text(self._conf())
        with (self.home / "log").open("ab") as log:
            self._process = spawn(
                [*argv, "--config", str(self.home / "sushy.conf")],
                stdout=log,
                stderr=log,
                cwd=self.home,
            )
        wait_until(self._answers, within_s=30, what=f"sushy-emulator on port {self.port}")
        return self

    def _conf(self) -> str:
        values: dict[str, Any] = {"SUSHY_EMULATOR_STATE_DIR": str(self.home)}
        if self._systems:
            values["SUSHY_EMULATOR_FAKE_SYSTEMS"] = self._systems
        user, password = self._login
        if password:
            passwords = self.home / "passwords"
            passwords.write_text(
                f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}\n"
            )
            values["SUSHY_EMULATOR_AUTH_FILE"] = str(passwords)
        if self._tls is not None:
            certificate, key = self._tls
            values |= {
                "SUSHY_EMULATOR_SSL_CERT": str(certificate),
                "SUSHY_EMULATOR_SSL_KEY": str(key),
            }
        return "".join(f"{name} = {value!r}\n" for name, value in values.items())

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"sushy-emulator ended: {(self.home / 'log').read_text()[-2000:]}")
        return listens(self.port)

    def remove(self) -> None:
        if self._process is not None:
            stop(self._process)
        self._directory.cleanup()
