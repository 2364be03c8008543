"""Which messages are owed, written in the transaction that makes them owed. Sends nothing.

Sequence 0 is the incident's card: one message, updated in place. Each timeline entry worth telling
becomes a row of its thread, whose sequence is the entry's own id: unique, in order, and the same
when written twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, QuerySet, Value, When

from incidents.db import upsert
from incidents.db.prepared import Given, Prepared
from incidents.models import Incident, Notice, Notification, TimelineEntry

CONSOLE = "console"
CARD = "card"
CARD_SEQUENCE = 0

# Kinds that are not told in the thread, and why. Every other kind is told: a kind unknown here is
# better told than lost.
NOT_TOLD: dict[str, str] = {
    "opened": "the card itself says so",
    "repeated": "the card counts it; a line per repeat would bury what matters",
    "cleared": (
        "the card counts what still stands; that all have cleared is told once, not fifty times"
    ),
    "noted": "it details a line that is told; the incident's page lists it",
    "ignored": "nothing changed",
    "stale": "nothing changed",
    "notified": "a message about a message",
    "silenced": "nobody is to be disturbed; the card says so",
}

BEYOND_LIMIT = "beyond_limit"
"""A node that is of no use to any job was drained though a limit on number would hold others."""
STEPPED_BACK = "stepped_back"
"""An arming or a mode went down a rung by itself, since an act by it was wrong."""
JOBS_IN_THE_WAY = "jobs_in_the_way"
"""Jobs keep a node that is of no use from its repair, for longer than a person should not know."""
DRAIN_LEFT = "drain_left"
"""A node stands drained for an incident that people have closed."""
ASKED_AGAIN = "asked_again"
# Kinds that ask a person for something, or that a person must know at once: told in the channel as
# well, since nobody may be watching the thread yet.
LOUD: frozenset[str] = frozenset(
    {
        *("approval_asked", ASKED_AGAIN, BEYOND_LIMIT, DRAIN_LEFT, JOBS_IN_THE_WAY),
        *("repair_failed", "spare_late", "standstill", STEPPED_BACK, "still_standing"),
        "vendor_late",
    }
)
ASKING = LOUD - {BEYOND_LIMIT, STEPPED_BACK}
"""Those of them that ask for something."""

_State = Notification.SendState


def get_channel() -> str:
    """Where messages go: `slack:<channel id>` when a token and a channel are set, else
    `console`."""
    token, slack_channel = settings.KINTSUGI["SLACK_BOT_TOKEN"], settings.KINTSUGI["SLACK_CHANNEL"]
    return f"slack:{slack_channel}" if token and slack_channel else CONSOLE


def get_second_channel() -> str:
    """Where that goes which nobody has taken, besides; empty where no such channel is set."""
    second = settings.KINTSUGI["SLACK_SECOND_CHANNEL"]
    return f"slack:{second}" if second and get_channel() != CONSOLE else ""


_KEPT = Prepared(
    lambda: Incident.objects.filter(
        pk__among=Given("incidents"), silence__isnull=False
    ).values_list("pk")
)
_CARDS = Prepared(
    lambda: (
        Notification.objects.filter(
            channel=Given("channel"),
            sequence=CARD_SEQUENCE,
            incident_id__among=Given("incidents"),
        )
        .select_for_update()
        .order_by("pk")
        .values_list("pk")
    )
)


def enqueue(entries: Sequence[TimelineEntry], *, now: datetime) -> None:
    """Writes what these timeline entries owe to people; call it in the transaction that saved them.

    Each incident's card is created, or due again if it was sent. A card on its way is not touched:
    its sender sees the raised revision and sends again. Five statements whatever the number of
    entries, and some more with a second channel, where that goes besides which nobody has taken.
    What a window keeps from people (`Incident.silence`) owes them nothing.
    """
    if not entries:
        return
    with transaction.atomic(savepoint=False):
        incidents = {entry.incident_id for entry in entries}
        incidents -= set(_KEPT.values(incidents=incidents))
        if incidents:
            _create_cards(sorted(incidents), get_channel(), now)
            _create_replies(
                [entry for entry in entries if entry.incident_id in incidents], get_channel(), now
            )
            _create_second(entries, incidents, now)


def _create_second(
    entries: Sequence[TimelineEntry], incidents: Collection[int], now: datetime
) -> None:
    name = get_second_channel()
    if not name:
        return
    cards = Notification.objects.filter(channel=name, sequence=CARD_SEQUENCE)
    _raise_cards(cards.filter(incident_id__in=incidents).exclude(message_ts=""), now)
    told = [entry for entry in entries if entry.incident_id in incidents]
    again = [entry for entry in told if entry.kind == ASKED_AGAIN]
    if again:
        _create_cards(sorted({entry.incident_id for entry in again}), name, now)
        _create_replies(again, name, now)


def announce(notice: Notice, *, now: datetime) -> Notice:
    """Saves a message of no incident and owes it to the channel, in the caller's transaction."""
    notice.written_at = now
    notice.save()
    Notification.objects.create(
        notice=notice,
        channel=get_channel(),
        reason=notice.kind,
        sequence=CARD_SEQUENCE,
        due_at=now,
        recorded_at=now,
    )
    return notice


