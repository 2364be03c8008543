"""A real rsyslogd with a configuration of the test's own."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.services.programs import find, spawn, stop


class Rsyslog:
    """`configuration` is RainerScript; `{home}` in it is the private directory."""

    def __init__(self, configuration: str) -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-rsyslog-", ignore_cleanup_errors=True
        )
        self.home = Path(self._directory.name)
        self._file = self.home / "rsyslog.conf"
        self._file.write_text(configuration.replace("{home}", str(self.home)))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Rsyslog:
        argv = [str(find("rsyslogd")), "-n", "-f", str(self._file), "-i", str(self.home / "pid")]
        with (self.home / "stderr").open("wb") as stderr:
            self._process = spawn(argv, stdout=subprocess.DEVNULL, stderr=stderr)
        return self

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)

    def remove(self) -> None:
        self.stop()
        self._directory.cleanup()
