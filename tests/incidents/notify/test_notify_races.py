"""Many workers, one channel: each message once, on a database that locks by row."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, transaction

from fixtures.slack_server import CHANNEL, TOKEN, SlackServer, workspace
from incidents.models import Notification
from incidents.notify import services
from incidents.notify.slack.client import SlackNotifier
from incidents.state import outbox
from tests.incidents.builders import T0, an_entry, an_incident, told

WORKERS = 8


class Hurried(SlackNotifier):
    """Without the pace, so that workers meet."""

    def get_pace(self, channel: str) -> timedelta:
        return timedelta(0)


def _work(notifier: SlackNotifier) -> None:
    try:
        while Notification.objects.exclude(state="sent").exists():
            for notification_id in services.list_due(T0):
                services.send(notification_id, notifier, now=T0)
    finally:
        connection.close()


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("slack_settings")
def test_each_message_is_sent_once_when_eight_workers_send_at_once() -> None:
    for _ in range(10):
        told(an_incident())
    with SlackServer(workspace(posts_per_second=10_000, burst=10_000)) as slack:
        notifiers = [Hurried(token=TOKEN, api_url=slack.api_url) for _ in range(WORKERS)]
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(_work, notifiers))
        posted = slack.workspace.channels[CHANNEL].messages.values()
        keys = Counter(str(message.metadata) for message in posted)
    assert len(keys) == 20
    assert set(keys.values()) == {1}
    assert set(Notification.objects.values_list("state", flat=True)) == {"sent"}


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_one_card_is_owed_when_eight_workers_tell_of_one_incident_at_once() -> None:
    incidents = [an_incident() for _ in range(3)]
    entries = [[an_entry(incident) for incident in incidents] for _ in range(WORKERS)]

    def tell(batch: int) -> None:
        try:
            with transaction.atomic():
                outbox.enqueue(entries[batch] if batch % 2 else entries[batch][::-1], now=T0)
        finally:
            connection.close()

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(tell, range(WORKERS)))
    cards = Notification.objects.filter(sequence=0)
    assert sorted(cards.values_list("incident_id", "revision")) == [
        (incident.pk, WORKERS) for incident in incidents
    ]
    assert Notification.objects.filter(sequence__gt=0).count() == 3 * WORKERS
