"""snmpsim's command responder: each record file of a folder becomes an agent with an address of its
own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.services.ports import free_port, wait_until
from tests.services.programs import give_to, spawn, stop

# Agents listen on 127.0.1.1 and so on; the community names the record file.
FIRST = "127.0.1."
# As nobody it could not import what it imports late, where Python itself lies in a home directory.
_PROGRAM = (
    "import codecs, dbm.dumb, sys; codecs.lookup('Latin-1'); "
    "from snmpsim.commands.responder import main; sys.exit(main())"
)


class Snmpsim:
    """`addresses` maps the name of each record file, without its ending, to the agent's address."""

    def __init__(self, records: Sequence[Path]) -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-snmpsim-", ignore_cleanup_errors=True
        )
        self.home = Path(self._directory.name)
        self.port = free_port(socket.SOCK_DGRAM)
        self.addresses = {
            path.stem: f"{FIRST}{number}" for number, path in enumerate(records, start=1)
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.home.chmod(0o755)
        for name in ("records", "cache"):
            (self.home / name).mkdir()
            give_to("nobody", self.home / name)
        for path in records:
            shutil.copy(path, self.home / "records" / path.name)

    def start(self) -> Snmpsim:
        argv = [sys.executable, "-c", _PROGRAM, "--log-level=error"]
        argv += [
            f"--data-dir={self.home / 'records'}",
            f"--cache-dir={self.home / 'cache'}",
            "--max-var-binds=100",
        ]
        argv += [
            f"--agent-udpv4-endpoint={address}:{self.port}" for address in self.addresses.values()
        ]
        if os.geteuid() == 0:
            argv += ["--process-user=nobody", "--process-group=nogroup"]
        with (self.home / "log").open("wb") as log:
            self._process = spawn(argv, stdout=log, stderr=log)
        wait_until(self._listens, within_s=30, what=f"snmpsim on port {self.port}")
        return self

    def _listens(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(
                f"snmpsim ended: {(self.home / 'log').read_text(errors='replace')[-2000:]}"
            )
        port = f":{self.port:04X} "
        bound = [line for line in Path("/proc/net/udp").read_text().splitlines() if port in line]
        return len(bound) >= len(self.addresses)

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)
        self._directory.cleanup()
