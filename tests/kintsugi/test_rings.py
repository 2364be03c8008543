"""What is rung, on a real Redis: a repair that begins does not stand in line behind those that only wait."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.utils import timezone

from kintsugi.celery import app
from kintsugi.tasks import CeleryRing
from runbooks.models import Mode
from tests.builders import an_incident
from tests.kintsugi.pages import a_run

pytestmark = [pytest.mark.needs("redis-server"), pytest.mark.django_db(transaction=True)]
IN_A_MOMENT_S = 5


@pytest.fixture(autouse=True)
def broker(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_WRITE_URL", redis_url)
    monkeypatch.setenv("CELERY_BROKER_READ_URL", redis_url)
    monkeypatch.setattr(app.amqp, "_producer_pool", None)


def _some_runs(number: int, mode: Mode) -> list[int]:
    incidents = [an_incident(resource=f"node/gn{one:03d}/gpu/0000:19:00.0") for one in range(number)]
    return [a_run(incident, mode=mode, wake_at=timezone.now()).pk for incident in incidents]


def _taken(queue: str, number: int) -> list[int]:
    """The runs of the next messages, as a worker takes them."""
    with app.connection_for_read() as connection, connection.SimpleQueue(queue, no_ack=True) as line:
        return [line.get(timeout=IN_A_MOMENT_S).payload[0][0] for _ in range(number)]


@pytest.mark.parametrize(("mode", "queue"), [(Mode.ARMED, "runbook"), (Mode.SHADOW, "sweep")])
def test_what_begins_is_taken_before_what_waits_and_each_in_its_order(mode: Mode, queue: str) -> None:
    waits, waits_too, begins, goes_on = _some_runs(4, mode)
    ring = CeleryRing()
    with transaction.atomic():
        ring.advance(waits, has_waited=True)
        ring.advance(waits_too, has_waited=True)
        ring.advance(begins)
        ring.advance(goes_on)
    assert _taken(queue, 4) == [begins, goes_on, waits, waits_too]
