"""Numbered lines at a steady pace to a receiver that a test stops and kills, and which of them its
spool holds."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from detectors.receivers.spool import Spool
from tests.services.patience import patient
from tests.services.ports import wait_until
from tests.services.programs import spawn
from tests.services.socket_activation import KeptSockets

ROOT = Path(__file__).resolve().parents[3]


def numbered(number: int) -> bytes:
    """A line whose process id is its number: no other line folds with it."""
    text = f"NVRM: Xid (PCI:0000:19:00): 79, pid={number}, name=python3, Ch 00000008"
    return f"<4>Jan 12 03:04:05 gn042 kernel: {text}".encode()


def count_spooled(directory: Path) -> Counter[int]:
    """Occurrences by the number of their line, in a spool that keeps all it ever held. Read from a
    copy: a receiver may be writing, and hold its lock."""
    counts: Counter[int] = Counter()
    with TemporaryDirectory() as copy:
        for segment in directory.glob("*.segment"):
            shutil.copy(segment, copy)
        with closing(Spool(Path(copy))) as spool:
            for wire in (wire for batch in spool.list_batches() for wire in batch.wires):
                number = wire["excerpt"].partition("pid=")[2].partition(",")[0]
                counts[int(number)] += wire["count"]
    return counts


class Traffic(threading.Thread):
    """Numbered lines at a steady pace until it is told to end."""

    def __init__(self, send: Callable[[bytes], object], *, lines_per_s: int) -> None:
        super().__init__(daemon=True)
        self._send = send
        self._pause_s = 1 / lines_per_s
        self._is_over = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self._is_over.wait(self._pause_s):
            self._send(numbered(self.sent))
            self.sent += 1

    def goes_on(self, lines: int) -> None:
        target = self.sent + lines
        wait_until(lambda: self.sent >= target, within_s=60, what=f"{lines} more lines sent")

    def end(self) -> None:
        self._is_over.set()
        self.join(patient(10))


class ReceiverProcess:
    """`receiver_process` on sockets that outlive it, or on its own."""

    def __init__(self, home: Path, *ports: int, kept: KeptSockets | None = None) -> None:
        self.home = home
        self._ports = ports
        self._kept = kept
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        module = "tests.detectors.receivers.receiver_process"
        argv = [sys.executable, "-m", module, str(self.home), *map(str, self._ports)]
        start = self._kept.spawn if self._kept is not None else spawn
        self._process = start(argv, cwd=ROOT)

    def wait_until_ready(self) -> None:
        wait_until((self.home / "ready").exists, within_s=60, what="the receiver")

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(patient(30))
        (self.home / "ready").unlink(missing_ok=True)

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.end(how)
        self.start()
        self.wait_until_ready()

    def occurrences(self) -> Counter[int]:
        return count_spooled(self.home / "spool")
