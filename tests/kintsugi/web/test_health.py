"""What load balancers and Prometheus are told, and who may ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client, override_settings
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from fixtures.slack_server import CHANNEL
from incidents import services
from incidents.checks import heartbeats, own_health
from incidents.checks.heartbeats import Disk, PartBacklog, PartReport, Process
from incidents.models import Fault, Heartbeat, InboxBatch, Notification
from kintsugi import tasks
from kintsugi.health import broker
from kintsugi.web import banners
from tests.builders import an_event
from tests.kintsugi.slack_site import SlackSite, slack
from tests.services.ports import free_port

__all__ = ["slack"]

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
WORKER = PartReport("worker-ingest-notify-sweep", ("ingest", "notify", "sweep"))
PAGES = ("/healthz", "/readyz", "/metrics")


def write(*reports: PartReport, ago: timedelta = timedelta(0), pid: int = 100) -> None:
    at = timezone.now() - ago
    heartbeats.write(Process("mgmt-1", pid, "0.2.0", at - 10 * MINUTE), reports, at)


@contextmanager
def database_away() -> Iterator[None]:
    def refuse(*_: Any) -> None:
        raise OperationalError("could not connect to db1.internal as kintsugi")

    with connection.execute_wrapper(refuse):
        yield


@pytest.fixture(autouse=True)
def connection_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "close", lambda: None)


@pytest.mark.parametrize("page", PAGES)
class TestAsking:
    def test_a_database_that_is_away_is_503_without_its_name(
        self, client: Client, page: str
    ) -> None:
        with database_away():
            response = client.get(page)
        assert (response.status_code, response.content) == (
            503,
            b"the database does not answer\n",
        )

    def test_no_host_name_of_the_console_is_needed(self, client: Client, page: str) -> None:
        write(PartReport("beat"), WORKER)
        assert client.get(page, headers={"Host": "10.0.0.7:8000"}).status_code == 200

    def test_nobody_may_write_there(self, client: Client, page: str) -> None:
        assert client.post(page).status_code == 405

    def test_no_session_is_begun_and_nothing_is_kept_by_caches(
        self, client: Client, page: str
    ) -> None:
        response = client.get(page)
        assert not response.cookies
        assert response["Cache-Control"] == "no-store"


@pytest.mark.parametrize("page", ["/healthz", "/healthz/"])
def test_health_says_that_process_and_database_answer_and_nothing_else(
    client: Client, page: str
) -> None:
    response = client.get(page)
    assert (response.status_code, response.content) == (200, b"ok\n")


class TestReadiness:
    def test_a_site_with_a_beat_and_workers_is_ready(self, client: Client) -> None:
        write(PartReport("beat"), WORKER)
        assert client.get("/readyz").status_code == 200

    def test_it_says_what_has_not_been_seen_for_a_minute(self, client: Client) -> None:
        write(PartReport("beat"), ago=MINUTE)
        write(PartReport("worker-ingest", ("ingest",)))
        response = client.get("/readyz")
        assert response.status_code == 503
        assert response.content.decode().splitlines() == [
            "no beat has been seen for 60 s",
            "no worker of notify has been seen for 60 s",
            "no worker of sweep has been seen for 60 s",
        ]

    def test_parts_that_redis_keeps_from_their_work_are_not_ready(self, client: Client) -> None:
        why = "Redis at redis1:6379 takes nothing: Connection refused. Start it."
        write(PartReport("beat", trouble=why))
        write(replace(WORKER, trouble=why))
        response = client.get("/readyz")
        assert response.status_code == 503
        since = Heartbeat.objects.get(part="beat").trouble_since
        first = f"no beat gets on since {since:%Y-%m-%d %H:%M:%S} UTC: {why}"
        lines = response.content.decode().splitlines()
        assert (lines[0], len(lines)) == (first, 4)

    def test_one_worker_that_gets_on_is_enough(self, client: Client) -> None:
        write(PartReport("beat"))
        write(replace(WORKER, trouble="Redis takes nothing."))
        write(replace(WORKER, part="worker-all"), pid=101)
        assert client.get("/readyz").status_code == 200

    def test_tables_of_an_earlier_version_are_not_ready(self, client: Client) -> None:
        write(PartReport("beat"), WORKER)
        MigrationRecorder.Migration.objects.filter(name="0005_heartbeat").delete()
        response = client.get("/readyz")
        assert response.status_code == 503
        assert b"kintsugi migrate" in response.content


def read_metrics(client: Client) -> dict[str, dict[tuple[str, ...], float]]:
    """By name, then by the values of the labels in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    text = client.get("/metrics").content.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


