"""Writes every ten seconds that this process is alive, and tells systemd. One reporter a process.

Two threads: systemd is told whether or not the database answers, since a restart would mend no
database.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.db import Error, close_old_connections, connection

from detectors.resources import short_host
from detectors.transports import error_text
from incidents.checks import heartbeats
from incidents.checks.heartbeats import DatabaseView, Disk, PartBacklog, PartReport, Process
from kintsugi import clock
from kintsugi.health import broker, database_away, systemd
from kintsugi.version import get_version

_log = logging.getLogger(__name__)
# One slow write may be a checkpoint; the quickest of three tells how the database is.
_WRITES = 3


@dataclass(frozen=True)
class ProcessPart:
    """One part of Kintsugi that this process does. While `is_working` says no, nothing is written
    of it, and so it falls silent. `is_restart_a_cure`: systemd is to end the process then, too.
    `find_trouble`: what keeps it from its work though it runs, empty where nothing does."""

    name: str
    queues: tuple[str, ...] = ()
    is_working: Callable[[], bool] = lambda: True
    is_restart_a_cure: bool = False
    read_backlog: Callable[[], PartBacklog] | None = None
    directory: Path | None = None
    find_trouble: Callable[[], str] = lambda: ""

    def make_report(self) -> PartReport:
        backlog = self.read_backlog() if self.read_backlog is not None else None
        disk = _measure(self.directory)
        return PartReport(self.name, self.queues, backlog, disk, self.find_trouble())


def make_worker_part(queues: Sequence[str]) -> ProcessPart:
    names = tuple(sorted(queues))
    return ProcessPart(f"worker-{'-'.join(names)}"[:64], names, find_trouble=broker.find_trouble)


class Reporter:
    """`wait_until_ready` blocks until the process serves. `work` is done as often as it writes, but
    in a thread of its own: what goes wrong in it must not make the process seem dead."""

    def __init__(
        self,
        parts: Sequence[ProcessPart],
        *,
        wait_until_ready: Callable[[], object] = lambda: None,
        work: Callable[[], None] | None = None,
    ) -> None:
        self._parts = tuple(parts)
        self._wait_until_ready = wait_until_ready
        self._work = work
        self._stopped = threading.Event()
        self._write_times: deque[timedelta] = deque(maxlen=_WRITES)
        host = short_host(socket.gethostname())[:64]
        self._process = Process(host, os.getpid(), get_version(), clock.now())

    def start(self) -> None:
        self._start_thread("heartbeat", lambda: self._repeat(self.report))
        self._start_thread("watchdog", self.notify_forever)
        if self._work is not None:
            work = self._work
            self._start_thread("own-health", lambda: self._repeat(work))

    def stop(self) -> None:
        self._stopped.set()

    def report(self) -> None:
        """Writes once. Raises the database's errors, and OSError for a directory that is gone."""
        clock.synchronise()
        reports = [part.make_report() for part in self._parts if part.is_working()]
        begun_s = time.monotonic()
        heartbeats.write(self._process, reports, clock.now(), self._get_database_view())
        self._write_times.append(timedelta(seconds=time.monotonic() - begun_s))

    def _get_database_view(self) -> DatabaseView:
        """SQLite's writers wait for one another: how long says nothing of the disk."""
        is_apart = connection.vendor == "postgresql"
        is_known = is_apart and len(self._write_times) == _WRITES
        write_time = min(self._write_times) if is_known else None
        return DatabaseView(clock.get_difference() if is_apart else None, write_time)

    def _start_thread(self, name: str, run: Callable[[], None]) -> None:
        threading.Thread(target=run, name=name, daemon=True).start()

    def _repeat(self, run: Callable[[], None]) -> None:
        """A database that is away is asked again next time."""
        self._wait_until_ready()
        is_away = False
        while not self._stopped.is_set():
            close_old_connections()
            try:
                run()
                is_away = False
                database_away.OUTAGE.end()
            except (Error, OSError) as error:
                connection.close()
                if isinstance(error, database_away.ERRORS):
                    database_away.OUTAGE.begin(database_away.describe_reason(error))
                if not is_away:
                    _log.warning(
                        "nobody is told that this runs: %s", error_text.format_reason(error)
                    )
                is_away = True
            self._stopped.wait(heartbeats.WRITTEN_EVERY.total_seconds())
        connection.close()

    def notify_forever(self) -> None:
        """Until `stop`; returns at once where systemd waits for no sign of life."""
        self._wait_until_ready()
        systemd.notify(systemd.READY)
        period_s = systemd.get_watchdog_period_s()
        if period_s is None:
            return
        while not self._stopped.wait(period_s):
            self.notify_watchdog()

    def notify_watchdog(self) -> bool:
        """Whether systemd was told to wait on: not for a process that only a restart mends."""
        vital = [part for part in self._parts if part.is_restart_a_cure]
        return all(part.is_working() for part in vital) and systemd.notify(systemd.WATCHDOG)


_of_this_process: list[Reporter] = []


def start(
    parts: Sequence[ProcessPart],
    *,
    wait_until_ready: Callable[[], object] = lambda: None,
    work: Callable[[], None] | None = None,
) -> None:
    """Only the first call of a process counts: whoever makes it knows all of its parts."""
    if _of_this_process:
        return
    reporter = Reporter(parts, wait_until_ready=wait_until_ready, work=work)
    _of_this_process.append(reporter)
    reporter.start()


def _measure(directory: Path | None) -> Disk | None:
    if directory is None:
        return None
    usage = shutil.disk_usage(directory)
    return Disk(str(directory), usage.free, usage.total)
