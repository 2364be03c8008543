"""Web, worker, beat and receiver in one process, for the embedded default: no server to install.

Celery's in-process broker does not cross processes, so all of them are threads here; beat too,
since `worker -B` would fork it. A part that ends by itself ends the whole process: half a Kintsugi
looks healthy.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from celery import Celery
from celery.beat import Service
from celery.worker import WorkController, state
from django.core.wsgi import get_wsgi_application
from waitress.server import create_server

from kintsugi.servers.listeners import AddressTaken

_log = logging.getLogger(__name__)
# The queues of each worker, as where each is a process of its own (deploy/systemd), and how many
# threads it has: what waits for Slack, nodes or Slurm holds up neither faults nor repairs.
WORKERS = {"ingest,sweep": 4, "notify": 4, "poll": 8, "runbook": 8, "slurm": 4}
_WEB_THREADS = 8
_STOP_WITHIN_S = 8.0
_BEAT_SLEEPS_S = 1  # at most, so that it hears of the stop


@dataclass
class Parts:
    """The running parts. `start` each with its stop; `wait` returns when one ended or `stop` was
    called."""

    _stops: list[tuple[str, Callable[[], None], threading.Thread]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _is_stopping: bool = False
    failed: str = ""
    why: str = ""  # where it is known in words

    def start(self, name: str, run: Callable[[], None], stop: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run, args=(name, run), name=name, daemon=True)
        self._stops.append((name, stop, thread))
        thread.start()

    def _run(self, name: str, run: Callable[[], None]) -> None:
        try:
            run()
        except AddressTaken as error:
            self.why = str(error)
        finally:
            if not self._is_stopping:
                self.failed = name
                self._ended.set()

    def wait(self) -> None:
        while not self._ended.wait(
            1.0
        ):  # a wait without limit would keep signals from the main thread
            pass

    @property
    def is_ending(self) -> bool:
        """A part ended by itself, or a stop was asked for."""
        return self._ended.is_set()

    def ask_to_stop(self) -> None:
        self._ended.set()

    def stop(self) -> None:
        """In reverse order: first no new work comes in, last the console goes. The workers have one
        stop, and are waited for together."""
        self._is_stopping = True
        stopped_s: dict[Callable[[], None], float] = {}
        for name, stop, thread in reversed(self._stops):
            stop()
            passed_s = time.monotonic() - stopped_s.setdefault(stop, time.monotonic())
            thread.join(max(0.0, _STOP_WITHIN_S - passed_s))
            if thread.is_alive():
                _log.warning(
                    "%s did not stop within %s s; its work is taken up at the next start",
                    name,
                    _STOP_WITHIN_S,
                )


def list_queues() -> list[str]:
    return sorted(name for queues in WORKERS for name in queues.split(","))


def start_web(parts: Parts, host: str, port: int) -> None:
    """Raises OSError when the port is taken."""
    server = create_server(
        get_wsgi_application(), host=host, port=port, threads=_WEB_THREADS, ident=""
    )

    def run() -> None:
        # The listening socket is closed under the loop's feet when we stop.
        with contextlib.suppress(OSError):
            server.run()

    parts.start("web", run, server.close)


def start_workers(parts: Parts, build_app: Callable[[], Celery]) -> None:
    """`build_app` is called for each: Celery keeps in the app which queues its worker serves."""
    for queues, threads in WORKERS.items():
        worker = WorkController(
            app=build_app(),
            hostname=f"{queues.replace(',', '-')}@",
            pool="threads",
            concurrency=threads,
            queues=queues,
            without_mingle=True,
            without_gossip=True,
            without_heartbeat=True,
            loglevel="WARNING",
        )
        parts.start(f"worker of {queues}", worker.start, _stop_workers)


def _stop_workers() -> None:
    state.should_stop = 0  # type: ignore[assignment]  # an exit status; None lets them run


def start_beat(parts: Parts, app: Celery) -> None:
    # Named here: by itself an embedded beat takes a scheduler that keeps a file in its directory.
    # Of Celery's embedded beat the service alone: the thread around it waits at its stop for ever
    # for a beat that ended before its first tick.
    service = Service(app, max_interval=_BEAT_SLEEPS_S, scheduler_cls=app.conf.beat_scheduler)

    def run() -> None:
        app.set_current()
        service.start()

    parts.start("beat", run, service.stop)
