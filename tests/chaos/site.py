"""A whole Kintsugi of real processes on private servers, any of which a test may kill in
mid-storm."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
from celery import Celery

from detectors.receivers.spool import Spool
from tests.services.patience import patient
from tests.services.ports import free_port, listens, wait_until
from tests.services.postgres import Postgres
from tests.services.programs import spawn, stop
from tests.services.redis import Redis

ROOT = Path(__file__).resolve().parent.parent.parent
Counts = Counter[tuple[str, str]]


class Site:
    """PostgreSQL with fsync, Redis, one worker and one receiver, all ours. `log` holds what they
    say. `tree`: where the code stands that is started next."""

    def __init__(self, tree: Path = ROOT) -> None:
        self.tree = tree
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-chaos-", ignore_cleanup_errors=True
        )
        self.home = Path(self._directory.name)
        self.postgres = Postgres(is_durable=True)
        self.redis = Redis()
        self.port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._spools: list[Path] = []

    @property
    def log(self) -> Path:
        return self.home / "log"

    def start(self) -> Site:
        self.postgres.start()
        self.redis.start()
        self.migrate()
        self.start_worker()
        self.start_receiver()
        return self

    def migrate(self) -> None:
        argv = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
        subprocess.run(
            argv, cwd=self.tree, env=self._environment(), check=True, timeout=patient(60)
        )

    def remove(self) -> None:
        for name in list(self._processes):
            self.kill(name)
        self.postgres.remove()
        self.redis.remove()
        self._directory.cleanup()

    def start_worker(self) -> None:
        celery = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "kintsugi",
            "worker",
            "-Q",
            "ingest",
            "-c",
            "2",
        ]
        self._spawn("worker", [*celery, "-l", "WARNING", "--without-mingle", "--without-gossip"])

    def start_receiver(self) -> None:
        self._spawn("receiver", [sys.executable, "manage.py", "receive"])
        wait_until(lambda: listens(self.port), within_s=30, what="the receiver")

    def kill(self, name: str) -> None:
        """SIGKILL to the process and all of its children."""
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(patient(10))

    def kill_receiver(self) -> None:
        """Keeps a copy of what it had spooled: committed segments are removed later."""
        self.kill("receiver")
        copy = self.home / f"spool-{len(self._spools)}"
        shutil.copytree(self.home / "data" / "spool", copy)
        self._spools.append(copy)

    def stop_receiver(self) -> None:
        stop(self._processes["receiver"], how=signal.SIGTERM)
        self.kill_receiver()

    def spooled(self) -> Counts:
        """Occurrences by resource and type in everything that was ever spooled, each event id
        once."""
        events: dict[str, tuple[str, str, int]] = {}
        for copy in self._spools:
            with contextlib.closing(Spool(copy)) as spool:
                for batch in spool.list_batches():
                    for wire in batch.wires:
                        events[wire["event_id"]] = (
                            wire["resource"],
                            wire["fault_type"],
                            wire["count"],
                        )
        counts: Counts = Counter()
        for resource, fault_type, count in events.values():
            counts[resource, fault_type] += count
        return counts

    def counted(self) -> Counts:
        """Occurrences by resource and type in the database; empty while it is away."""
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(self.postgres.url, connect_timeout=2) as connection,
        ):
            rows = connection.execute(
                "SELECT resource, fault_type, sum(count)::bigint FROM incidents_fault GROUP BY 1, 2"
            )
            return Counter(
                {(resource, fault_type): int(count) for resource, fault_type, count in rows}
            )
        return Counter()

    def _environment(self) -> dict[str, str]:
        # Earlier versions refuse settings that they do not know.
        inherited = {key: value for key, value in os.environ.items() if key != "KINTSUGI_SIMULATOR"}
        return inherited | {
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": self.redis.url,
            "KINTSUGI_DATA_DIR": str(self.home / "data"),
            "KINTSUGI_SYSLOG_LISTEN": f"127.0.0.1:{self.port}",
        }

    def _spawn(self, name: str, argv: list[str]) -> None:
        with self.log.open("ab") as log:
            self._processes[name] = spawn(
                argv,
                cwd=self.tree,
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


class Storm(threading.Thread):
    """Sends lines over TCP until it is told to stop, and connects again when the receiver is
    gone."""

    def __init__(self, port: int, lines: Callable[[int], bytes]) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._lines = lines
        self._is_over = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), timeout=2) as out,
            ):
                while not self._is_over.is_set():
                    out.sendall(self._lines(self.sent))
                    self.sent += 1
                    time.sleep(0.005)
            self._is_over.wait(0.05)

    def end(self) -> None:
        self._is_over.set()
        self.join(patient(10))


class Bell:
    """Wakes ingest once a second, as the sweep of a whole site does for batches whose own bell
    nobody heard: a process may die with the bell that it had taken."""

    def __init__(self, redis_url: str) -> None:
        self._app = Celery(broker=redis_url)
        self._rang_s = 0.0

    def ring_if_due(self) -> None:
        now = time.monotonic()
        if now < self._rang_s + 1.0:
            return
        self._rang_s = now
        self._app.send_task("kintsugi.tasks.ingest", queue="ingest", retry=False)
