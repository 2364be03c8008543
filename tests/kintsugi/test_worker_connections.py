"""A worker's connection to the database: kept from task to task, and never used once it is dead."""

from __future__ import annotations

import psycopg
import pytest
from celery.signals import task_postrun, task_prerun
from django.db import connection

from kintsugi.celery import app

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


def _task() -> int:
    """The number of the server's process that answers within one task."""
    task_prerun.send(sender=app)
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        (backend,) = cursor.fetchone()
    task_postrun.send(sender=app)
    return int(backend)


def _end(backend: int) -> None:
    """As a restart of the server does, while no task is under way."""
    settings = connection.get_connection_params()
    with psycopg.connect(
        **{key: settings[key] for key in ("dbname", "user", "host", "port")}
    ) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", [backend])


def test_tasks_share_a_connection() -> None:
    assert _task() == _task()


def test_a_task_takes_a_new_connection_when_the_server_has_ended_the_old_one() -> None:
    before = _task()
    _end(before)
    assert _task() != before


def test_celery_itself_does_not_leave_the_database_between_tasks() -> None:
    assert app.conf.get("CELERY_DB_REUSE_MAX")
