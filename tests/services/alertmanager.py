"""A real Alertmanager that keeps what it is sent and tells nobody."""

from __future__ import annotations

import json
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from tests.services.ports import free_port, listens, wait_until
from tests.services.programs import find, spawn, stop

PROGRAM = "prometheus-alertmanager"
_CONFIGURATION = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


class Alertmanager:
    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-alertmanager-", ignore_cleanup_errors=True
        )
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Alertmanager:
        home = Path(self._directory.name)
        configuration = home / "alertmanager.yml"
        configuration.write_text(_CONFIGURATION)
        listen = (f"--web.listen-address=127.0.0.1:{self._port}", "--cluster.listen-address=")
        argv = [str(find(PROGRAM)), f"--config.file={configuration}", f"--storage.path={home}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = spawn([*argv, *listen], **quiet)
        wait_until(lambda: listens(self._port), within_s=30, what="Alertmanager")
        return self

    def get_active(self) -> list[dict[str, Any]]:
        """The alerts that it holds now, as its API gives them."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found

    def remove(self) -> None:
        if self._process is not None:
            stop(self._process)
        self._directory.cleanup()
