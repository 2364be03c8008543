"""Sends what the outbox owes: claims a row, looks where the outcome is unknown, sends once,
records.

Never waits: a channel that takes nothing now says when it will, and that time stands in its row. No
transaction is open while the network is asked. The time `now` is when the call began.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Value, When

from incidents.db import own_errors
from incidents.db.prepared import Given, Moment, Prepared
from incidents.models import Notification, NotificationChannel
from incidents.notify import story
from incidents.notify.notifier import (
    ChannelUnreachable,
    Delivered,
    Failure,
    Gone,
    Message,
    NotFound,
    Notifier,
    OutcomeUnknown,
    Posted,
    RateLimited,
    SendRefused,
)
from incidents.state.outbox import CARD_SEQUENCE

_log = logging.getLogger(__name__)
_State = Notification.SendState

# Longer than the slowest send (three pages of history and a post, 10 s each), shorter than a
# person's patience.
LEASE = timedelta(seconds=90)
# A request that timed out may still arrive: look no sooner than the client's own time limit after
# it.
SETTLE = timedelta(seconds=15)
LONGEST_BACKOFF = timedelta(minutes=5)
# A refusal is mended by a person; a look once a minute costs nothing and shows the mending at once.
RETRY_REFUSED_CHANNEL = timedelta(minutes=1)
RETRY_REFUSED_MESSAGE = timedelta(minutes=30)
# A ring that waits in the broker must be short against its visibility timeout.
LONGEST_RING = timedelta(seconds=10)


class Result(StrEnum):
    SENT = "sent"
    HELD = "held"
    POSTPONED = "postponed"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    NOT_DUE = "not_due"


@dataclass(frozen=True)
class SendOutcome:
    """What became of one call of `send`, why, and which notification to ring next and when (None:
    none is due)."""

    result: Result
    reason: str
    next_id: int | None = None
    next_at: datetime | None = None


def list_due(now: datetime) -> list[int]:
    """What to send now: of each channel the first, new cards before all; `send` names the next.

    Never all that wait: this is asked at every turn, and each of them would be rung again at each.
    """
    names = set(_WAITING.values(now=now))
    if not names:
        return []
    closed = set(_CLOSED.values(now=now))
    firsts = (_get_first(name, now) for name in sorted(names - closed))
    return [pk for pk in firsts if pk is not None]


def send(
    notification_id: int,
    notifier: Notifier,
    *,
    now: datetime,
    run_words: story.RunWords = story.say_nothing_of_runs,
) -> SendOutcome:
    """Sends one notification, at most once whatever dies on the way. `run_words`: what cards say of
    runs.

    1. take the channel; 2. claim the row; 3. look, if an earlier attempt may have been accepted;
    4. send; 5. give the channel back; 6. record, and close the channel that takes nothing.
    """
    row = Notification.objects.filter(pk=notification_id).first()
    if row is None:
        return SendOutcome(Result.NOT_DUE, "there is no such notification")
    if not _MAY_GO.rows(channel=row.channel, now=now, row=row.pk):
        return SendOutcome(
            Result.NOT_DUE, "it is sent, on its way, not due yet, or waits for its card"
        )
    open_at = _take_channel(row.channel, now)
    if open_at is not None:
        return SendOutcome(
            Result.HELD, f"channel {row.channel} takes the next message at {open_at.isoformat()}"
        )
    must_look = row.state in (_State.SENDING, _State.UNKNOWN)
    if not _claim(row, row.attempted_at if must_look else now, now):
        _give_channel(row.channel, notifier, now)
        return SendOutcome(Result.NOT_DUE, "another worker has it")
    row.refresh_from_db()
    message = partial(
        story.build_message, row, now=now, thread_ts=_get_thread_ts(row), run_words=run_words
    )
    began_s = time.monotonic()
    attempt = _deliver(row, message, notifier, must_look=must_look)
    took = timedelta(seconds=time.monotonic() - began_s)
    _give_channel(row.channel, notifier, now)
    result, reason = _record(row, attempt, now)
    next_id, next_at = _get_next(row.channel, now, took)
    return SendOutcome(result, reason, next_id, next_at)


def list_troubles(now: datetime) -> list[str]:
    """Sentences for people: which channels take no messages, since what, and what to do. Empty: all
    is well."""
    waiting = Notification.objects.filter(channel=OuterRef("name")).exclude(state=_State.SENT)
    rows = NotificationChannel.objects.exclude(error="").filter(Exists(waiting))
    return [f"Messages to {row.name} wait: {row.error}" for row in rows.order_by("name")]


def _is_due(now: Moment) -> Q:
    waits = Q(state__in=(_State.WAITING, _State.UNKNOWN, _State.FAILED), due_at__lte=now)
    return waits | Q(state=_State.SENDING, leased_until__lte=now)


def _get_candidates(channel: str | Given, now: Moment) -> QuerySet[Notification]:
    """What may be sent on the channel, in order: cards not posted yet, then by the time it became
    due.

    A reply waits for its card and for the replies before it; a refused reply holds nobody up.
    """
    siblings = Notification.objects.filter(incident=OuterRef("incident"), channel=channel)
    posted_card = siblings.filter(sequence=CARD_SEQUENCE).exclude(message_ts="")
    earlier = siblings.filter(
        sequence__gt=CARD_SEQUENCE,
        sequence__lt=OuterRef("sequence"),
        state__in=(_State.WAITING, _State.SENDING, _State.UNKNOWN),
    )
    may_go = Q(sequence=CARD_SEQUENCE) | (Exists(posted_card) & ~Exists(earlier))
    # What a window keeps from people waits; a card that they have is updated in place.
    may_go &= Q(incident__silence=None) | (Q(sequence=CARD_SEQUENCE) & ~Q(message_ts=""))
    is_later = Case(When(sequence=CARD_SEQUENCE, message_ts="", then=Value(0)), default=Value(1))
    due = Notification.objects.filter(_is_due(now), channel=channel)
    return due.filter(may_go).order_by(is_later, "due_at", "incident_id", "sequence")


_CLOSED = Prepared(
    lambda: NotificationChannel.objects.filter(open_at__gt=Given("now")).values_list("name")
)
_WAITING = Prepared(
    lambda: (
        Notification.objects.filter(_is_due(Given("now")))
        .order_by()
        .values_list("channel")
        .distinct()
    )
)
_FIRST = Prepared(lambda: _get_candidates(Given("channel"), Given("now")).values_list("pk")[:1])
_MAY_GO = Prepared(
    lambda: (
        _get_candidates(Given("channel"), Given("now")).filter(pk=Given("row")).values_list("pk")
    )
)


def _get_first(channel: str, now: datetime) -> int | None:
    return next(iter(_FIRST.values(channel=channel, now=now)), None)


def _take_channel(channel: str, now: datetime) -> datetime | None:
    """None: the channel is ours until it is given back, or for as long as an answer may take: one
    that does not answer holds one worker. Otherwise when it opens."""
    taken = {"open_at": now + SETTLE}
    rows = NotificationChannel.objects.filter(name=channel)
    if rows.filter(open_at__lte=now).update(**taken) == 1:
        return None
    NotificationChannel.objects.bulk_create(
        [NotificationChannel(name=channel, open_at=now)], ignore_conflicts=True
    )
    if rows.filter(open_at__lte=now).update(**taken) == 1:
        return None
    return rows.get().open_at


def _give_channel(channel: str, notifier: Notifier, now: datetime) -> None:
    """To whoever sends next, at the pace of the channel. One that was closed meanwhile, or that
    somebody else has taken since, stays so."""
    pace = notifier.get_pace(channel) if notifier.serves(channel) else timedelta(0)
    ours = NotificationChannel.objects.filter(name=channel, open_at=now + SETTLE)
    ours.update(open_at=now + pace)


def _claim(row: Notification, attempted_at: datetime | None, now: datetime) -> bool:
    """Compare-and-swap on what was read: state and attempts, which rise with each claim."""
    seen = Notification.objects.filter(pk=row.pk, state=row.state, attempts=row.attempts)
    claimed = seen.update(
        state=_State.SENDING,
        leased_until=now + LEASE,
        attempts=F("attempts") + 1,
        attempted_at=attempted_at or now,
    )
    return claimed == 1


@dataclass(frozen=True)
class _Attempt:
    """What the notifier answered. `is_unsure`: an earlier attempt may still stand in the
    channel."""

    answer: Posted
    is_unsure: bool = False
    was_found: bool = False


def _deliver(
    row: Notification, message: Callable[[], Message], notifier: Notifier, *, must_look: bool
) -> _Attempt:
    if not notifier.serves(row.channel):
        return _Attempt(_refuse_unserved(row.channel), is_unsure=must_look)
    try:
        return _ask(row, message(), notifier, must_look=must_look)
    except Exception as error:  # noqa: BLE001 - one notification: its row keeps what happened, the next is sent
        _log.exception("notification %s could not be sent", row.pk)
        return _Attempt(OutcomeUnknown(f"{own_errors.describe(error)}."), is_unsure=True)


def _ask(row: Notification, message: Message, notifier: Notifier, *, must_look: bool) -> _Attempt:
    if row.message_ts:
        return _Attempt(notifier.update(message, row.message_ts))
    if must_look:
        return _look_then_post(row, message, notifier)
    return _Attempt(notifier.post(message))


def _look_then_post(row: Notification, message: Message, notifier: Notifier) -> _Attempt:
    found = notifier.find(message, row.attempted_at or row.recorded_at)
    if isinstance(found, NotFound):
        return _Attempt(notifier.post(message))
    return _Attempt(found, is_unsure=True, was_found=isinstance(found, Delivered))


def _get_thread_ts(row: Notification) -> str:
    if row.sequence == CARD_SEQUENCE:
        return ""
    card = Notification.objects.get(
        incident=row.incident_id, channel=row.channel, sequence=CARD_SEQUENCE
    )
    return card.message_ts


def _refuse_unserved(channel: str) -> SendRefused:
    return SendRefused(
        f"Nothing here sends to {channel}: set SLACK_BOT_TOKEN and SLACK_CHANNEL and start again"
        " (docs/slack.md).",
        blocks_channel=True,
    )


def _record(row: Notification, attempt: _Attempt, now: datetime) -> tuple[Result, str]:
    answer = attempt.answer
    if isinstance(answer, Delivered):
        return _record_delivered(row, answer, was_found=attempt.was_found, now=now)
    if isinstance(answer, Gone):
        return _record_gone(row, answer, now)
    return _record_failure(row, answer, is_unsure=attempt.is_unsure, now=now)


def _record_delivered(
    row: Notification, answer: Delivered, *, was_found: bool, now: datetime
) -> tuple[Result, str]:
    """A card found from an earlier attempt may show an older state: it is due again, to be
    updated."""
    shown = row.sent_revision if was_found else row.revision
    is_stale = Q(sequence=CARD_SEQUENCE, revision__gt=shown)
    state = Case(When(is_stale, then=Value(_State.WAITING)), default=Value(_State.SENT))
    due_at = Case(When(is_stale, then=Value(now)), default=F("due_at"))
    permalink = answer.permalink or row.permalink
    _get_own_claim(row).update(
        state=state,
        due_at=due_at,
        leased_until=None,
        message_ts=answer.ts,
        permalink=permalink,
        sent_revision=shown,
        sent_at=now,
        error="",
    )
    NotificationChannel.objects.filter(name=row.channel).exclude(error="").update(error="")
    return Result.SENT, "found from an earlier attempt" if was_found else "sent"


def _record_gone(row: Notification, answer: Gone, now: datetime) -> tuple[Result, str]:
    """Somebody deleted the card: it is posted anew, and what belongs in its thread follows."""
    _get_own_claim(row).update(
        state=_State.WAITING, due_at=now, leased_until=None, error=answer.reason[:255]
    )
    siblings = Notification.objects.filter(incident=row.incident_id, notice=row.notice_id)
    cards = siblings.filter(channel=row.channel, sequence=CARD_SEQUENCE)
    state = Case(When(state=_State.SENT, then=Value(_State.WAITING)), default=F("state"))
    cards.update(message_ts="", permalink="", revision=F("revision") + 1, due_at=now, state=state)
    return Result.POSTPONED, answer.reason


def _record_failure(
    row: Notification, answer: Failure, *, is_unsure: bool, now: datetime
) -> tuple[Result, str]:
    waits = _State.UNKNOWN if is_unsure else _State.WAITING
    if isinstance(answer, RateLimited):
        _get_own_claim(row).update(state=waits, leased_until=None)
        _close(row.channel, now + answer.retry_after, "")
        return Result.POSTPONED, f"rate limited for {answer.retry_after.total_seconds():.0f} s"
    backoff = min(SETTLE * 2 ** min(row.attempts - 1, 8), LONGEST_BACKOFF)
    if isinstance(answer, OutcomeUnknown):
        _postpone(row, _State.UNKNOWN, now + backoff, answer.reason)
        if answer.is_silent:
            _close(row.channel, now + backoff, answer.reason)
        return Result.UNKNOWN, answer.reason
    if isinstance(answer, ChannelUnreachable):
        _postpone(row, waits, now, answer.reason)
        _close(row.channel, now + backoff, answer.reason)
        return Result.POSTPONED, answer.reason
    # A look-up that is refused says nothing of posting: that row waits alone, never repeated
    # blindly.
    closes = answer.blocks_channel and not is_unsure
    wait = RETRY_REFUSED_CHANNEL if answer.blocks_channel else RETRY_REFUSED_MESSAGE
    state = _State.UNKNOWN if is_unsure else _State.FAILED
    _postpone(row, state, now if closes else now + wait, answer.reason)
    if closes:
        _close(row.channel, now + RETRY_REFUSED_CHANNEL, answer.reason)
    _log.error("notification %s to %s was refused: %s", row.pk, row.channel, answer.reason)
    return Result.REFUSED, answer.reason


def _get_own_claim(row: Notification) -> QuerySet[Notification]:
    """The row as long as nobody claimed it after us: a worker that comes late records nothing."""
    return Notification.objects.filter(pk=row.pk, state=_State.SENDING, attempts=row.attempts)


def _postpone(
    row: Notification, state: Notification.SendState, due_at: datetime, reason: str
) -> None:
    _get_own_claim(row).update(state=state, due_at=due_at, leased_until=None, error=reason[:255])


def _close(channel: str, until: datetime, reason: str) -> None:
    """Nothing goes out on the channel before `until`; a shorter closing never opens a longer
    one."""
    rows = NotificationChannel.objects.filter(name=channel)
    rows.filter(open_at__lt=until).update(open_at=until)
    if reason:
        rows.update(error=reason[:255])


def _get_next(channel: str, now: datetime, took: timedelta) -> tuple[int | None, datetime | None]:
    """The row to ring next and when the channel takes it; what is farther off is the sweep's to
    find. Whoever was rung while the message that began at `now` was on its way was turned away."""
    state = NotificationChannel.objects.get(name=channel)
    at = max(state.open_at, now)
    if at - now > LONGEST_RING:
        return None, None
    following = _get_first(channel, at + took)
    return (None, None) if following is None else (following, at)
