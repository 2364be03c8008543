"""A management controller that speaks Redfish: sushy-tools' emulator over machines that do not exist."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.services.ports import free_port, listens, wait_until
from tests.services.programs import spawn, stop


class SushyEmulator:
    """`url` is its base. It serves a service root, systems, managers and chassis; no logs and no power supplies."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="kintsugi-redfish-", ignore_cleanup_errors=True)
        self.home = Path(self._directory.name)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> SushyEmulator:
        program = Path(sys.executable).with_name("sushy-emulator")
        argv = [str(program), "--fake", "--interface", "127.0.0.1", "--port", str(self.port)]
        (self.home / "sushy.conf").write_text(f"SUSHY_EMULATOR_STATE_DIR = {str(self.home)!r}\n")
        with (self.home / "log").open("ab") as log:
            self._process = spawn(
                [*argv, "--config", str(self.home / "sushy.conf")], stdout=log, stderr=log, cwd=self.home
            )
        wait_until(self._answers, within_s=30, what=f"sushy-emulator on port {self.port}")
        return self

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"sushy-emulator ended: {(self.home / 'log').read_text()[-2000:]}")
        return listens(self.port)

    def remove(self) -> None:
        if self._process is not None:
            stop(self._process)
        self._directory.cleanup()
