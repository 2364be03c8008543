"""The receiver's glue: who may send by the inventory, what is committed by the marks, one receiver
per directory."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test import override_settings
from django.utils import timezone

from detectors.receivers.redelivery import CommittedUnknown, OfferError
from detectors.receivers.refusals import RefusedInput
from detectors.receivers.spool import Batch, Extent, Spool
from incidents.checks import refused_senders
from incidents.models import Node, Port, RefusedSender, SpoolMark, Switch
from kintsugi import tasks
from kintsugi.configuration import setting_values
from kintsugi.servers import database_reads, receiving, trap_receiving
from kintsugi.web import banners
from tests.builders import NOW
from tests.services.redis import Redis

pytestmark = pytest.mark.django_db


@contextmanager
def database_away() -> Iterator[None]:
    def refuse(*_: Any) -> None:
        raise OperationalError("the server closed the connection")

    with connection.execute_wrapper(refuse):
        yield


@pytest.fixture(autouse=True)
def connection_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The glue closes its thread's connection; here that is the test's own, with its
    transaction."""
    monkeypatch.setattr(database_reads, "close_old_connections", lambda: None)
    monkeypatch.setattr(connection, "close", lambda: None)


def test_senders_are_loopback_and_the_inventory_when_no_network_is_listed(tmp_path: Path) -> None:
    Node.objects.create(name="gn001", address="10.1.0.1")
    Switch.objects.create(name="leaf-01", role="leaf", address="10.2.0.1")
    senders = receiving.accepted_senders(tmp_path / "senders.json")
    assert [
        senders.accepts(each) for each in ("127.0.0.1", "10.1.0.1", "10.2.0.1", "10.1.0.2")
    ] == [True] * 3 + [False]
    assert senders.host("10.2.0.1") == "leaf-01"


def test_senders_are_the_listed_networks_alone_when_there_is_a_list(
    tmp_path: Path, settings: Any
) -> None:
    Node.objects.create(name="gn001", address="10.1.0.1")
    with override_settings(
        KINTSUGI=settings.KINTSUGI | {"KINTSUGI_SYSLOG_NETWORKS": ["10.9.0.0/16"]}
    ):
        senders = receiving.accepted_senders(tmp_path / "senders.json")
    assert [senders.accepts(each) for each in ("10.9.3.4", "10.1.0.1", "127.0.0.1")] == [
        True,
        False,
        False,
    ]


def test_senders_are_networks_beside_the_inventory_when_the_list_names_it(
    tmp_path: Path, settings: Any
) -> None:
    Node.objects.create(name="gn001", address="10.1.0.1")
    with override_settings(
        KINTSUGI=settings.KINTSUGI | {"KINTSUGI_SYSLOG_NETWORKS": ["inventory", "10.9.0.0/16"]}
    ):
        senders = receiving.accepted_senders(tmp_path / "senders.json")
    accepted = [senders.accepts(each) for each in ("10.9.3.4", "10.1.0.1", "127.0.0.1", "10.1.0.2")]
    assert accepted == [True, True, True, False]


def refusal(address: str, count: int, at: datetime = NOW, transport: str = "TCP") -> RefusedInput:
    return RefusedInput(address, transport, count, at)


class TestRefusedSenders:
    def test_tries_of_an_address_add_up(self) -> None:
        refused_senders.record([refusal("10.0.0.5", 2)])
        refused_senders.record([refusal("10.0.0.5", 3, NOW + timedelta(minutes=1))])
        (row,) = refused_senders.recent(NOW + timedelta(minutes=2))
        assert (row.count, row.first_at, row.last_at) == (5, NOW, NOW + timedelta(minutes=1))

    def test_a_sender_that_gave_up_is_not_shown_for_long(self) -> None:
        refused_senders.record([refusal("10.0.0.5", 2)])
        assert refused_senders.recent(NOW + timedelta(minutes=59))
        assert not refused_senders.recent(NOW + timedelta(minutes=61))

    def test_forged_addresses_fill_no_table(self) -> None:
        for start in range(0, 1_000, 200):
            at = NOW + timedelta(seconds=start)
            refused_senders.record(
                [refusal(f"10.0.{n // 250}.{n % 250}", 1, at) for n in range(start, start + 200)]
            )
        assert RefusedSender.objects.count() == 500
        assert not RefusedSender.objects.filter(address="10.0.0.1").exists()

    def test_the_banner_says_what_to_write_where(self, settings: Any) -> None:
        refused_senders.record(
            [refusal("10.0.0.5", 7, timezone.now()), refusal("10.0.0.6", 1, timezone.now())]
        )
        text = next(banner.text for banner in banners.get_banners() if "10.0.0.5" in banner.text)
        assert "7 connections since" in text
        assert "1 more: 10.0.0.6" in text
        assert "KINTSUGI_SYSLOG_NETWORKS=inventory,10.0.0.5 and restart the receiver" in text
        line = text.split("KINTSUGI_SYSLOG_NETWORKS=")[1].split(" ")[0]
        assert setting_values.networks(line) == ["inventory", "10.0.0.5/32"]


