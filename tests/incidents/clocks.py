"""A clock that tests turn, and a worker that sends what is due by it."""

from __future__ import annotations

from datetime import datetime, timedelta

from incidents.notify import services
from incidents.notify.notifier import Notifier
from tests.incidents.builders import T0


class Clock:
    """The time on this machine and at Slack's."""

    def __init__(self, now: datetime = T0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now.timestamp()

    def turn(self, by: timedelta) -> None:
        self.now += by


def drain(notifier: Notifier, clock: Clock, *, limit: int = 400) -> int:
    """Sends what is due, second by second, until nothing is owed soon; returns how many calls were
    made."""
    calls, idle = 0, 1
    for _ in range(limit):
        ids = services.list_due(clock.now)
        if not ids and not services.list_due(clock.now + timedelta(hours=1)):
            return calls
        for notification_id in ids:
            services.send(notification_id, notifier, now=clock.now)
            calls += 1
        idle = 1 if ids else min(2 * idle, 60)
        clock.turn(timedelta(seconds=idle))
    return calls
