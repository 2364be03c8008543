"""Where one process is all of Kintsugi, what waits for others still has workers of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from celery import Celery
from celery.signals import task_prerun, worker_init
from celery.worker import state
from kombu.transport.memory import Channel

from kintsugi import celery, tasks
from kintsugi.servers import embedded
from tests.services.ports import wait_until

HANGING = 40  # more than all threads


class Work:
    """A task that ends when the test says so, and one that ends at once."""

    def __init__(self) -> None:
        self.is_hanging, self.may_end = threading.Event(), threading.Event()
        self.counted: list[str] = []

    def build_app(self) -> Celery:
        app = Celery(broker="memory://", set_as_current=False)
        app.conf.broker_transport_options = {"polling_interval": 0.01}

        @app.task(name="hang", shared=False)
        def hang() -> None:
            self.is_hanging.set()
            self.may_end.wait(60)

        @app.task(name="count", shared=False)
        def count(queue: str) -> None:
            self.counted.append(queue)

        return app


@contextmanager
def running(work: Work) -> Iterator[Celery]:
    app = work.build_app()
    app.set_default()  # a thread of a worker looks its task up there
    parts = embedded.Parts()
    embedded.start_workers(parts, work.build_app)
    try:
        yield app
    finally:
        work.may_end.set()
        parts.stop()
        state.should_stop = None
        celery.app.set_default()
        Channel.queues.clear()


@pytest.fixture(autouse=True)
def no_check_of_the_site() -> Iterator[None]:
    """What a worker requires of settings and tables is shown elsewhere; here there is no site."""
    worker_init.disconnect(celery._require_checks)
    task_prerun.disconnect(tasks._synchronise_clock)
    yield
    worker_init.connect(celery._require_checks)
    task_prerun.connect(tasks._synchronise_clock)


@pytest.mark.parametrize("hanging", ["notify", "poll", "slurm", "runbook"])
def test_all_else_goes_on_while_what_waits_for_others_hangs(hanging: str) -> None:
    others = [queue for queue in embedded.list_queues() if queue != hanging]
    work = Work()
    with running(work) as app:
        for _ in range(HANGING):
            app.send_task("hang", queue=hanging)
        wait_until(lambda: work.is_hanging.is_set(), within_s=30, what="the first that hangs")
        for queue in others:
            app.send_task("count", [queue], queue=queue)
        wait_until(lambda: sorted(work.counted) == others, within_s=30, what=", ".join(others))
