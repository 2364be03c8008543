"""Messages of a play: they are kept, and reach nobody."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

from incidents.notify.notifier import Delivered, Found, Message, NotFound, Posted


class KeepingNotifier:
    """Every message is delivered at once and kept: what people would have read."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._ids = itertools.count(1)

    def serves(self, channel: str) -> bool:
        return True

    def get_pace(self, channel: str) -> timedelta:
        return timedelta(0)

    def post(self, message: Message) -> Posted:
        self.messages.append(message)
        return Delivered(ts=str(next(self._ids)))

    def update(self, message: Message, ts: str) -> Posted:
        self.messages.append(message)
        return Delivered(ts=ts)

    def find(self, message: Message, since: datetime) -> Found:
        return NotFound()
