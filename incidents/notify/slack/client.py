"""Carries cards and replies to Slack by its Web API. One call, one answer: it never waits, repeats
or decides when.

slack-sdk's own retry handlers stay off: they sleep inside a worker.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from http.client import HTTPException
from typing import Any
from urllib.error import URLError

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.web import SlackResponse

from detectors.transports import error_text
from incidents.notify.notifier import (
    Ask,
    Card,
    ChannelUnreachable,
    Delivered,
    Failure,
    Found,
    Gone,
    Message,
    NotFound,
    NoticeCard,
    OutcomeUnknown,
    Posted,
    RateLimited,
    Reply,
    SendRefused,
)
from incidents.notify.slack import blocks, errors

CHANNEL_PREFIX = "slack:"
EVENT_TYPE = "kintsugi_notification"
# "Slack accepts about one message per second per channel":
# https://docs.slack.dev/apis/web-api/rate-limits
PACE = timedelta(seconds=1)
TIMEOUT = timedelta(seconds=10)
# What a 429 without Retry-After is taken for; Slack's windows are a minute long.
RETRY_AFTER = timedelta(seconds=60)
# Slack's clock, which stamps messages, and ours may differ by this much; it also covers the longest
# lease.
CLOCK_SKEW = timedelta(minutes=10)
_PAGE = 200  # the most that conversations.history recommends
_PAGES = 10
_NEVER_SENT = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH)


class SlackNotifier:
    """Serves channels named `slack:<channel id>`. `asks`: what a person may answer to a message
    with a click."""

    def __init__(
        self,
        *,
        token: str,
        api_url: str,
        timeout: timedelta = TIMEOUT,
        asks: Callable[[Message], Ask | None] = lambda _: None,
    ) -> None:
        self._asks = asks
        base_url = api_url.rstrip("/") + "/"
        seconds = max(1, round(timeout.total_seconds()))
        self._client = WebClient(token=token, base_url=base_url, timeout=seconds, retry_handlers=[])
        self._workspace_url = ""

    def serves(self, channel: str) -> bool:
        return channel.startswith(CHANNEL_PREFIX)

    def get_pace(self, channel: str) -> timedelta:
        return PACE

    def post(self, message: Message) -> Posted:
        message = self._add_buttons(message)
        return self._send_call(
            message, lambda body: self._client.chat_postMessage(**body), _post_body(message)
        )

    def update(self, message: Message, ts: str) -> Posted:
        message = self._add_buttons(message)
        return self._send_call(
            message,
            lambda body: self._client.chat_update(**body),
            {**_make_body(message), "ts": ts},
        )

    def _add_buttons(self, message: Message) -> Message:
        """What asks a person is shown in the channel as well."""
        content = message.content
        if isinstance(content, Card):
            return message
        ask = self._asks(message)
        if ask is None:
            return message
        if isinstance(content, NoticeCard):
            return replace(message, content=replace(content, ask=ask))
        return replace(message, content=replace(content, ask=ask, is_loud=True))

    def find(self, message: Message, attempted_at: datetime) -> Found:
        """Looks for our metadata among what was posted around `attempted_at`, newest first."""
        cursor = ""
        for _ in range(_PAGES):
            page = _call(lambda cursor=cursor: self._fetch_page(message, attempted_at, cursor))  # type: ignore[misc]
            if not isinstance(page, SlackResponse):
                return page
            messages: list[dict[str, Any]] = page.get("messages") or []
            for posted in messages:
                if _is(posted, message):
                    return Delivered(
                        ts=posted["ts"], permalink=self._get_permalink(message, posted["ts"])
                    )
            cursor = (page.get("response_metadata") or {}).get("next_cursor") or ""
            if not cursor:
                break
        return NotFound()

    def _fetch_page(self, message: Message, attempted_at: datetime, cursor: str) -> SlackResponse:
        oldest = (attempted_at - CLOCK_SKEW).timestamp()
        latest = (attempted_at + CLOCK_SKEW).timestamp()
        channel = _get_channel_id(message)
        window: dict[str, Any] = {
            "channel": channel,
            "oldest": f"{oldest:.6f}",
            "latest": f"{latest:.6f}",
            "include_all_metadata": True,
            "limit": _PAGE,
        }
        window["cursor"] = cursor or None
        if message.thread_ts:
            return self._client.conversations_replies(ts=message.thread_ts, **window)
        return self._client.conversations_history(**window)

    def _send_call(
        self,
        message: Message,
        call: Callable[[dict[str, Any]], SlackResponse],
        body: dict[str, Any],
    ) -> Posted:
        answer = _call(lambda: call(body))
        if isinstance(answer, SendRefused) and answer.is_form:
            # People must be told even if our blocks are wrong: the words alone, in the same place.
            answer = _call(lambda: call({**body, "blocks": []}))
        if not isinstance(answer, SlackResponse):
            return answer
        ts = str(answer["ts"])
        return Delivered(ts=ts, permalink=self._get_permalink(message, ts))

    def _get_permalink(self, message: Message, ts: str) -> str:
        """Where people read the card; empty when Slack does not say which workspace this is."""
        if not isinstance(message.content, Card):
            return ""
        if not self._workspace_url:
            answer = _call(self._client.auth_test)
            if isinstance(answer, SlackResponse):
                self._workspace_url = str(answer.get("url") or "")
        if not self._workspace_url:
            return ""
        workspace = self._workspace_url.rstrip("/")
        name = ts.replace(".", "")
        return f"{workspace}/archives/{_get_channel_id(message)}/p{name}"


def _get_channel_id(message: Message) -> str:
    return message.channel.removeprefix(CHANNEL_PREFIX)


def _make_body(message: Message) -> dict[str, Any]:
    key = message.key
    payload = {"incident": key.incident, "sequence": key.sequence, "written": key.written}
    return {
        "channel": _get_channel_id(message),
        "text": blocks.format_text(message.content),
        "blocks": blocks.blocks(message.content),
        "metadata": {"event_type": EVENT_TYPE, "event_payload": payload},
    }


def _post_body(message: Message) -> dict[str, Any]:
    is_loud = isinstance(message.content, Reply) and message.content.is_loud
    is_broadcast = bool(message.thread_ts) and is_loud
    return {
        **_make_body(message),
        "thread_ts": message.thread_ts or None,
        "reply_broadcast": True if is_broadcast else None,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _is(posted: dict[str, Any], message: Message) -> bool:
    metadata = posted.get("metadata") or {}
    key = message.key
    wanted = {"incident": key.incident, "sequence": key.sequence, "written": key.written}
    return metadata.get("event_type") == EVENT_TYPE and metadata.get("event_payload") == wanted


def _call(call: Callable[[], SlackResponse]) -> SlackResponse | Gone | Failure:
    """Every way that a call can end, as a value."""
    try:
        return call()
    except SlackApiError as error:
        return _parse_refusal(error.response)
    except URLError as error:
        return _make_connection_failure(error)
    except (OSError, HTTPException) as error:
        return _make_unanswered(error)


def _parse_refusal(response: Any) -> Gone | Failure:
    word = str(response.get("error") or "")
    if response.status_code == 429 or word in errors.RATE_LIMITS:
        return RateLimited(_retry_after(response.headers))
    if response.status_code >= 500 or word in errors.UNKNOWN_OUTCOME or " " in word:
        return OutcomeUnknown(
            f"Slack answered with an error of its own ({response.status_code} {word[:80]})."
        )
    if word in errors.GONE:
        return Gone(f"The message is no longer there ({word}); the card is posted anew.")
    return SendRefused(
        errors.get_advice(word),
        blocks_channel=word in errors.CHANNEL_REFUSALS,
        is_form=word in errors.FORM_REFUSALS,
    )


def _retry_after(headers: Any) -> timedelta:
    value = str(headers.get("Retry-After") or headers.get("retry-after") or "")
    return timedelta(seconds=int(value)) if value.isdecimal() else RETRY_AFTER


def _make_connection_failure(error: URLError) -> Failure:
    reason = error.reason
    text = _format_reason(reason)
    if isinstance(reason, _NEVER_SENT) or (
        isinstance(reason, OSError) and reason.errno in _NO_ROUTE
    ):
        return ChannelUnreachable(
            f"Slack cannot be reached ({text}): check SLACK_API_URL and the network."
        )
    return _make_unanswered(reason)


def _make_unanswered(reason: BaseException | str) -> OutcomeUnknown:
    """A connection that was cut comes back at once; one that timed out kept its worker."""
    text = f"Slack did not answer ({_format_reason(reason)})."
    return OutcomeUnknown(text, is_silent=isinstance(reason, TimeoutError))


def _format_reason(given: BaseException | str) -> str:
    return error_text.format_reason(given) if isinstance(given, BaseException) else given
