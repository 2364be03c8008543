"""What Kintsugi asks of PostgreSQL for its sessions, and what a site's own address changes of
it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest
from django.db.utils import ConnectionHandler

from kintsugi.configuration import config
from kintsugi.configuration.part_name import get_part_name
from kintsugi.settings import make_database
from tests.services.ports import free_port
from tests.services.postgres import Postgres


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/opt/k/bin/kintsugi receive", "kintsugi-receiver"),
        ("manage.py receive", "kintsugi-receiver"),
        (
            "/opt/k/bin/waitress-serve --listen 127.0.0.1:8000 kintsugi.wsgi:application",
            "kintsugi-web",
        ),
        ("celery -A kintsugi beat --pidfile=", "kintsugi-beat"),
        ("celery -A kintsugi worker --queues sweep,ingest -c 2", "kintsugi-worker-ingest-sweep"),
        ("celery -A kintsugi worker -Q poll", "kintsugi-worker-poll"),
        ("celery -A kintsugi worker --queues=poll", "kintsugi-worker-poll"),
        ("celery -A kintsugi worker", "kintsugi-worker"),
        ("manage.py migrate --verbosity 0", "kintsugi-migrate"),
        ("kintsugi --json", "kintsugi"),
        ("pytest tests", "kintsugi"),
        ("", "kintsugi"),
    ],
)
def test_a_session_says_which_part_it_belongs_to(command: str, name: str) -> None:
    assert get_part_name(command.split()) == name


def test_a_name_is_no_longer_than_postgresql_keeps() -> None:
    queues = ",".join(f"queue{number}" for number in range(20))
    assert len(get_part_name(["celery", "worker", "-Q", queues])) == 63


def _options(url: str) -> dict[str, str]:
    found: dict[str, str] = make_database(config.load({"DATABASE_URL": url})["DATABASE_URL"])[
        "OPTIONS"
    ]
    return found


def test_a_lost_host_and_a_lost_lock_are_noticed_without_a_word_of_the_site() -> None:
    options = _options("postgresql://db/kintsugi")
    assert options["connect_timeout"] == "5"
    assert options["application_name"].startswith("kintsugi")
    for setting in ("lock_timeout=60s", "tcp_keepalives_idle=10", "random_page_cost=1.1"):
        assert f"-c {setting}" in options["options"]


def test_what_a_site_says_of_its_sessions_follows_and_so_wins() -> None:
    options = _options("postgresql://db/kintsugi?options=-c%20lock_timeout%3D5s&connect_timeout=2")
    assert options["options"].endswith(" -c lock_timeout=5s")
    assert options["connect_timeout"] == "2"


@pytest.mark.postgresql
@pytest.mark.django_db
def test_postgresql_has_taken_them() -> None:
    from django.db import connection  # noqa: PLC0415

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('lock_timeout'), current_setting('random_page_cost')"
        )
        assert cursor.fetchone() == ("1min", "1.1")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    running = Postgres().start()
    yield running
    running.remove()


@pytest.mark.needs("postgres", "initdb")
@pytest.mark.parametrize(
    ("url", "is_by_socket"),
    [
        ("postgresql://kintsugi@127.0.0.1:{port}/postgres?sslmode=prefer", False),
        ("postgresql://kintsugi@127.0.0.1:{dead},127.0.0.1:{port}/postgres", False),
        (
            "postgresql://kintsugi@127.0.0.1:{dead},127.0.0.1:{port}/postgres?target_session_attrs=read-write",
            False,
        ),
        ("postgresql:///postgres?host={home}&port={port}&user=kintsugi", True),
        ("postgresql://kintsugi@{quoted}:{port}/postgres", True),
    ],
    ids=["one host", "the first is dead", "a standby may be named", "socket", "socket as host"],
)
def test_any_address_that_libpq_understands_reaches_the_server(
    server: Postgres, url: str, is_by_socket: bool
) -> None:
    home = str(server.home)
    places = {"port": server.port, "dead": free_port(), "home": home, "quoted": quote(home, "")}
    with connect(url.format(**places)) as connection:
        row = connection.execute(
            "SELECT inet_server_addr() IS NULL, application_name FROM pg_stat_activity"
            " WHERE pid = pg_backend_pid()"
        ).fetchone()
    assert row == (is_by_socket, get_part_name(sys.argv))


def connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """By what Django would give the driver."""
    libpq = config.load({"DATABASE_URL": url})["DATABASE_URL"]
    django = ConnectionHandler({"default": make_database(libpq)})["default"]
    parameters = django.get_connection_params()
    return psycopg.connect(**parameters)


@pytest.mark.needs("postgres", "initdb")
def test_a_server_of_another_kind_than_the_address_asks_for_is_refused(server: Postgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="not in hot standby"):
        connect(f"{server.url}?target_session_attrs=standby")
