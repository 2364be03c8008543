"""Sending: each message once, in order, at Slack's pace, whatever breaks on the way."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import Any

import pytest

from fixtures.slack_page.workspace import Fault, Posted
from fixtures.slack_server import CHANNEL, SlackServer
from incidents.models import Incident, Notification, NotificationChannel
from incidents.notify import services
from incidents.notify.notifier import Message, RateLimited
from incidents.notify.notifier import Posted as Answer
from incidents.notify.services import Result
from incidents.notify.slack.client import SlackNotifier
from incidents.vocabulary.lifecycle import State
from tests.incidents.builders import T0, an_incident, told
from tests.incidents.clocks import Clock, drain

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("slack_settings")]


class _Killed(BaseException):
    """The process is gone: nothing after this line runs."""


def _card(incident: Incident) -> Notification:
    return Notification.objects.get(incident=incident, sequence=0)


def _cards(slack: SlackServer) -> list[Posted]:
    return slack.workspace.posted(CHANNEL)


def _sequences(slack: SlackServer) -> list[Any]:
    """The sequence numbers of everything that stands in the channel's threads and top level."""
    space = slack.workspace
    messages = sorted(
        space.channels[CHANNEL].messages.values(), key=lambda message: float(message.ts)
    )
    return [
        message.metadata["event_payload"]["sequence"] for message in messages if message.metadata
    ]


