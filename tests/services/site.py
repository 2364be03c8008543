"""A whole Kintsugi as a site runs it: PostgreSQL, Redis, a process per part, and a simulated
cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from fixtures.cluster.control import NoCluster, ask, read_state
from fixtures.demo import place
from tests.deployment import UNITS, Unit
from tests.services.patience import patient
from tests.services.ports import free_port, listens, wait_until
from tests.services.postgres import Postgres
from tests.services.programs import spawn, stop
from tests.services.redis import Redis

ROOT = Path(__file__).resolve().parent.parent.parent


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def list_workers() -> dict[str, tuple[str, ...]]:
    """What follows `celery -A kintsugi` in each worker's unit of deploy/systemd, by its part of the
    name."""
    workers = {}
    for name in UNITS:
        words = Unit.read(name).command
        if "worker" in words:
            workers[name.removeprefix("kintsugi-")] = words[words.index("worker") :]
    return workers


class ClusterSite:
    """`start` leaves everything running and the runbook armed; `log` holds what all processes
    say."""

    def __init__(
        self, *, is_durable: bool = False, slurm: str = "real", path: str = "", **settings: str
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="kintsugi-site-", ignore_cleanup_errors=True
        )
        self.home = Path(self._directory.name)
        self.log = self.home / "log"
        self.postgres = Postgres(is_durable=is_durable)
        self.redis = Redis()
        self.port = free_port()
        self._slurm = slurm
        self._path = path  # goes before everything else on PATH
        self._settings = settings
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._environment: dict[str, str] = {}

    def start(self) -> ClusterSite:
        self.postgres.start()
        self.redis.start()
        ports = place.Ports(web=free_port(), slack=free_port(), syslog=self.port)
        self._environment = place.clean_environment(os.environ) | place.settings(self.home, ports)
        for name in ("SLACK_BOT_TOKEN", "SLACK_CHANNEL", "SLACK_API_URL"):
            self._environment.pop(name)
        self._environment |= {
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": self.redis.url,
            **self._settings,
        }
        self._start(sys.executable, "-m", "fixtures.cluster", *self._cluster_options())
        wait_until(self._is_cluster_up, within_s=60, what="the simulated cluster")
        state = read_state(self.home)
        self._environment |= place.cluster_settings(state)
        self._environment["PATH"] = os.pathsep.join(
            filter(None, (self._path, self._environment["PATH"]))
        )
        self.manage("migrate", "--verbosity", "0")
        self.manage("demo", "prepare", state["inventory"])
        for name, words in list_workers().items():
            self._celery(*words)
            self._workers[name] = self._processes[-1]
        self._celery("beat", "--pidfile=")
        self._start(sys.executable, "manage.py", "receive")
        wait_until(lambda: listens(self.port), within_s=60, what="the receiver")
        return self

    def _cluster_options(self) -> tuple[str, ...]:
        return (
            "--directory",
            str(self.home),
            "--syslog",
            f"127.0.0.1:{self.port}",
            "--slurm",
            self._slurm,
        )

    def _is_cluster_up(self) -> bool:
        try:
            ask(self.home, do="schedule")
        except NoCluster:
            return False
        return True

    def _celery(self, *words: str) -> None:
        self._start(
            sys.executable, "-m", "celery", "-A", "kintsugi", *words, "--loglevel", "WARNING"
        )

    def _start(self, *argv: str) -> None:
        with self.log.open("ab") as log:
            made = spawn(
                list(argv),
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(made)

    def kill_pool(self, name: str) -> None:
        """The processes of a Celery worker that do its tasks die; Celery starts new ones."""
        pids = children(self._workers[name].pid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: not {*pids} & {*children(self._workers[name].pid)},
            within_s=10,
            what="the end of the pool",
        )

    def manage(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(120),
        )
        if done.returncode:
            raise AssertionError(f"manage.py {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def inject(self, name: str, resource: str) -> dict[str, Any]:
        return ask(self.home, do="inject", name=name, resource=resource)

    def slurm(self, *argv: str) -> str:
        return subprocess.run(
            list(argv),
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=patient(30),
        ).stdout

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.postgres.url) as connection:
            return connection.execute(sql, values).fetchall()

    def slurmctld_log(self) -> str:
        return (Path(read_state(self.home)["slurm_conf"]).parent / "slurmctld.log").read_text()

    def remove(self) -> None:
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            stop(process)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self.postgres.remove()
        self.redis.remove()
        self._directory.cleanup()
