"""What systemd hears of a process, over a socket as systemd opens it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kintsugi.health import systemd
from kintsugi.health.reporter import ProcessPart, Reporter
from tests.deployment import DEPLOY, UNITS
from tests.services.patience import patient


@contextmanager
def listening(address: str | Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(address))
        server.settimeout(patient(10))
        yield server


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with listening(tmp_path / "notify") as server:
        yield server


def hears_nothing(listener: socket.socket) -> bool:
    listener.setblocking(False)
    try:
        listener.recv(64)
    except BlockingIOError:
        return True
    return False


def test_a_message_arrives_whole(listener: socket.socket) -> None:
    assert systemd.notify(systemd.READY)
    assert listener.recv(64) == b"READY=1"


def test_a_socket_in_the_abstract_namespace_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"kintsugi-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    with listening(f"\0{name}") as server:
        assert systemd.notify(systemd.WATCHDOG)
        assert server.recv(64) == b"WATCHDOG=1"


def test_nothing_is_sent_where_systemd_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not systemd.notify(systemd.READY)


def test_a_systemd_that_is_gone_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not systemd.notify(systemd.READY)


@pytest.mark.parametrize(
    ("period", "pid", "expected"),
    [
        ("90000000", None, 30.0),
        ("90000000", str(os.getpid()), 30.0),
        ("90000000", "1", None),
        ("", None, None),
    ],
    ids=["of any process", "of this process", "of another process", "no watchdog"],
)
def test_the_watchdog_is_told_three_times_in_its_period(
    monkeypatch: pytest.MonkeyPatch, period: str, pid: str | None, expected: float | None
) -> None:
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", period)
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    assert systemd.get_watchdog_period_s() == expected


def test_a_process_is_ready_when_it_serves_and_then_feeds_the_watchdog(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No database is needed for either."""
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    serves = threading.Event()
    reporter = Reporter([], wait_until_ready=serves.wait)
    notifying = threading.Thread(target=reporter.notify_forever, daemon=True)
    notifying.start()
    assert hears_nothing(listener)
    listener.settimeout(patient(10))
    serves.set()
    assert [listener.recv(64) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    reporter.stop()
    notifying.join(patient(10))
    assert not notifying.is_alive()


@pytest.mark.parametrize(
    ("is_restart_a_cure", "is_told"), [(True, False), (False, True)], ids=["hangs", "waits"]
)
def test_a_part_that_hangs_is_restarted_only_where_that_mends_it(
    listener: socket.socket, is_restart_a_cure: bool, is_told: bool
) -> None:
    """A beat that waits for Redis would wait after a restart as well."""
    part = ProcessPart("any", is_working=lambda: False, is_restart_a_cure=is_restart_a_cure)
    assert Reporter([part]).notify_watchdog() is is_told
    assert hears_nothing(listener) is not is_told


@pytest.mark.parametrize("name", UNITS)
def test_each_unit_tells_systemd_when_it_serves_and_that_it_lives(name: str) -> None:
    lines = (DEPLOY / "systemd" / f"{name}.service").read_text().splitlines()
    assert {"Type=notify", "WatchdogSec=90", "TimeoutStartSec=300"} <= set(lines)
