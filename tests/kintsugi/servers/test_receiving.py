"""The receiver's glue: who may send by the inventory, what the inbox takes, one receiver per
directory."""

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

from detectors.receivers.delivery import InboxAway, PositionMoved
from detectors.receivers.refusals import EVENTS, FAULTS, NAMES, RefusedInput
from detectors.receivers.spool import Batch, Spool, Turn
from incidents.checks import refused_senders
from incidents.models import InboxBatch, Node, Port, RefusedSender, Switch
from kintsugi import tasks
from kintsugi.configuration import setting_values
from kintsugi.health import broker
from kintsugi.servers import database_reads, receiving, trap_receiving
from kintsugi.web import banners
from tests.builders import NOW, an_event
from tests.services.ports import free_port

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
    senders = receiving.get_accepted_senders(tmp_path / "senders.json")
    assert [
        senders.accepts(each) for each in ("127.0.0.1", "10.1.0.1", "10.2.0.1", "10.1.0.2")
    ] == [True] * 3 + [False]
    assert senders.get_host("10.2.0.1") == "leaf-01"


def test_senders_are_the_listed_networks_alone_when_there_is_a_list(
    tmp_path: Path, settings: Any
) -> None:
    Node.objects.create(name="gn001", address="10.1.0.1")
    with override_settings(
        KINTSUGI=settings.KINTSUGI | {"KINTSUGI_SYSLOG_NETWORKS": ["10.9.0.0/16"]}
    ):
        senders = receiving.get_accepted_senders(tmp_path / "senders.json")
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
        senders = receiving.get_accepted_senders(tmp_path / "senders.json")
    accepted = [senders.accepts(each) for each in ("10.9.3.4", "10.1.0.1", "127.0.0.1", "10.1.0.2")]
    assert accepted == [True, True, True, False]


def refusal(address: str, count: int, at: datetime = NOW, transport: str = "TCP") -> RefusedInput:
    return RefusedInput(address, transport, count, at)


class TestRefusedSenders:
    def test_tries_of_an_address_add_up(self) -> None:
        refused_senders.record([refusal("10.0.0.5", 2)])
        refused_senders.record([refusal("10.0.0.5", 3, NOW + timedelta(minutes=1))])
        (row,) = refused_senders.get_recent(NOW + timedelta(minutes=2))
        assert (row.count, row.first_at, row.last_at) == (5, NOW, NOW + timedelta(minutes=1))

    def test_a_sender_that_gave_up_is_not_shown_for_long(self) -> None:
        refused_senders.record([refusal("10.0.0.5", 2)])
        assert refused_senders.get_recent(NOW + timedelta(minutes=59))
        assert not refused_senders.get_recent(NOW + timedelta(minutes=61))

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
        assert setting_values.parse_networks(line) == ["inventory", "10.0.0.5/32"]

    @pytest.mark.parametrize(
        ("why", "words"),
        [
            (NAMES, "in the name of machines that no inventory knows"),
            (EVENTS, "too many at once"),
            (FAULTS, "more faults of one machine than a sender states in a day"),
        ],
    )
    def test_the_banner_says_why_events_were_left_out(self, why: str, words: str) -> None:
        refused_senders.record([refusal("10.0.0.5", 7, timezone.now(), why)])
        (text,) = [banner.text for banner in banners.get_banners() if "10.0.0.5" in banner.text]
        assert text.startswith("7 faults told by 10.0.0.5 since ")
        assert f"were left out: {words}. " in text

    def test_the_banner_sends_a_machine_that_is_no_switch_to_another_door(
        self, settings: Any
    ) -> None:
        settings.KINTSUGI = settings.KINTSUGI | {"KINTSUGI_SYSLOG_UDP": "switches"}
        refused_senders.record([refusal("10.0.0.5", 7, timezone.now(), transport="UDP")])
        text = next(banner.text for banner in banners.get_banners() if "10.0.0.5" in banner.text)
        assert "let any other machine send by TCP or TLS" in text
        assert "KINTSUGI_SYSLOG_NETWORKS" not in text


def test_senders_are_those_known_last_time_when_the_database_is_away(tmp_path: Path) -> None:
    Node.objects.create(name="gn001", address="10.1.0.1")
    cache = tmp_path / "senders.json"
    receiving.get_accepted_senders(cache)
    with database_away():
        assert receiving.get_accepted_senders(cache).accepts("10.1.0.1")
        assert not receiving.get_accepted_senders(tmp_path / "none.json").accepts("10.1.0.1")


