"""A real sshd on a random port, with its own host key, a client key and a known_hosts file."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.services.ports import free_port, listens, wait_until
from tests.services.programs import find, spawn, stop


class Sshd:
    """`settings` are further ones of sshd_config, such as ForceCommand or Banner.

    The login shell finds an empty home: what a person's own profile does (it may wait for a lock
    of a version manager) is no part of the test.
    """

    def __init__(self, **settings: str) -> None:
        self.settings = settings
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-sshd-", ignore_cleanup_errors=True
        )
        self.home = Path(self._directory.name)
        self.user = getpass.getuser()
        self.key_file = self.home / "client"
        self.known_hosts = self.home / "known_hosts"
        self.port = free_port()
        for name in ("host", "client"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.home / name)]
            subprocess.run(make, check=True)
        (self.home / "authorized_keys").write_bytes((self.home / "client.pub").read_bytes())
        host_key = " ".join((self.home / "host.pub").read_text().split()[:2])
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {host_key}\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Sshd:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(
                exist_ok=True
            )  # its privilege separation directory; sshd refuses without it
        # sshd obeys the first SetEnv alone.
        environment = f'HOME="{self.home}" {self.settings.get("SetEnv", "")}'.rstrip()
        settings = {
            "HostKey": self.home / "host",
            "AuthorizedKeysFile": self.home / "authorized_keys",
            "PidFile": self.home / "pid",
            "ListenAddress": "127.0.0.1",
            "UsePAM": "no",
            "StrictModes": "no",
            "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
            **self.settings,
            "SetEnv": environment,
        }
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        argv = [str(find("sshd")), "-D", "-e", "-f", "/dev/null", "-p", str(self.port), *options]
        with (self.home / "log").open("wb") as log:
            self._process = spawn(argv, stdout=log, stderr=log)
        wait_until(lambda: listens(self.port), within_s=10, what=f"sshd on port {self.port}")
        return self

    def drop_sessions(self) -> None:
        """Kill the processes that serve open connections, as a reboot would."""
        if self._process is not None:
            children = (
                Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
                .read_text()
                .split()
            )
            for child in children:
                os.kill(int(child), signal.SIGKILL)

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)

    def remove(self) -> None:
        self.stop()
        self._directory.cleanup()
