"""The notifier for a site without a Slack token: messages go to the log, and it says so once."""

from __future__ import annotations

import itertools
import logging
from datetime import UTC, datetime, timedelta

from incidents.notify.notifier import (
    Content,
    Delivered,
    Found,
    Message,
    NotFound,
    NoticeCard,
    Posted,
    Reply,
)
from incidents.state.outbox import CONSOLE

_log = logging.getLogger("kintsugi.messages")

LOG_ONLY = (
    "No Slack token: incident messages go to this log. Set SLACK_BOT_TOKEN and SLACK_CHANNEL to"
    " have them in Slack (docs/slack.md)."
)
NO_CHANNEL = "SLACK_BOT_TOKEN is set but SLACK_CHANNEL is not: incident messages go to this log."


class ConsoleNotifier:
    """Logs each message as one line. What it logged counts as sent."""

    def __init__(self, notice: str = LOG_ONLY) -> None:
        self._notice = notice
        self._has_said_so = False
        self._ids = itertools.count(1)

    def serves(self, channel: str) -> bool:
        return channel == CONSOLE

    def get_pace(self, channel: str) -> timedelta:
        return timedelta(0)

    def post(self, message: Message) -> Posted:
        self._warn_once()
        _log.info("%s", format_line(message.content))
        return Delivered(ts=f"{message.key.incident}.{message.key.sequence}.{next(self._ids)}")

    def update(self, message: Message, ts: str) -> Posted:
        self._warn_once()
        _log.info("%s", format_line(message.content))
        return Delivered(ts=ts)

    def find(self, message: Message, attempted_at: datetime) -> Found:
        """A log cannot be asked; a line twice is better than none."""
        return NotFound()

    def _warn_once(self) -> None:
        if not self._has_said_so:
            self._has_said_so = True
            _log.warning(self._notice)


def format_line(content: Content) -> str:
    """One line for a log."""
    if isinstance(content, Reply):
        return f"Incident #{content.incident}: {content.text}"
    if isinstance(content, NoticeCard):
        parts = (f"{content.title}:", content.text, content.now, content.asked, content.url)
        return " ".join(parts)
    since = content.onset_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    state = str(content.state).replace("_", " ")
    what = f"{str(content.severity).upper()} {state}: {content.title}"
    where = f"{content.resource} ({content.where})"
    sentences = (content.now, content.asked, content.advice, content.advice_url, content.url)
    then = " ".join(sentence for sentence in sentences if sentence)
    return f"Incident #{content.incident} {what}, {where}, since {since}. {then}"
