"""An order that comes twice is done once: what the first delivery of a request came to is kept in
the audit log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from runbooks.engine import audit
from runbooks.models import FleetLock
from runbooks.outcomes import ControlRefused, Outcome

# A signed request is taken until it is 5 min old, and its stamp may be 5 min ahead of our clock.
KEPT = timedelta(minutes=15)
_LOCK = "orders"


@dataclass(frozen=True)
class Repeated:
    """This very request was here before, and came to `text` then. Nothing was done again."""

    text: str


def execute_once(
    key: str, act: Callable[[], Outcome], *, actor: str, words: str, now: datetime
) -> Outcome | Repeated:
    """Does it in one transaction with its line in the audit log, under a lock; `words` is the order
    as it was given."""
    FleetLock.objects.get_or_create(name=_LOCK)
    with transaction.atomic():
        # SQLite's transactions are immediate: there the whole database is the lock.
        FleetLock.objects.select_for_update().get(name=_LOCK)
        before = audit.get_order(key, since=now - KEPT)
        if before is not None:
            return Repeated(before.text)
        outcome = act()
        is_done = not isinstance(outcome, ControlRefused)
        text = outcome.reason if isinstance(outcome, ControlRefused) else outcome.text
        audit.record_order(actor, f"{words}: {text}", is_done=is_done, now=now, key=key)
    return outcome


def record_refusal(reason: ControlRefused, *, actor: str, words: str, now: datetime) -> None:
    """Nothing was done: who gave the order may not."""
    audit.record_order(actor, f"{words}: {reason}", is_done=False, now=now)
