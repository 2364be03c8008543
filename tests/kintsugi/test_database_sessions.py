"""What Kintsugi asks of PostgreSQL for its sessions, and what a site's own address changes of
it."""

from __future__ import annotations

import pytest

from kintsugi.configuration import config
from kintsugi.configuration.part_name import part_name
from kintsugi.settings import make_database


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
    assert part_name(command.split()) == name


def test_a_name_is_no_longer_than_postgresql_keeps() -> None:
    queues = ",".join(f"queue{number}" for number in range(20))
    assert len(part_name(["celery", "worker", "-Q", queues])) == 63


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
