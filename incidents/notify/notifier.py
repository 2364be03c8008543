"""What a message is and what becomes of it: the contract of everything that carries messages to
people.

Pure values. A notifier sends and looks, once per call; it never waits, repeats or decides when.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from detectors.faults import Severity
from incidents.vocabulary.lifecycle import State


@dataclass(frozen=True)
class MessageKey:
    """Identity of a message, carried inside it: sequence 0 is the card, others are entries of its
    thread. Of incident 0 are the notices, each with its own number as the sequence.

    `written` is when the row was written: numbers start again with a new database, times do not.
    """

    incident: int
    sequence: int
    written: str


@dataclass(frozen=True)
class Card:
    """An incident's own message as values: plain text in our words and in those of devices, nothing
    escaped.

    `now` is what Kintsugi does, `asked` what a person can do; both are sentences. `url` is the
    console page. `advice` is what the catalogue says of the fault's type, with commands between
    backticks, and `advice_url` the site's own page about it; empty where there is none.
    """

    incident: int
    title: str
    severity: Severity
    state: State
    resource: str
    where: str
    component: str
    channels: tuple[str, ...]
    onset_at: datetime
    opened_at: datetime
    now: str
    asked: str
    url: str
    faults: int = 1
    active_faults: int = 1
    needs_human: bool = False
    restored_at: datetime | None = None
    closed_at: datetime | None = None
    latest: str = ""
    impact: str = ""
    """Jobs, people, nodes and GPU-hours in one line; empty while they are not known."""
    advice: str = ""
    advice_url: str = ""


@dataclass(frozen=True)
class Button:
    """One answer to choose. `value` names what is answered and the state that was shown; `question`
    asks once more."""

    name: str
    label: str
    value: str
    question: str = ""
    is_danger: bool = False


@dataclass(frozen=True)
class Ask:
    """What a person is asked, with what there is to know of it, a line each, and the answers that
    there are."""

    lines: tuple[str, ...]
    buttons: tuple[Button, ...]


@dataclass(frozen=True)
class Reply:
    """One timeline entry in an incident's thread; `is_loud`: shown in the channel as well, for it
    asks a person.

    `ask`: what a person may answer at once, where the channel carries answers.
    """

    incident: int
    kind: str
    text: str
    actor: str
    occurred_at: datetime
    is_loud: bool = False
    ask: Ask | None = None


@dataclass(frozen=True)
class NoticeCard:
    """A message of no incident (`incidents.models.Notice`), as `Card` tells of an incident.

    `number` is its row's. `is_open`: a person is asked still.
    """

    number: int
    title: str
    text: str
    now: str
    asked: str
    url: str
    is_open: bool
    ask: Ask | None = None


Content = Card | Reply | NoticeCard


@dataclass(frozen=True)
class Message:
    """A card, a notice or a reply on its way to `channel`; `thread_ts` is the card's message id,
    empty for all but a reply."""

    channel: str
    key: MessageKey
    content: Content
    thread_ts: str = ""


@dataclass(frozen=True)
class Delivered:
    """It stands there: `ts` is the channel's id of the message, `permalink` where people read it
    (may be empty)."""

    ts: str
    permalink: str = ""


@dataclass(frozen=True)
class NotFound:
    """Looked up, and it is not there: it was never accepted."""


@dataclass(frozen=True)
class RateLimited:
    """Not sent: the channel takes nothing before `retry_after` has passed."""

    retry_after: timedelta


@dataclass(frozen=True)
class OutcomeUnknown:
    """It may stand there or not: look before it is repeated. `is_silent`: nothing came until
    the sender gave up, so the next message would wait as long."""

    reason: str
    is_silent: bool = False


@dataclass(frozen=True)
class ChannelUnreachable:
    """Certainly not sent: no connection was made."""

    reason: str


@dataclass(frozen=True)
class SendRefused:
    """Certainly not sent, and the same again would be refused: `reason` says what a person can do.

    `blocks_channel`: every other message to the channel would be refused as well. `is_form`: the
    words alone, without layout, may be accepted.
    """

    reason: str
    blocks_channel: bool
    is_form: bool = False


@dataclass(frozen=True)
class Gone:
    """The message to update, or the card to answer to, no longer exists: the card has to be posted
    anew."""

    reason: str


Failure = RateLimited | OutcomeUnknown | ChannelUnreachable | SendRefused
Posted = Delivered | Gone | Failure
Found = Delivered | NotFound | Gone | Failure


class Notifier(Protocol):
    """Carries messages to the channels it serves. Raises nothing that the network can cause."""

    def serves(self, channel: str) -> bool: ...

    def get_pace(self, channel: str) -> timedelta:
        """The least time between two messages to the channel."""
        ...

    def post(self, message: Message) -> Posted: ...

    def update(self, message: Message, ts: str) -> Posted:
        """Makes the message `ts` show `message`; the same again changes nothing."""
        ...

    def find(self, message: Message, attempted_at: datetime) -> Found:
        """The message with this key, if the attempt that began at `attempted_at` was accepted."""
        ...