def test_senders_are_those_known_last_time_when_the_database_is_away(tmp_path: Path) -> None:
    Node.objects.create(name="gn001", address="10.1.0.1")
    cache = tmp_path / "senders.json"
    receiving.accepted_senders(cache)
    with database_away():
        assert receiving.accepted_senders(cache).accepts("10.1.0.1")
        assert not receiving.accepted_senders(tmp_path / "none.json").accepts("10.1.0.1")


def test_committed_are_the_marks_of_this_receiver_from_the_prefix_on() -> None:
    for receiver, segment, start, end in (
        ("a", 1, 0, 10),
        ("a", 1, 10, 25),
        ("a", 2, 0, 9),
        ("b", 1, 25, 30),
    ):
        SpoolMark.objects.create(receiver=receiver, segment=segment, start=start, end=end)
    ledger = receiving.QueueAndMarks()
    assert set(ledger.committed("a", {1: 10, 2: 0})) == {Extent(1, 10, 25), Extent(2, 0, 9)}
    assert list(ledger.committed("a", {})) == []
    ledger.released("a", [1])
    assert SpoolMark.objects.count() == 2
    with database_away(), pytest.raises(CommittedUnknown, match="closed the connection"):
        ledger.committed("a", {1: 0})


@pytest.fixture(params=["memory", "redis"])
def broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty broker of either sort for the tasks of this process."""
    app = tasks.ingest.app
    url = (
        "memory://localhost/" if request.param == "memory" else request.getfixturevalue("redis_url")
    )
    monkeypatch.setitem(app.conf, "broker_url", url)
    monkeypatch.setattr(app, "_pool", None)
    monkeypatch.setattr(app.amqp, "_producer_pool", None)
    with app.connection_or_acquire() as connection:
        connection.default_channel.queue_purge("ingest")


@pytest.mark.usefixtures("broker")
def test_batches_that_wait_in_the_queue_are_counted_until_a_worker_takes_them() -> None:
    ledger = receiving.QueueAndMarks()
    assert ledger.waiting() == 0
    for start in (0, 10, 20):
        ledger.offer(Batch("a", Extent(1, start, start + 10), []))
    assert ledger.waiting() == 3
    with tasks.ingest.app.connection_or_acquire() as connection:
        assert connection.default_channel.basic_get("ingest", no_ack=True) is not None
    assert ledger.waiting() == 2


@pytest.mark.needs("redis-server")
def test_a_full_redis_takes_no_batch_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    app, full = (
        tasks.ingest.app,
        Redis("--maxmemory", "1", "--maxmemory-policy", "noeviction", "--save", "").start(),
    )
    monkeypatch.setitem(app.conf, "broker_url", full.url)
    monkeypatch.setattr(app, "_pool", None)
    monkeypatch.setattr(app.amqp, "_producer_pool", None)
    ledger = receiving.QueueAndMarks()
    try:
        with pytest.raises(OfferError, match="maxmemory"):
            ledger.offer(Batch("a", Extent(1, 0, 10), []))
    finally:
        full.remove()
    with pytest.raises(OfferError, match="refused"):
        ledger.waiting()


def test_a_second_receiver_on_one_data_directory_is_refused(settings: Any) -> None:
    spool = Spool(settings.DATA_DIR / "spool")
    try:
        with pytest.raises(CommandError, match="in use by another receiver"):
            call_command("receive")
    finally:
        spool.close()


CREDENTIALS = """
[[group]]
switches = "*"
[group.snmp]
version = "3"
user = "watcher"
auth_protocol = "sha256"
auth_key_env = "TRAP_TEST_KEY"

[[group]]
nodes = "*"
[group.snmp]
community_env = "TRAP_TEST_KEY"
"""


def test_notifications_are_believed_by_the_credentials_of_switches_at_their_engines(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAP_TEST_KEY", "not so secret")
    path = tmp_path / "credentials.toml"
    path.write_text(CREDENTIALS)
    Node.objects.create(name="gn001")
    leaf = Switch.objects.create(name="leaf-01", role="leaf", snmp_engine_id="80001f888011223344")
    Port.objects.create(switch=leaf, name="Ethernet64")
    with override_settings(KINTSUGI=settings.KINTSUGI | {"KINTSUGI_CREDENTIALS": path}):
        known = trap_receiving.read_known()
    assert [each.user for each in known.keys.credentials] == ["watcher"]
    assert known.keys.engines == ("80001f888011223344",)
    assert known.nodes == {"gn001"}
    assert known.port_name("leaf-01", "65") == "Ethernet64"


def test_an_address_for_notifications_that_is_taken_is_named(tmp_path: Path, settings: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        values = settings.KINTSUGI | {"KINTSUGI_TRAP_LISTEN": other.getsockname()}
        with (
            override_settings(DATA_DIR=tmp_path, KINTSUGI=values),
            pytest.raises(CommandError, match="TRAP_LISTEN"),
        ):
            call_command("receive")
