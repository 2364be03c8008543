"""What is owed is written down once, with the change that owes it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from pytest_django import DjangoAssertNumQueries, Settings

from incidents.models import Notification
from incidents.state import outbox
from tests.incidents.builders import T0, an_entry, an_incident, told

pytestmark = pytest.mark.django_db


def _rows() -> list[tuple[int, str, str]]:
    return list(
        Notification.objects.order_by("sequence").values_list("sequence", "reason", "state")
    )


def test_a_card_and_a_row_of_its_thread_are_owed_when_a_step_is_recorded() -> None:
    entry = told(an_incident(), kind="step")
    assert _rows() == [(0, "card", "waiting"), (entry.pk, "step", "waiting")]


def test_the_card_alone_is_owed_when_an_incident_opens() -> None:
    told(an_incident(), kind="opened")
    assert _rows() == [(0, "card", "waiting")]


@pytest.mark.parametrize("kind", sorted(outbox.NOT_TOLD))
def test_no_thread_row_is_owed_for_what_says_nothing_new(kind: str) -> None:
    told(an_incident(), kind=kind)
    assert [reason for _, reason, _ in _rows()] == ["card"]


def test_a_kind_nobody_listed_is_told() -> None:
    told(an_incident(), kind="something_new")
    assert [reason for _, reason, _ in _rows()] == ["card", "something_new"]


def test_nothing_is_owed_twice_when_the_same_entry_is_enqueued_again() -> None:
    entry = told(an_incident())
    outbox.enqueue([entry], now=T0)
    assert len(_rows()) == 2


def test_a_sent_card_is_due_again_when_its_incident_changes() -> None:
    incident = an_incident()
    told(incident, kind="opened")
    Notification.objects.update(state="sent", sent_revision=1)
    told(incident, kind="acknowledge", at=T0 + timedelta(minutes=5))
    card = Notification.objects.get(sequence=0)
    assert (card.state, card.revision, card.sent_revision, card.due_at) == (
        "waiting",
        2,
        1,
        T0 + timedelta(minutes=5),
    )


@pytest.mark.parametrize("state", ["sending", "unknown", "failed"])
def test_a_card_on_its_way_keeps_its_state_and_learns_of_the_change(state: str) -> None:
    incident = an_incident()
    told(incident, kind="opened")
    Notification.objects.update(state=state)
    told(incident, kind="acknowledge")
    card = Notification.objects.get(sequence=0)
    assert (card.state, card.revision) == (state, 2)


def test_nothing_is_owed_when_the_change_is_rolled_back() -> None:
    incident = an_incident()
    with transaction.atomic():
        told(incident)
        transaction.set_rollback(True)
    assert _rows() == []


def test_one_batch_of_a_hundred_incidents_takes_a_fixed_number_of_queries(
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    entries = [an_entry(an_incident()) for _ in range(100)]
    with django_assert_max_num_queries(7):
        outbox.enqueue(entries, now=T0)
    assert Notification.objects.count() == 200


def test_messages_go_to_the_log_unless_a_token_and_a_channel_are_set(settings: Settings) -> None:
    values = dict(settings.KINTSUGI)
    settings.KINTSUGI = {**values, "SLACK_BOT_TOKEN": "xoxb-1", "SLACK_CHANNEL": None}
    assert outbox.get_channel() == "console"
    settings.KINTSUGI = {**values, "SLACK_BOT_TOKEN": "xoxb-1", "SLACK_CHANNEL": "C1"}
    assert outbox.get_channel() == "slack:C1"


def _channels() -> set[tuple[str, str]]:
    return set(Notification.objects.values_list("channel", "reason"))


@pytest.fixture
def two_channels(settings: Settings) -> None:
    settings.KINTSUGI = {
        **settings.KINTSUGI,
        "SLACK_BOT_TOKEN": "xoxb-1",
        "SLACK_CHANNEL": "C1",
        "SLACK_SECOND_CHANNEL": "C2",
    }


@pytest.mark.usefixtures("two_channels")
def test_what_nobody_takes_goes_to_the_second_channel_too_and_nothing_else_does() -> None:
    incident = an_incident()
    told(incident, kind="opened")
    told(incident, kind="standstill")
    assert _channels() == {("slack:C1", "card"), ("slack:C1", "standstill")}
    told(incident, kind=outbox.ASKED_AGAIN)
    assert _channels() == {
        *{("slack:C1", "card"), ("slack:C1", "standstill"), ("slack:C1", "asked_again")},
        *{("slack:C2", "card"), ("slack:C2", "asked_again")},
    }


@pytest.mark.usefixtures("two_channels")
def test_the_card_in_the_second_channel_says_how_it_ends() -> None:
    incident = an_incident()
    told(incident, kind=outbox.ASKED_AGAIN)
    sent = Notification.objects.filter(channel="slack:C2", sequence=0)
    sent.update(state="sent", message_ts="1.2", sent_revision=1)
    told(incident, kind="resolve", at=T0 + timedelta(hours=1))
    card = sent.get()
    assert (card.state, card.revision) == ("waiting", 2)
    assert ("slack:C2", "resolve") not in _channels()


def test_a_second_channel_without_slack_takes_nothing(settings: Settings) -> None:
    values = {**settings.KINTSUGI, "SLACK_BOT_TOKEN": None, "SLACK_SECOND_CHANNEL": "C2"}
    settings.KINTSUGI = values
    told(an_incident(), kind=outbox.ASKED_AGAIN)
    assert {name for name, _ in _channels()} == {"console"}