def test_one_message_and_one_thread_stand_there_when_an_incident_has_run_its_course(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    incident = an_incident()
    told(incident, kind="opened")
    drain(notifier, clock)
    for text in ("Drained gn042.", "Rebooted gn042.", "Verified gn042."):
        told(incident, text=text, at=clock.now)
    incident.state = State.RESOLVED
    incident.save()
    told(incident, kind="resolved", text="Resolved after 30 minutes of quiet.", at=clock.now)
    drain(notifier, clock)
    [card] = _cards(slack)
    assert "RESOLVED" in card.blocks[0]["text"]["text"]
    assert [reply.text for reply in slack.workspace.thread(CHANNEL, card.ts)] == [
        "Drained gn042.",
        "Rebooted gn042.",
        "Verified gn042.",
        "Resolved after 30 minutes of quiet.",
    ]
    assert slack.workspace.violations == []


def test_a_reply_waits_when_its_card_is_not_posted(
    notifier: SlackNotifier, slack: SlackServer, clock: Clock
) -> None:
    told(an_incident())
    reply = Notification.objects.get(sequence__gt=0)
    assert services.send(reply.pk, notifier, now=clock.now).result is Result.NOT_DUE
    assert slack.workspace.calls == []


def test_send_names_the_next_row_and_when_the_channel_takes_it(
    notifier: SlackNotifier, clock: Clock
) -> None:
    told(an_incident())
    card, reply = Notification.objects.order_by("sequence")
    outcome = services.send(card.pk, notifier, now=clock.now)
    assert (outcome.result, outcome.next_id, outcome.next_at) == (
        Result.SENT,
        reply.pk,
        T0 + timedelta(seconds=1),
    )


def test_the_channel_takes_one_message_a_second_when_a_hundred_incidents_open(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    incidents = [an_incident() for _ in range(100)]
    for incident in incidents:
        told(incident, kind="opened")
    for incident in incidents[:20]:
        told(incident)
    calls = drain(notifier, clock)
    posts = [
        (at, status) for at, method, status in slack.workspace.calls if method == "chat.postMessage"
    ]
    assert len(posts) == calls == 120
    assert {status for _, status in posts} == {200}
    assert posts[-1][0] - posts[0][0] >= 119
    assert _sequences(slack)[:100] == [0] * 100, "cards come first"
    assert slack.workspace.violations == []


def test_only_the_newest_state_is_sent_when_a_card_changed_many_times(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    incident = an_incident()
    told(incident, kind="opened")
    drain(notifier, clock)
    for state in (State.ACKNOWLEDGED, State.REPAIRING, State.MONITORING):
        incident.state = state
        incident.save()
        told(incident, kind="repeated")
    drain(notifier, clock)
    [card] = _cards(slack)
    assert card.edits == 1
    assert "monitoring" in str(card.blocks)


def test_the_card_is_sent_again_when_its_incident_changes_while_it_is_on_its_way(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    incident = an_incident()
    told(incident, kind="opened")

    class ChangesUnderway(SlackNotifier):
        def post(self, message: Message) -> Answer:
            Incident.objects.filter(pk=incident.pk).update(state=State.ACKNOWLEDGED)
            told(incident, kind="repeated")
            return super().post(message)

    racing = ChangesUnderway(token=slack.workspace.token, api_url=slack.api_url)
    services.send(_card(incident).pk, racing, now=clock.now)
    assert _card(incident).state == "waiting"
    clock.turn(timedelta(seconds=1))
    drain(notifier, clock)
    [card] = _cards(slack)
    assert "acknowledged" in str(card.blocks)


def test_nothing_is_sent_before_retry_after_when_slack_limits_the_rate(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    told(an_incident())
    told(an_incident())
    slack.workspace.expect("chat.postMessage", Fault.RATE_LIMIT)
    first = services.list_due(clock.now)[0]
    outcome = services.send(first, notifier, now=clock.now)
    assert (outcome.result, outcome.next_id) == (Result.POSTPONED, None), (
        "too far off for a ring: the sweep finds it"
    )
    assert services.list_due(T0 + timedelta(seconds=29)) == [], "the whole channel is held back"
    other = Notification.objects.exclude(pk=first).filter(sequence=0).get()
    assert services.send(other.pk, notifier, now=T0 + timedelta(seconds=29)).result is Result.HELD
    clock.turn(timedelta(seconds=30))
    drain(notifier, clock)
    assert len(_sequences(slack)) == 4
    assert slack.workspace.violations == []


def test_one_worker_waits_for_a_channel_whoever_else_is_rung_meanwhile(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    told(an_incident())
    told(an_incident())
    first, second = Notification.objects.filter(sequence=0).order_by("pk")
    meanwhile: list[Result] = []

    class AnswersLate(SlackNotifier):
        def post(self, message: Message) -> Answer:
            clock.turn(timedelta(seconds=9))
            meanwhile.append(services.send(second.pk, notifier, now=clock.now).result)
            return super().post(message)

    late = AnswersLate(token=slack.workspace.token, api_url=slack.api_url)
    outcome = services.send(first.pk, late, now=clock.now)
    assert meanwhile == [Result.HELD]
    assert (outcome.result, outcome.next_id) == (Result.SENT, second.pk)
    assert services.send(second.pk, notifier, now=clock.now).result is Result.SENT


def test_the_channel_opens_by_itself_when_its_worker_was_killed(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    told(an_incident())
    told(an_incident())
    first, second = Notification.objects.filter(sequence=0).order_by("pk")

    class Dies(SlackNotifier):
        def post(self, message: Message) -> Answer:
            raise _Killed

    dying = Dies(token=slack.workspace.token, api_url=slack.api_url)
    with pytest.raises(_Killed):
        services.send(first.pk, dying, now=clock.now)
    assert services.list_due(clock.now) == []
    assert services.list_due(clock.now + services.SETTLE) == [second.pk]


def test_the_channel_rests_and_says_so_when_slack_takes_a_request_and_does_not_answer(
    notifier: SlackNotifier, clock: Clock
) -> None:
    told(an_incident())
    told(an_incident())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/api/"
        asks = SlackNotifier(token="xoxb-1", api_url=address, timeout=timedelta(seconds=1))
        outcome = services.send(services.list_due(clock.now)[0], asks, now=clock.now)
    assert outcome.result is Result.UNKNOWN
    assert "Slack did not answer" in services.list_troubles(clock.now)[0]
    assert services.list_due(clock.now + services.SETTLE - timedelta(seconds=1)) == []
    assert len(services.list_due(clock.now + services.SETTLE)) == 1


def test_other_messages_go_out_when_a_connection_was_cut(clock: Clock) -> None:
    told(an_incident())
    told(an_incident())
    with socket.create_server(("127.0.0.1", 0)) as cuts:
        reader = threading.Thread(target=lambda: cuts.accept()[0].close())
        reader.start()
        address = f"http://127.0.0.1:{cuts.getsockname()[1]}/api/"
        asks = SlackNotifier(token="xoxb-1", api_url=address)
        outcome = services.send(services.list_due(clock.now)[0], asks, now=clock.now)
        reader.join()
    assert outcome.result is Result.UNKNOWN
    assert len(services.list_due(clock.now + timedelta(seconds=1))) == 1


def test_a_short_limit_of_the_rate_is_kept_to(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    told(an_incident())

    class Limits(SlackNotifier):
        def post(self, message: Message) -> Answer:
            return RateLimited(timedelta(seconds=3))

    limits = Limits(token=slack.workspace.token, api_url=slack.api_url)
    services.send(services.list_due(clock.now)[0], limits, now=clock.now)
    assert services.list_due(clock.now + timedelta(seconds=2)) == []
    assert len(services.list_due(clock.now + timedelta(seconds=3))) == 1


@pytest.mark.parametrize(
    "fault", [Fault.DROP_RESPONSE, Fault.SERVER_ERROR_AFTER, Fault.FATAL_ERROR, Fault.HANG]
)
@pytest.mark.parametrize("sequence", ["card", "reply"])
def test_exactly_one_message_stands_there_when_the_answer_to_an_accepted_post_is_lost(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock, fault: Fault, sequence: str
) -> None:
    incident = an_incident()
    entry = told(incident)
    if sequence == "reply":
        services.send(_card(incident).pk, notifier, now=clock.now)
        clock.turn(timedelta(seconds=1))
    slack.workspace.expect("chat.postMessage", fault)
    outcome = services.send(services.list_due(clock.now)[0], notifier, now=clock.now)
    assert outcome.result is Result.UNKNOWN
    drain(notifier, clock)
    assert _sequences(slack) == [0, entry.pk]


def test_a_message_is_posted_again_when_the_look_up_shows_it_was_never_accepted(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    entry = told(an_incident())
    slack.workspace.expect("chat.postMessage", Fault.SERVER_ERROR)
    drain(notifier, clock)
    assert _sequences(slack) == [0, entry.pk]
    assert "conversations.history" in [method for _, method, _ in slack.workspace.calls]


def test_a_card_found_again_is_brought_up_to_date_when_its_incident_changed_meanwhile(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    incident = an_incident()
    told(incident, kind="opened")
    slack.workspace.expect("chat.postMessage", Fault.DROP_RESPONSE)
    services.send(_card(incident).pk, notifier, now=clock.now)
    Incident.objects.update(state=State.ACKNOWLEDGED)
    told(incident, kind="repeated")
    drain(notifier, clock)
    [card] = _cards(slack)
    assert "acknowledged" in str(card.blocks)


@pytest.mark.parametrize("moment", ["before the post", "after the post"])
def test_exactly_one_message_stands_there_when_the_worker_is_killed_around_the_post(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock, moment: str
) -> None:
    entry = told(an_incident())

    class Dies(SlackNotifier):
        def post(self, message: Message) -> Answer:
            if moment == "after the post":
                super().post(message)
            raise _Killed

    dying = Dies(token=slack.workspace.token, api_url=slack.api_url)
    with pytest.raises(_Killed):
        services.send(services.list_due(clock.now)[0], dying, now=clock.now)
    assert services.list_due(clock.now + services.LEASE - timedelta(seconds=1)) == [], (
        "the lease still runs"
    )
    drain(notifier, clock)
    assert _sequences(slack) == [0, entry.pk]


def test_another_worker_is_turned_away_while_one_is_sending(
    notifier: SlackNotifier, clock: Clock
) -> None:
    told(an_incident(), kind="opened")
    card = Notification.objects.get()
    stale = Notification.objects.get()
    assert services._claim(card, clock.now, clock.now)
    assert not services._claim(stale, clock.now, clock.now)


def test_a_late_worker_records_nothing_when_another_has_sent_meanwhile(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    told(an_incident(), kind="opened")

    class SlowerThanItsLease(SlackNotifier):
        def post(self, message: Message) -> Answer:
            answer = super().post(message)
            clock.turn(services.LEASE)
            services.send(services.list_due(clock.now)[0], notifier, now=clock.now)
            return answer

    slow = SlowerThanItsLease(token=slack.workspace.token, api_url=slack.api_url)
    services.send(services.list_due(clock.now)[0], slow, now=clock.now)
    drain(notifier, clock)
    assert _sequences(slack) == [0]
    assert Notification.objects.get().state == "sent"


@pytest.mark.parametrize(
    ("break_it", "mend_it", "word"),
    [
        (lambda s: s.revoked.add(s.token), lambda s: s.revoked.clear(), "reinstall"),
        (
            lambda s: setattr(s, "token", "other"),
            lambda s: setattr(s, "token", "xoxb-local-simulated"),
            "SLACK_BOT_TOKEN",
        ),
        (
            lambda s: setattr(s.channels[CHANNEL], "has_bot", False),
            lambda s: setattr(s.channels[CHANNEL], "has_bot", True),
            "/invite",
        ),
        (
            lambda s: setattr(s.channels[CHANNEL], "is_archived", True),
            lambda s: setattr(s.channels[CHANNEL], "is_archived", False),
            "unarchive",
        ),
        (
            lambda s: s.scopes.discard("chat:write"),
            lambda s: s.scopes.add("chat:write"),
            "chat:write",
        ),
    ],
    ids=["revoked", "unknown token", "not in channel", "archived", "missing scope"],
)
def test_everything_goes_out_when_what_slack_refused_is_mended(
    slack: SlackServer,
    notifier: SlackNotifier,
    clock: Clock,
    break_it: Any,
    mend_it: Any,
    word: str,
) -> None:
    for _ in range(3):
        told(an_incident())
    break_it(slack.workspace)
    for _ in range(180):
        for notification_id in services.list_due(clock.now):
            services.send(notification_id, notifier, now=clock.now)
        clock.turn(timedelta(seconds=1))
    assert len(slack.workspace.calls) <= 4, "a refusal is tried again slowly"
    assert word in Notification.objects.filter(state="failed").first().error  # type: ignore[union-attr]
    assert word in services.list_troubles(clock.now)[0]
    mend_it(slack.workspace)
    drain(notifier, clock)
    assert len(_sequences(slack)) == 6
    assert services.list_troubles(clock.now) == []


def test_other_messages_go_out_when_one_is_refused_for_itself(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    class RefusesOne(SlackNotifier):
        def post(self, message: Message) -> Answer:
            if message.key.incident == first.pk:
                return services.SendRefused("too strange", blocks_channel=False)
            return super().post(message)

    first, second = an_incident(), an_incident()
    told(first)
    entry = told(second)
    picky = RefusesOne(token=slack.workspace.token, api_url=slack.api_url)
    for _ in range(10):
        for notification_id in services.list_due(clock.now):
            services.send(notification_id, picky, now=clock.now)
        clock.turn(timedelta(seconds=1))
    assert _sequences(slack) == [0, entry.pk]
    assert _card(first).error == "too strange"
    drain(notifier, clock)
    clock.turn(services.RETRY_REFUSED_MESSAGE)
    drain(notifier, clock)
    assert len(_sequences(slack)) == 4


def test_a_row_that_cannot_be_looked_up_waits_alone_and_is_never_repeated_blindly(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    told(an_incident(), kind="opened")
    slack.workspace.scopes.discard("channels:history")
    slack.workspace.expect("chat.postMessage", Fault.DROP_RESPONSE)
    services.send(services.list_due(clock.now)[0], notifier, now=clock.now)
    told(an_incident(), kind="opened", at=clock.now)
    for _ in range(90):
        for notification_id in services.list_due(clock.now):
            services.send(notification_id, notifier, now=clock.now)
        clock.turn(timedelta(seconds=1))
    assert len(_cards(slack)) == 2, "the lost one and the other"
    assert "channels:history" in Notification.objects.get(state="unknown").error
    slack.workspace.scopes.add("channels:history")
    drain(notifier, clock)
    assert len(_cards(slack)) == 2
    assert set(Notification.objects.values_list("state", flat=True)) == {"sent"}


def test_the_card_is_posted_anew_when_a_person_deleted_it(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    incident = an_incident()
    told(incident, kind="opened")
    drain(notifier, clock)
    slack.workspace.delete(CHANNEL, _card(incident).message_ts)
    told(incident, text="Drained gn042.", at=clock.now)
    drain(notifier, clock)
    [card] = _cards(slack)
    assert card.ts == _card(incident).message_ts
    assert [reply.text for reply in slack.workspace.thread(CHANNEL, card.ts)] == ["Drained gn042."]


def test_nothing_is_lost_when_slack_cannot_be_reached(
    slack: SlackServer, notifier: SlackNotifier, clock: Clock
) -> None:
    told(an_incident())
    nowhere = SlackNotifier(token="xoxb-1", api_url="http://127.0.0.1:1/api/")
    outcome = services.send(services.list_due(clock.now)[0], nowhere, now=clock.now)
    assert outcome.result is Result.POSTPONED
    assert "cannot be reached" in NotificationChannel.objects.get().error
    drain(notifier, clock)
    assert len(_sequences(slack)) == 2


def test_rows_for_slack_wait_when_the_process_has_no_token(clock: Clock) -> None:
    from_console = pytest.importorskip("incidents.notify.console").ConsoleNotifier()
    told(an_incident())
    outcome = services.send(services.list_due(clock.now)[0], from_console, now=clock.now)
    assert outcome.result is Result.REFUSED
    assert "SLACK_BOT_TOKEN" in outcome.reason


def test_the_row_says_what_happened_when_rendering_fails(
    slack: SlackServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Breaks(SlackNotifier):
        def post(self, message: Message) -> Answer:
            raise KeyError("severity")

    told(an_incident(), kind="opened")
    outcome = services.send(
        services.list_due(clock.now)[0],
        Breaks(token="xoxb-1", api_url=slack.api_url),
        now=clock.now,
    )
    assert outcome.result is Result.UNKNOWN
    assert (
        Notification.objects.get().error
        == "Kintsugi met an error of its own, which its log describes."
    )
    assert "KeyError: 'severity'" in caplog.text


def test_the_token_stands_in_no_log_and_no_row(
    slack: SlackServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    told(an_incident())
    secret = "xoxb-1111-very-secret"
    for url in (slack.api_url, "http://127.0.0.1:1/api/"):
        services.send(
            services.list_due(clock.now)[0], SlackNotifier(token=secret, api_url=url), now=clock.now
        )
        clock.turn(timedelta(minutes=2))
    assert secret not in caplog.text
    assert not any(secret in row.error for row in Notification.objects.all())
