"""What a process writes of itself, and that a database that is away ends none of its threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.signals import beat_init
from django.conf import settings
from django.db import OperationalError, connection

from detectors.receivers.spool import Extent
from incidents.checks import heartbeats
from incidents.models import Heartbeat
from kintsugi import celery
from kintsugi.health import beat_scheduler, broker, reporter
from kintsugi.health.reporter import ProcessPart, Reporter, make_worker_part
from kintsugi.servers import embedded
from kintsugi.servers.receiving import DeliveryWatch
from tests.services.patience import patient
from tests.services.ports import free_port, wait_until


@pytest.mark.django_db
class TestReport:
    def test_it_writes_who_it_is(self) -> None:
        Reporter([ProcessPart("web"), make_worker_part(["sweep", "ingest"])]).report()
        rows = {row.part: row for row in Heartbeat.objects.all()}
        assert set(rows) == {"web", "worker-ingest-sweep"}
        assert rows["worker-ingest-sweep"].queues == ["ingest", "sweep"]
        assert {row.pid for row in rows.values()} == {os.getpid()}
        assert all(row.version and row.host for row in rows.values())

    def test_it_writes_nothing_of_a_part_that_hangs(self) -> None:
        Reporter([ProcessPart("web"), ProcessPart("beat", is_working=lambda: False)]).report()
        assert Heartbeat.objects.get().part == "web"

    def test_it_writes_what_waits_and_what_room_there_is(self, tmp_path: Path) -> None:
        backlog = heartbeats.PartBacklog(4096, None)
        Reporter(
            [ProcessPart("receiver", read_backlog=lambda: backlog, directory=tmp_path)]
        ).report()
        row = Heartbeat.objects.get()
        assert (row.backlog_bytes, row.directory) == (4096, str(tmp_path))
        assert 0 < row.disk_free <= row.disk_size

    def test_a_worker_of_all_queues_has_a_name_that_fits(self) -> None:
        Reporter([make_worker_part(embedded.list_queues())]).report()
        assert Heartbeat.objects.get().part == "worker-ingest-notify-poll-runbook-slurm-sweep"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
def test_it_goes_on_when_the_database_was_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeats, "WRITTEN_EVERY", heartbeats.WRITTEN_EVERY / 1000)
    tries: list[int] = []

    def write(*arguments: Any) -> None:
        tries.append(1)
        if len(tries) < 4:
            raise OperationalError("the server closed the connection")
        connection.close()

    monkeypatch.setattr(heartbeats, "write", write)
    own = Reporter([ProcessPart("web")])
    own.start()
    try:
        wait_until(lambda: len(tries) > 5, within_s=10, what="writes after the failure")
    finally:
        own.stop()
    said = [line for line in caplog.messages if "nobody is told that this runs" in line]
    assert len(said) == 1
    assert "the server closed the connection" in said[0]


@contextmanager
def no_reporter_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    started: list[Any] = []
    monkeypatch.setattr(reporter, "_of_this_process", [])
    monkeypatch.setattr(Reporter, "start", lambda self: started.append(self))
    yield started


def test_only_the_first_reporter_of_a_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with no_reporter_yet(monkeypatch) as started:
        reporter.start([ProcessPart("web"), ProcessPart("beat")])
        reporter.start([ProcessPart("beat")])
    assert len(started) == 1


@pytest.mark.django_db(transaction=True)
def test_work_that_fails_does_not_make_the_process_seem_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeats, "WRITTEN_EVERY", heartbeats.WRITTEN_EVERY / 1000)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    writes: list[int] = []
    monkeypatch.setattr(heartbeats, "write", lambda *_: writes.append(1))
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise ValueError("of the catalogue")

    own = Reporter([], work=fail)
    own.start()
    try:
        assert failed.wait(10)
        before = len(writes)
        wait_until(lambda: len(writes) > before + 3, within_s=10, what="further writes")
    finally:
        own.stop()
        for thread in threading.enumerate():
            if thread.name == "heartbeat":
                thread.join()


@pytest.fixture
def no_check_of_the_site() -> Iterator[None]:
    """What a beat requires of settings and tables is shown elsewhere; here there is no site."""
    beat_init.disconnect(celery._require_checks)
    yield
    beat_init.connect(celery._require_checks)


def send_one_task(address: str, **conf: str) -> None:
    """As a beat whose connection was good sends one."""
    app = Celery(broker=address, set_as_current=False)
    app.conf.update(conf)
    app.conf.task_publish_retry = False
    app.conf.broker_transport_options = {"max_retries": 1, "interval_start": 0, "interval_max": 0}
    scheduler = beat_scheduler.ReportingScheduler(app=app, lazy=True)
    entry = scheduler.Entry(name="look", task="look", schedule=timedelta(seconds=1), app=app)
    scheduler.apply_entry(entry)


class TestBeat:
    def test_it_seems_alive_while_it_ticks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(beat_scheduler, "_ticked_s", [])
        assert not beat_scheduler.is_working()
        beat_scheduler.ReportingScheduler(app=a_silent_app(), lazy=True).tick()
        assert beat_scheduler.is_working()
        stalled = beat_scheduler._ticked_s[0] - beat_scheduler._STALLED_AFTER_S
        monkeypatch.setattr(beat_scheduler, "_ticked_s", [stalled])
        assert not beat_scheduler.is_working()

    def test_a_redis_that_takes_nothing_has_one_line_and_one_when_it_does_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        nowhere = f"redis://127.0.0.1:{free_port()}/0"
        send_one_task(nowhere)
        send_one_task(nowhere)
        since = broker.OUTAGE.since
        send_one_task("memory://")
        begun, ended = [each for each in caplog.messages if "he broker" in each]
        assert "takes nothing since" in begun
        assert "Connection refused" in begun
        assert "takes what it is given again" in ended
        assert not any(record.exc_info for record in caplog.records)
        assert (since is not None, broker.OUTAGE.since) == (True, None)

    def test_while_it_waits_for_redis_it_is_no_silent_beat(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stalled = time.monotonic() - 2 * beat_scheduler._STALLED_AFTER_S
        monkeypatch.setattr(beat_scheduler, "_ticked_s", [stalled])
        broker.OUTAGE.begin("Connection refused")
        assert beat_scheduler.is_working()
        broker.OUTAGE.end()
        assert not beat_scheduler.is_working()

    def test_a_task_that_cannot_be_sent_for_another_reason_keeps_its_traceback(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        send_one_task("memory://", task_serializer="nonsense")
        assert broker.OUTAGE.since is None
        assert any(record.exc_info for record in caplog.records)

    def test_celery_takes_our_scheduler(self) -> None:
        module, _, name = settings.CELERY_BEAT_SCHEDULER.partition(":")
        assert getattr(beat_scheduler, name).__module__ == module

    @pytest.mark.usefixtures("no_check_of_the_site")
    def test_the_beat_of_manage_py_up_ticks_too_and_keeps_no_file(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(beat_scheduler, "_ticked_s", [])
        monkeypatch.chdir(tmp_path)
        app = a_silent_app()
        app.conf.beat_scheduler = settings.CELERY_BEAT_SCHEDULER
        parts = embedded.Parts()
        with no_reporter_yet(monkeypatch):
            embedded.start_beat(parts, app)
            try:
                wait_until(beat_scheduler.is_working, within_s=10, what="a tick")
            finally:
                parts.stop()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.usefixtures("no_check_of_the_site")
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_a_beat_that_does_not_start_ends_all_and_holds_up_no_stop(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(**_: Any) -> None:
            raise SystemExit("the database has no tables")

        beat_init.connect(refuse)
        app = a_silent_app()
        app.conf.beat_scheduler = settings.CELERY_BEAT_SCHEDULER
        parts = embedded.Parts()
        try:
            with no_reporter_yet(monkeypatch):
                embedded.start_beat(parts, app)
                wait_until(lambda: parts.is_ending, within_s=10, what="the end of all parts")
                stopping = threading.Thread(target=parts.stop, daemon=True)
                stopping.start()
                stopping.join(patient(20))
        finally:
            beat_init.disconnect(refuse)
        assert parts.failed == "beat"
        assert not stopping.is_alive()


def a_silent_app() -> Any:
    from celery import Celery  # noqa: PLC0415

    return Celery(broker="memory://", set_as_current=False)


class Undelivered:
    """What a receiver says of its delivery."""

    def __init__(self) -> None:
        self.undelivered_bytes = 0
        self.delivered: Extent | None = None


class TestDelivery:
    def test_it_stands_still_when_there_is_something_and_nothing_moves(self) -> None:
        receiver = Undelivered()
        watch = DeliveryWatch(receiver)
        assert watch.read_backlog() == heartbeats.PartBacklog(0, None)
        receiver.undelivered_bytes = 100
        since = watch.read_backlog().since
        receiver.undelivered_bytes = 300
        assert since is not None
        assert watch.read_backlog() == heartbeats.PartBacklog(300, since)

    def test_it_does_not_while_its_position_moves(self) -> None:
        receiver = Undelivered()
        watch = DeliveryWatch(receiver)
        receiver.undelivered_bytes = 1000
        for end in range(1, 5):
            receiver.delivered = Extent(1, 0, end)
            assert watch.read_backlog() == heartbeats.PartBacklog(1000, None)
