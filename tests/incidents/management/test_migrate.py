"""Tables are brought forward while others write: `migrate` is in nobody's way for good."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection

from incidents.models import Incident
from tests.services.ports import wait_until

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]
# Adds indices to faults, and then to incidents.
BEFORE, TWO_TABLES = "0005_heartbeat", "0006_partial_indexes"
_WAITS = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'"


def connect() -> psycopg.Connection:
    """Of another process, to the same database."""
    parameters = connection.get_connection_params()
    wanted = ("dbname", "user", "host", "port")
    return psycopg.connect(**{name: parameters[name] for name in wanted if name in parameters})


@contextmanager
def in_the_way(said: list[str]) -> Iterator[None]:
    """A worker that has written an incident, and writes a fault once `migrate` waits for it: of the
    two that wait for each other PostgreSQL ends `migrate`."""
    with connect() as other, connect() as watch:
        watch.autocommit = True
        other.execute("SET deadlock_timeout = '1h'")
        other.execute("LOCK TABLE incidents_incident IN ROW EXCLUSIVE MODE")

        def is_waited_for() -> bool:
            row = watch.execute(_WAITS).fetchone()
            return bool(row and row[0])

        def write() -> None:
            wait_until(is_waited_for, within_s=30, what="migrate waits for incidents")
            other.execute("LOCK TABLE incidents_fault IN ROW EXCLUSIVE MODE")
            said.append("written")
            other.commit()

        worker = threading.Thread(target=write)
        worker.start()
        yield
        worker.join()


def test_migrate_begins_anew_when_it_and_a_worker_wait_for_each_other() -> None:
    call_command("migrate", "incidents", BEFORE, verbosity=0)
    try:
        with connection.cursor() as cursor:
            # The worker is there by then.
            cursor.execute("SET deadlock_timeout = '10s'")
        said: list[str] = []
        complaints = StringIO()
        with in_the_way(said):
            call_command("migrate", "incidents", TWO_TABLES, verbosity=0, stderr=complaints)
        assert said == ["written"]
        assert complaints.getvalue().count("it is begun again") == 1
    finally:
        connection.close()
        call_command("migrate", verbosity=0)
    assert Incident.objects.count() == 0