def test_a_full_disk_keeps_no_receiver_from_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Node.objects.create(name="gn001", address="10.1.0.1")
    for name in ("senders.json", "senders.new"):
        (tmp_path / name).symlink_to("/dev/full")
    assert receiving.get_accepted_senders(tmp_path / "senders.json").accepts("10.1.0.1")
    assert "cannot be written (No space left on device)" in caplog.text


def test_a_full_disk_spoils_nothing_of_the_senders_that_were_kept(tmp_path: Path) -> None:
    Node.objects.create(name="gn001", address="10.1.0.1")
    cache = tmp_path / "senders.json"
    receiving.get_accepted_senders(cache)
    (tmp_path / "senders.new").symlink_to("/dev/full")
    Node.objects.create(name="gn002", address="10.1.0.2")
    receiving.get_accepted_senders(cache)
    with database_away():
        assert receiving.get_accepted_senders(cache).accepts("10.1.0.1")


@pytest.mark.parametrize("words", ["", '{"10.1.0.1": "gn'])
def test_a_list_of_senders_that_was_cut_off_lets_in_loopback_alone(
    tmp_path: Path, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "senders.json"
    cache.write_text(words)
    with database_away():
        senders = receiving.get_accepted_senders(cache)
    assert [senders.accepts(each) for each in ("127.0.0.1", "10.1.0.1")] == [True, False]
    assert f"{cache} cannot be read" in caplog.text


def a_batch(spool: Spool, number: int = 1, *, turn: Turn = Turn.ORDINARY) -> Batch:
    resource = f"node/gn{number:03d}/gpu/0000:19:00.0"
    return spool.append([an_event("gpu.xid.79", resource)], turn=turn)


def test_the_inbox_takes_batches_and_position_together_or_nothing(tmp_path: Path) -> None:
    inbox, spool = receiving.DatabaseInbox(), Spool(tmp_path)
    assert inbox.read_position("a") is None
    first, second = a_batch(spool), a_batch(spool, turn=Turn.URGENT)
    inbox.put("a", [first, second], None)
    assert inbox.read_position("a") == second.extent
    assert list(InboxBatch.objects.order_by("id").values_list("rank", "start")) == [
        (1, first.extent.start),
        (0, second.extent.start),
    ]
    with pytest.raises(PositionMoved):
        inbox.put("a", [second], first.extent)
    with pytest.raises(PositionMoved):
        inbox.put("a", [second], None)
    assert inbox.read_backlog().batches == 2
    assert inbox.read_backlog().size == len(first.payload) + len(second.payload)
    spool.close()


def test_each_receiver_has_a_position_of_its_own(tmp_path: Path) -> None:
    inbox, spool = receiving.DatabaseInbox(), Spool(tmp_path)
    batch = a_batch(spool)
    inbox.put("a", [batch], None)
    inbox.put("b", [batch], None)
    assert inbox.read_position("a") == inbox.read_position("b") == batch.extent
    spool.close()


def test_a_database_that_is_away_is_told_as_that() -> None:
    inbox = receiving.DatabaseInbox()
    with database_away(), pytest.raises(InboxAway, match="closed the connection"):
        inbox.read_position("a")


def test_a_broker_that_is_away_costs_a_line_in_the_log_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = tasks.ingest.app
    monkeypatch.setitem(app.conf, "broker_url", f"redis://127.0.0.1:{free_port()}/0")
    monkeypatch.setattr(app, "_pool", None)
    monkeypatch.setattr(app.amqp, "_producer_pool", None)
    inbox = receiving.DatabaseInbox()
    inbox.wake_worker()
    inbox.wake_worker()
    broker.OUTAGE.end()
    begun, ended = [line for line in caplog.messages if "he broker in this process" in line]
    assert "takes nothing since" in begun
    assert "takes what it is given again" in ended


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
    assert known.find_port_name("leaf-01", "65") == "Ethernet64"


@pytest.mark.parametrize(
    ("setting", "kind"),
    [
        ("KINTSUGI_TRAP_LISTEN", socket.SOCK_DGRAM),
        ("KINTSUGI_RELP_LISTEN", socket.SOCK_STREAM),
    ],
)
def test_an_address_that_is_taken_is_named(
    tmp_path: Path, settings: Any, setting: str, kind: socket.SocketKind
) -> None:
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind(("127.0.0.1", 0))
        values = settings.KINTSUGI | {setting: other.getsockname()}
        with (
            override_settings(DATA_DIR=tmp_path, KINTSUGI=values),
            pytest.raises(CommandError, match=f"{setting}=127.0.0.1:.*choose another, or unset"),
        ):
            call_command("receive")