def rewrite(notice: Notice, *, now: datetime) -> None:
    """Saves what it says by now; the message that stands in the channel follows."""
    notice.save()
    _raise_cards(Notification.objects.filter(notice=notice), now)


def withdraw(incidents: Sequence[int]) -> None:
    """What was owed of these and never tried is owed no longer: a window keeps them from people
    now."""
    Notification.objects.filter(
        incident_id__in=incidents, state=_State.WAITING, attempts=0, message_ts=""
    ).delete()


def show(incidents: Sequence[int], *, now: datetime) -> None:
    """Cards that stand already are updated in place, which disturbs nobody; none is made."""
    if not incidents:
        return
    posted = Notification.objects.filter(sequence=CARD_SEQUENCE, incident_id__in=incidents).exclude(
        message_ts=""
    )
    _raise_cards(posted, now)


def _create_cards(incidents: Sequence[int], name: str, now: datetime) -> None:
    fresh = [
        Notification(
            incident_id=incident,
            channel=name,
            reason=CARD,
            sequence=CARD_SEQUENCE,
            due_at=now,
            recorded_at=now,
        )
        for incident in incidents
    ]
    upsert.insert(fresh, ignore_conflicts=True)
    _raise_locked(_CARDS.values(channel=name, incidents=incidents), now)


def _raise_cards(cards: QuerySet[Notification], now: datetime) -> None:
    """Locks them in one order, so that two batches that share incidents never deadlock."""
    held = cards.select_for_update().order_by("pk").values_list("pk", flat=True)
    _raise_locked(list(held), now)


def _raise_locked(held: Sequence[int], now: datetime) -> None:
    due_at = Case(When(state=_State.SENT, then=Value(now)), default=F("due_at"))
    state = Case(When(state=_State.SENT, then=Value(_State.WAITING)), default=F("state"))
    cards = Notification.objects.filter(pk__in=held)
    cards.update(revision=F("revision") + 1, due_at=due_at, state=state)


def _create_replies(entries: Sequence[TimelineEntry], name: str, now: datetime) -> None:
    told = [entry for entry in entries if entry.kind not in NOT_TOLD]
    replies = [_make_reply(entry, name, now) for entry in told]
    upsert.insert(replies, ignore_conflicts=True)


def _make_reply(entry: TimelineEntry, name: str, now: datetime) -> Notification:
    return Notification(
        incident_id=entry.incident_id,
        channel=name,
        reason=entry.kind[:32],
        sequence=entry.pk,
        entry=entry,
        due_at=now,
        recorded_at=now,
    )
