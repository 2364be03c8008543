"""Which notifier this process uses, from the settings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings

from incidents.notify.console import LOG_ONLY, NO_CHANNEL, ConsoleNotifier
from incidents.notify.notifier import Ask, Found, Message, Notifier, Posted
from incidents.notify.slack.client import SlackNotifier


class Either:
    """Several notifiers as one: each channel goes to the first that serves it."""

    def __init__(self, *members: Notifier) -> None:
        self._members = members

    def serves(self, channel: str) -> bool:
        return any(member.serves(channel) for member in self._members)

    def get_pace(self, channel: str) -> timedelta:
        return self._get_member(channel).get_pace(channel)

    def post(self, message: Message) -> Posted:
        return self._get_member(message.channel).post(message)

    def update(self, message: Message, ts: str) -> Posted:
        return self._get_member(message.channel).update(message, ts)

    def find(self, message: Message, attempted_at: datetime) -> Found:
        return self._get_member(message.channel).find(message, attempted_at)

    def _get_member(self, channel: str) -> Notifier:
        """Raises LookupError for a channel that `serves` denies."""
        for member in self._members:
            if member.serves(channel):
                return member
        raise LookupError(f"no notifier serves {channel}")


def choose(asks: Callable[[Message], Ask | None] = lambda _: None) -> Notifier:
    """Slack when SLACK_BOT_TOKEN and SLACK_CHANNEL are set, the log otherwise. One per process.

    `asks`: what people may answer with a click, where clicks are taken.

    What was owed to the log before Slack was set up still goes there.
    """
    values = settings.KINTSUGI
    if values["SLACK_BOT_TOKEN"] and values["SLACK_CHANNEL"]:
        token, api_url = values["SLACK_BOT_TOKEN"], values["SLACK_API_URL"]
        return Either(SlackNotifier(token=token, api_url=api_url, asks=asks), ConsoleNotifier())
    return ConsoleNotifier(NO_CHANNEL if values["SLACK_BOT_TOKEN"] else LOG_ONLY)
