"""Every way that a call to Slack can end is a value; the same contract holds for the log."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.faults import Severity
from fixtures.slack_page.workspace import Fault
from fixtures.slack_server import CHANNEL, TOKEN, SlackServer
from incidents.notify.choice import Either
from incidents.notify.console import ConsoleNotifier, format_line
from incidents.notify.notifier import (
    Card,
    ChannelUnreachable,
    Delivered,
    Gone,
    Message,
    MessageKey,
    NotFound,
    Notifier,
    OutcomeUnknown,
    RateLimited,
    Reply,
    SendRefused,
)
from incidents.notify.slack import errors
from incidents.notify.slack.client import SlackNotifier
from incidents.vocabulary.lifecycle import State
from tests.incidents.builders import T0
from tests.incidents.clocks import Clock

CARD = Card(
    42, "GPU has fallen off the bus", Severity.CRITICAL, State.OPEN, "gn042 GPU 4", "rack r07", "gpu", ("platform",),
    T0, T0, "Watching.", "Acknowledge it.", "http://console.example/42",
)  # fmt: skip
REPLY = Reply(42, "step_done", "Drained gn042.", "kintsugi", T0)


def _message(
    channel: str = f"slack:{CHANNEL}", *, thread_ts: str = "", sequence: int = 0
) -> Message:
    content = REPLY if thread_ts else CARD
    return Message(
        channel, MessageKey(42, sequence, "2025-01-15T03:00:00+00:00"), content, thread_ts
    )


@pytest.fixture(params=["slack", "console", "either"])
def served(request: pytest.FixtureRequest, notifier: SlackNotifier) -> tuple[Notifier, str]:
    """Every notifier with a channel that it serves."""
    found: dict[str, tuple[Notifier, str]] = {
        "slack": (notifier, f"slack:{CHANNEL}"),
        "console": (ConsoleNotifier(), "console"),
        "either": (Either(notifier, ConsoleNotifier()), "console"),
    }
    return found[request.param]


def test_a_card_a_reply_and_an_update_are_delivered(served: tuple[Notifier, str]) -> None:
    carrier, channel = served
    assert carrier.serves(channel)
    assert not carrier.serves("pigeon")
    assert carrier.get_pace(channel) >= timedelta(0)
    card = carrier.post(_message(channel))
    assert isinstance(card, Delivered)
    reply = carrier.post(_message(channel, thread_ts=card.ts, sequence=7))
    assert isinstance(reply, Delivered)
    assert reply.ts != card.ts
    again = carrier.update(_message(channel), card.ts)
    assert isinstance(again, Delivered)
    assert again.ts == card.ts


def test_what_was_never_posted_is_not_found(served: tuple[Notifier, str]) -> None:
    carrier, channel = served
    assert carrier.find(_message(channel), T0) == NotFound()


def test_a_posted_message_is_found_by_its_key_alone(
    notifier: SlackNotifier, slack: SlackServer
) -> None:
    card = notifier.post(_message())
    assert isinstance(card, Delivered)
    reply = notifier.post(_message(thread_ts=card.ts, sequence=7))
    assert notifier.find(_message(), T0) == card
    assert notifier.find(_message(thread_ts=card.ts, sequence=7), T0) == reply
    assert notifier.find(_message(sequence=8), T0) == NotFound()


def test_a_message_of_an_earlier_database_is_not_taken_for_ours(notifier: SlackNotifier) -> None:
    notifier.post(_message())
    other = Message(f"slack:{CHANNEL}", MessageKey(42, 0, "2024-12-01T00:00:00+00:00"), CARD)
    assert notifier.find(other, T0) == NotFound()


def test_a_message_is_found_on_the_third_page(notifier: SlackNotifier, slack: SlackServer) -> None:
    card = notifier.post(_message())
    for _ in range(450):
        slack.workspace.say(CHANNEL, "anything new?")
    assert notifier.find(_message(), T0) == card
    assert [method for _, method, _ in slack.workspace.calls].count("conversations.history") == 3


def test_the_permalink_is_the_workspaces_own(notifier: SlackNotifier, slack: SlackServer) -> None:
    card = notifier.post(_message())
    assert isinstance(card, Delivered)
    assert card.permalink == f"{slack.url}archives/{CHANNEL}/p{card.ts.replace('.', '')}"


def test_a_rate_limit_names_its_time(notifier: SlackNotifier, slack: SlackServer) -> None:
    slack.workspace.expect("chat.postMessage", Fault.RATE_LIMIT)
    assert notifier.post(_message()) == RateLimited(timedelta(seconds=30))


@pytest.mark.parametrize(
    "fault", [Fault.DROP_RESPONSE, Fault.HANG, Fault.SERVER_ERROR, Fault.FATAL_ERROR]
)
def test_an_answer_that_says_nothing_certain_leaves_the_outcome_unknown(
    notifier: SlackNotifier, slack: SlackServer, fault: Fault
) -> None:
    slack.workspace.expect("chat.postMessage", fault)
    assert isinstance(notifier.post(_message()), OutcomeUnknown)


def test_no_connection_is_certainly_not_sent() -> None:
    assert isinstance(
        SlackNotifier(token=TOKEN, api_url="http://127.0.0.1:1/api").post(_message()),
        ChannelUnreachable,
    )


@pytest.mark.parametrize("word", sorted(errors.CHANNEL_REFUSALS))
def test_every_refusal_of_a_channel_says_what_a_person_can_do(word: str) -> None:
    sentence = errors.get_advice(word)
    assert word in sentence
    assert len(sentence) > 40


def test_an_unknown_channel_is_refused_for_all_messages(notifier: SlackNotifier) -> None:
    answer = notifier.post(_message("slack:C0NOWHERE"))
    assert isinstance(answer, SendRefused)
    assert answer.blocks_channel
    assert "SLACK_CHANNEL" in answer.reason


def test_a_word_slack_has_just_invented_holds_back_that_message_alone(
    notifier: SlackNotifier, slack: SlackServer
) -> None:
    slack.workspace.refuse_next("chat.postMessage", "brand_new_word")
    answer = notifier.post(_message())
    assert isinstance(answer, SendRefused)
    assert not answer.blocks_channel
    assert "brand_new_word" in answer.reason


def test_the_words_go_out_alone_when_slack_refuses_the_blocks(
    notifier: SlackNotifier, slack: SlackServer
) -> None:
    slack.workspace.refuse_next("chat.postMessage", "invalid_blocks")
    assert isinstance(notifier.post(_message()), Delivered)
    [posted] = slack.workspace.posted(CHANNEL)
    assert posted.blocks == []
    assert posted.text.startswith("CRITICAL: GPU has fallen off the bus")


def test_an_update_of_a_message_that_is_no_longer_ours_says_so(
    notifier: SlackNotifier, slack: SlackServer
) -> None:
    persons = slack.workspace.say(CHANNEL, "hello")
    assert isinstance(notifier.update(_message(), persons), Gone)
    assert isinstance(notifier.update(_message(), "1.000001"), Gone)


def test_a_reply_that_asks_a_person_is_shown_in_the_channel_too(
    notifier: SlackNotifier, slack: SlackServer
) -> None:
    card = notifier.post(_message())
    assert isinstance(card, Delivered)
    loud = Reply(42, "repair_failed", "Verification failed.", "kintsugi", T0, is_loud=True)
    notifier.post(Message(f"slack:{CHANNEL}", MessageKey(42, 9, "x"), loud, card.ts))
    assert [posted.is_broadcast for posted in slack.workspace.posted(CHANNEL)] == [False, True]


def test_the_log_says_once_that_there_is_no_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = ConsoleNotifier()
    for _ in range(3):
        log.post(_message("console"))
    assert caplog.text.count("No Slack token") == 1
    assert caplog.text.count("Incident #42 CRITICAL open: GPU has fallen off the bus") == 3


def test_the_logs_line_holds_all_that_a_person_needs() -> None:
    assert format_line(CARD) == (
        "Incident #42 CRITICAL open: GPU has fallen off the bus, gn042 GPU 4 (rack r07), since 2025-01-15 03:00:00 UTC."
        " Watching. Acknowledge it. http://console.example/42"
    )


def test_slack_is_not_asked_again_before_its_time_has_come(
    notifier: SlackNotifier, slack: SlackServer, clock: Clock
) -> None:
    slack.workspace.expect("chat.postMessage", Fault.RATE_LIMIT)
    notifier.post(_message())
    clock.turn(timedelta(seconds=10))
    notifier.post(_message())
    assert len(slack.workspace.violations) == 1, (
        "the strict server notices what could disable an app"
    )
