"""`manage.py up`: everything in one process on the embedded default."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from detectors.receivers.connections import TlsError
from detectors.receivers.spool import SpoolError
from kintsugi import tasks
from kintsugi.celery import app, build_app
from kintsugi.health import reporter
from kintsugi.health.beat_scheduler import make_beat_part
from kintsugi.health.reporter import ProcessPart, make_worker_part
from kintsugi.management.store import StoreCommand
from kintsugi.servers import embedded, listeners, receiving


class Command(StoreCommand):
    help = (
        "Runs web, worker, beat and receiver in one process. For one machine; larger sites run them"
        " apart."
    )
    requires_system_checks = "__all__"

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            receiver = receiving.build_receiver()
        except (SpoolError, TlsError, listeners.AddressTaken) as error:
            raise CommandError(str(error)) from error
        host, port = settings.KINTSUGI["KINTSUGI_WEB_LISTEN"]
        parts = embedded.Parts()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: parts.ask_to_stop())
        try:
            embedded.start_web(parts, host, port)
        except OSError as error:
            raise CommandError(
                f"KINTSUGI_WEB_LISTEN={host}:{port}: {error.strerror}; choose another port"
            ) from error
        tasks.pipeline()  # before the first fault comes, not with it
        worker = make_worker_part(embedded.list_queues())
        own_parts = [
            ProcessPart("web"),
            make_beat_part(),
            worker,
            receiving.make_receiver_part(receiver),
        ]
        reporter.start(
            own_parts, wait_until_ready=receiver.ready.wait, work=tasks.evaluate_own_health
        )
        embedded.start_workers(parts, build_app)
        embedded.start_beat(parts, app)
        parts.start("receiver", partial(receiving.run, receiver), receiver.stop)
        while not parts.is_ending and not receiver.ready.wait(0.1):
            pass
        if not parts.is_ending:
            self.stdout.write(f"Kintsugi is up: console on http://{host}:{port}/")
            self.stdout.flush()
        parts.wait()
        parts.stop()
        if parts.failed:
            raise CommandError(_describe_end(parts))


def _describe_end(parts: embedded.Parts) -> str:
    why = parts.why or "the log above says why"
    return (
        f"{parts.failed} ended by itself: {why}. All parts have stopped with it, since half a"
        " Kintsugi looks healthy; what was under way is taken up at the next start."
    )
