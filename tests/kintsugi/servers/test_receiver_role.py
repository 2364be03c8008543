"""The receiver works with a database role of its own, which hands events over and reads none."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from incidents.models import Heartbeat, InboxBatch, RefusedSender, UnreadOnMachine
from incidents.triage import inbox
from tests.builders import NOW, a_node
from tests.deployment import DEPLOY
from tests.services.patience import patient
from tests.services.ports import free_port, listens, wait_until
from tests.services.programs import stop

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]

ROOT = Path(__file__).resolve().parents[3]
ROLE = "kintsugi_receiver"
LINE = b"<4>Jan 12 03:04:05 gn042 kernel: NVRM: Xid (PCI:0000:19:00): 79, pid=8, name=python3\n"

UNREAD = b"<4>Jan 12 03:04:05 gn042 kernel: quux0: firmware gave no response\n"


@pytest.fixture
def role_url() -> Iterator[str]:
    """The test's own database, as the role that the shipped SQL makes. A role is the server's, and
    other workers have databases on it: here it carries the database's name."""
    database = connection.settings_dict
    role = f"{ROLE}_{database['NAME']}"
    shipped = (DEPLOY / "postgresql" / "receiver.sql").read_text()
    with connection.cursor() as cursor:
        cursor.execute(shipped.replace(ROLE, role))
    yield f"postgresql://{role}@{database['HOST']}:{database['PORT']}/{database['NAME']}"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP OWNED BY {role}")
        cursor.execute(f"DROP ROLE {role}")


@pytest.fixture
def port(role_url: str, tmp_path: Path) -> Iterator[int]:
    """Where a receiver of that role listens."""
    port = free_port()
    own = {
        "DATABASE_URL": role_url,
        "REDIS_URL": "",
        "KINTSUGI_DATA_DIR": str(tmp_path),
        "KINTSUGI_SYSLOG_LISTEN": f"127.0.0.1:{port}",
    }
    journal = tmp_path / "journal"
    with journal.open("wb") as written:
        receiver = subprocess.Popen(
            [sys.executable, "manage.py", "receive"],
            cwd=ROOT,
            env=os.environ | own,
            stderr=written,
        )
    try:
        wait_until(lambda: listens(port), within_s=60, what="the receiver")
        assert receiver.poll() is None, journal.read_text()
        yield port
    finally:
        stop(receiver, how=signal.SIGTERM, within_s=patient(30))
    assert "permission denied" not in journal.read_text()


def send(port: int, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sender:
        sender.sendall(line)


@pytest.mark.timeout(300)
def test_a_receiver_of_the_role_hands_over_what_it_receives_and_says_that_it_lives(
    port: int,
) -> None:
    a_node()
    send(port, LINE + UNREAD)
    wait_until(InboxBatch.objects.exists, within_s=60, what="the line in the inbox")
    wait_until(Heartbeat.objects.exists, within_s=60, what="its sign of life")
    changes = inbox.ingest_waiting(NOW)
    assert changes
    assert not RefusedSender.objects.exists()
    wait_until(UnreadOnMachine.objects.exists, within_s=60, what="the line that nobody reads")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM incidents_incident",
        "SELECT title FROM incidents_incident",
        "SELECT count(*) FROM incidents_fault",
        "SELECT payload FROM incidents_inboxbatch",
        "DELETE FROM incidents_inboxbatch",
        "UPDATE incidents_inboxbatch SET attempts = 9",
        "UPDATE incidents_node SET address = '10.0.0.1'",
        "SELECT * FROM incidents_nodetoken",
        "SELECT * FROM runbooks_run",
        "INSERT INTO runbooks_run DEFAULT VALUES",
        "SELECT password FROM auth_user",
        "CREATE TABLE mine (id integer)",
    ],
)
def test_the_role_may_do_nothing_else(role_url: str, statement: str) -> None:
    with (
        psycopg.connect(role_url) as session,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        session.execute(statement)
