"""`kintsugi receive` on sockets that systemd keeps: what came while it was away is received, and
sockets of another address stop the start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.deployment import DEPLOY, environment
from tests.services.patience import patient
from tests.services.ports import free_port, wait_until
from tests.services.programs import stop
from tests.services.socket_activation import KeptSockets, spawn_with

ROOT = Path(__file__).resolve().parents[3]
MANAGE = [sys.executable, str(ROOT / "manage.py")]
LINE = b"<4>Jan 12 03:04:05 gn042 kernel: NVRM: Xid (PCI:0000:19:00): 79, pid=8, name=python3"


def settings(home: Path, port: int) -> dict[str, str]:
    own = {"KINTSUGI_DATA_DIR": str(home), "KINTSUGI_SYSLOG_LISTEN": f"127.0.0.1:{port}"}
    return {**os.environ, **own, "DATABASE_URL": "", "REDIS_URL": ""}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with an empty database."""
    made = tmp_path_factory.mktemp("home")
    migrate = [*MANAGE, "migrate", "--verbosity", "0"]
    subprocess.run(migrate, env=settings(made, 5514), check=True, timeout=patient(60))
    return made


@pytest.fixture
def kept() -> Iterator[KeptSockets]:
    with closing(KeptSockets(receive_bytes=1024 * 1024)) as sockets:
        yield sockets


def lines_received(home: Path) -> int:
    """In the life of the receiver that is the last to have written it; -1 when none has."""
    path = home / "spool" / "counters.json"
    return int(json.loads(path.read_text())["lines"]) if path.exists() else -1


@pytest.mark.timeout(300)
def test_what_came_before_a_start_is_received_in_each_life(home: Path, kept: KeptSockets) -> None:
    values = settings(home, kept.address[1])
    for life in (1, 2):
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
            socket.create_connection(kept.address) as connection,
        ):
            for _ in range(life):
                datagrams.sendto(LINE, kept.address)
            connection.sendall(LINE + b"\n")
        receiver = kept.spawn([*MANAGE, "receive"], env=values)
        wait_until(
            lambda: lines_received(home) == life + 1,  # noqa: B023
            within_s=60,
            what="lines that came before the start",
        )
        stop(receiver, how=signal.SIGTERM, within_s=patient(30))
        assert receiver.returncode == 0


@pytest.mark.timeout(300)
def test_sockets_of_another_address_stop_the_start_with_both_addresses(
    home: Path, kept: KeptSockets
) -> None:
    port = free_port()
    values = settings(home, port)
    receiver = kept.spawn([*MANAGE, "receive"], env=values, stderr=subprocess.PIPE)
    _, complaint = receiver.communicate(timeout=patient(60))
    assert receiver.returncode == 1
    assert f"KINTSUGI_SYSLOG_LISTEN=127.0.0.1:{port}: systemd passes" in complaint.decode()
    assert f"TCP 127.0.0.1:{kept.address[1]}" in complaint.decode()


@pytest.mark.timeout(300)
def test_a_socket_for_relp_may_be_passed_besides(home: Path, kept: KeptSockets) -> None:
    with socket.create_server(("127.0.0.1", 0)) as relp:
        port = relp.getsockname()[1]
        values = settings(home, kept.address[1]) | {"KINTSUGI_RELP_LISTEN": f"127.0.0.1:{port}"}
        sockets = [relp, kept.stream, kept.datagram]
        receiver = spawn_with(sockets, [*MANAGE, "receive"], env=values)
        with socket.create_connection(("127.0.0.1", port)) as sender:
            sender.settimeout(patient(60))
            sender.sendall(b"1 open 15 commands=syslog\n")
            assert sender.recv(100).startswith(b"1 rsp 60 200 OK\n")
        stop(receiver, how=signal.SIGTERM, within_s=patient(30))
        assert receiver.returncode == 0


def test_the_shipped_socket_unit_names_the_address_of_the_shipped_settings() -> None:
    unit = (DEPLOY / "systemd" / "kintsugi-receiver.socket").read_text()
    given = dict(re.findall(r"^(Listen\w+)=(.*)$", unit, re.MULTILINE))
    address = environment((DEPLOY / "environment.example").read_text())["KINTSUGI_SYSLOG_LISTEN"]
    assert given == {"ListenStream": address, "ListenDatagram": address}