class TestMetrics:
    def test_they_are_read_by_those_that_the_setting_names(
        self, client: Client, settings: Any
    ) -> None:
        values = settings.KINTSUGI | {"KINTSUGI_METRICS_NETWORKS": ["10.9.0.0/16", "fd00::/8"]}
        allowed = {"10.9.3.4": 200, "::ffff:10.9.3.4": 200, "fd00::1": 200}
        refused = {"127.0.0.1": 403, "10.8.0.1": 403, "": 403}
        with override_settings(KINTSUGI=values):
            for address, status in (allowed | refused).items():
                answer = client.get("/metrics", REMOTE_ADDR=address)
                assert answer.status_code == status, address

    def test_without_the_setting_loopback_alone_reads_them(self, client: Client) -> None:
        told = [
            client.get("/metrics", REMOTE_ADDR=address).status_code
            for address in ("127.0.0.1", "::1", "10.0.0.7")
        ]
        assert told == [200, 200, 403]

    def test_parts_have_an_age_a_start_and_a_version(self, client: Client) -> None:
        write(PartReport("beat"), ago=2 * MINUTE)
        metrics = read_metrics(client)
        assert 120 <= metrics["kintsugi_part_age_seconds"]["mgmt-1", "beat"] < 600
        assert metrics["kintsugi_part_info"] == {("mgmt-1", "beat", "0.2.0"): 1}
        began_at = Heartbeat.objects.get().began_at.timestamp()
        assert metrics["kintsugi_part_start_time_seconds"]["mgmt-1", "beat"] == began_at

    def test_a_part_that_is_kept_from_its_work_is_degraded(self, client: Client) -> None:
        write(PartReport("beat"))
        write(replace(WORKER, trouble="Redis takes nothing."))
        degraded = read_metrics(client)["kintsugi_part_degraded"]
        assert degraded == {("mgmt-1", "beat"): 0, ("mgmt-1", WORKER.part): 1}

    def test_spool_and_disk_of_a_receiver_are_told(self, client: Client) -> None:
        disk = Disk("/var/lib/kintsugi", 5000, 9000)
        write(PartReport("receiver", (), PartBacklog(4096, None), disk))
        metrics = read_metrics(client)
        assert metrics["kintsugi_spool_undelivered_bytes"] == {("mgmt-1",): 4096}
        free = metrics["kintsugi_data_directory_free_bytes"]
        assert free == {("/var/lib/kintsugi", "mgmt-1"): 5000}

    def test_the_inbox_has_batches_bytes_and_an_age(self, client: Client) -> None:
        at = timezone.now() - MINUTE
        InboxBatch.objects.create(
            receiver="a", segment=1, start=0, rank=1, payload=b"[]", size=2, recorded_at=at
        )
        metrics = read_metrics(client)
        assert metrics["kintsugi_inbox_batches"][()] == 1
        assert metrics["kintsugi_inbox_bytes"][()] == 2
        assert 60 <= metrics["kintsugi_inbox_age_seconds"][()] < 600

    def test_faults_incidents_runs_and_messages_are_counted_by_their_states(
        self, client: Client
    ) -> None:
        now = timezone.now()
        services.ingest([an_event("gpu.xid.79", "node/gn001/gpu/0", at=now)], now=now)
        metrics = read_metrics(client)
        assert metrics["kintsugi_active_faults"]["critical",] == 1
        assert metrics["kintsugi_active_faults"]["minor",] == 0
        assert metrics["kintsugi_open_incidents"]["open",] == 1
        assert ("resolved",) not in metrics["kintsugi_open_incidents"]
        assert metrics["kintsugi_runs"]["running",] == 0
        assert metrics["kintsugi_unread_templates"][()] == 0
        waiting = Notification.objects.filter(state="waiting").count()
        assert metrics["kintsugi_notifications_waiting"][()] == waiting > 0


class TestBeatIsDead:
    """The sweep is called by the beat: then the web process looks."""

    @pytest.fixture(autouse=True)
    def dead_beat(self) -> None:
        for minutes in (4, 3.6, 3.2, 2.8, 2.4, 2, 1.6, 1.2, 0.8, 0.4, 0):
            write(PartReport("web"), ago=minutes * MINUTE)
        write(PartReport("beat"), ago=3 * MINUTE, pid=101)

    def test_the_web_process_tells_of_it_when_nobody_sweeps(self) -> None:
        tasks.evaluate_own_health()
        fault = Fault.objects.get()
        assert (fault.fault_type, fault.resource) == (
            own_health.PART_SILENT,
            "kintsugi/mgmt-1/beat",
        )
        assert Notification.objects.exists()

    def test_it_sends_the_message_itself_where_redis_rings_no_worker(
        self, slack: SlackSite, settings: Any
    ) -> None:
        address = f"redis://127.0.0.1:{free_port()}/0"
        settings.KINTSUGI = settings.KINTSUGI | {"REDIS_URL": address}
        tasks.pipeline.cache_clear()
        try:
            tasks.evaluate_own_health()
        finally:
            tasks.pipeline.cache_clear()
            broker.OUTAGE.end()
        (message,) = slack.server.workspace.channels[CHANNEL].messages.values()
        assert "A part of Kintsugi itself has fallen silent" in message.text

    def test_it_leaves_the_message_to_the_workers_where_redis_rings_them(
        self, slack: SlackSite
    ) -> None:
        tasks.pipeline.cache_clear()
        tasks.evaluate_own_health()
        tasks.pipeline.cache_clear()
        assert not slack.server.workspace.channels[CHANNEL].messages
        assert Notification.objects.exists()

    def test_it_leaves_it_to_the_sweep_while_there_is_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tasks.pipeline().sweep()
        assert Fault.objects.get().count == 1
        monkeypatch.setattr(tasks, "pipeline", lambda: pytest.fail("it was evaluated again"))
        tasks.evaluate_own_health()
        assert Fault.objects.get().count == 1

    def test_a_line_above_every_page_says_so(self) -> None:
        tasks.evaluate_own_health()
        (text,) = [each.text for each in banners.get_banners() if "beat on mgmt-1" in each.text]
        assert "systemctl status kintsugi-beat" in text
        assert text.startswith("As of 20")
        assert " UTC: Kintsugi's beat on mgmt-1 " in text
