"""What counts once, in whatever order and by however many ways it comes.

An event is known by its own id, and by the line that it was read from: two log hosts deliver each
line twice. An end may overtake the beginning that it ends: one that finds nothing active is kept
for as long as the ids of events are, and a beginning that is dated before it is over already and
raises nothing. Called under the placement lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from detectors.faults import ClearRule, EventKind
from incidents.db import upsert
from incidents.db.prepared import Given, Prepared
from incidents.models import SeenEvent
from incidents.triage.normalisation import Item
from incidents.vocabulary.changes import Change, ChangeKind

_DELIVERED = "delivered before: counted once"
_ANOTHER_PATH = "the same line came by another path: counted once"
# Beside the ids of events (`incidents.models.SeenEvent`); there `recorded_at` is when the fault
# ended.
_PREFIX = "c:"
_KEPT = Prepared(
    lambda: SeenEvent.objects.filter(key__among=Given("keys")).values_list("key", "recorded_at")
)


def deduplicate(items: Sequence[Item]) -> tuple[list[Item], list[Change]]:
    """Those that may count, and what does not since it was counted before.

    The second copy is put aside before anything is read for it, so that a storm is placed once and
    not twice.
    """
    keys = sorted({key for item in items for key in item.keys})
    known = upsert.get_known(keys)
    new = []
    ignored: Counter[str] = Counter()
    for item in items:
        reason = _get_seen_reason(item, known)
        if reason:
            ignored[reason] += 1
        else:
            new.append(item)
    changes = [
        Change(None, None, ChangeKind.IGNORED, f"{count} x {reason}")
        for reason, count in ignored.items()
    ]
    return new, changes


def use_keys(item: Item, new_keys: set[str]) -> str:
    """Empty for an event that counts, or the sentence that says how it was counted. Takes its keys
    away, so that a twin in the same batch does not count."""
    reason = ""
    if item.keys[0] not in new_keys:
        reason = _DELIVERED
    elif len(item.keys) > 1 and item.keys[1] not in new_keys:
        reason = _ANOTHER_PATH
    new_keys.difference_update(item.keys)
    return reason


def _get_seen_reason(item: Item, known: set[str]) -> str:
    if item.keys[0] in known:
        return _DELIVERED
    return _ANOTHER_PATH if not known.isdisjoint(item.keys) else ""


@dataclass
class EarlyClears:
    """The latest early end of each fingerprint of a batch, and which of them the batch brought."""

    known: dict[str, datetime]
    brought: set[str] = field(default_factory=set)

    @classmethod
    def load(cls, items: Collection[Item]) -> EarlyClears:
        keys = {
            f"{_PREFIX}{item.fingerprint}"
            for item in items
            if item.kind.clears is ClearRule.BY_EVENT
        }
        rows = _KEPT.rows(keys=keys) if keys else ()
        return cls({key.removeprefix(_PREFIX): at for key, at in rows})

    def get_end(self, item: Item) -> datetime | None:
        return self.known.get(item.fingerprint)

    def add(self, item: Item) -> None:
        """Only ends that the device itself reports: a poll that finds all well says nothing of a
        line before it."""
        if item.event.event is not EventKind.CLEARED or item.kind.clears is not ClearRule.BY_EVENT:
            return
        at = item.event.occurred_at
        self.known[item.fingerprint] = max(self.known.get(item.fingerprint, at), at)
        self.brought.add(item.fingerprint)

    def save(self) -> None:
        if not self.brought:
            return
        rows = [
            SeenEvent(key=f"{_PREFIX}{fingerprint}", recorded_at=self.known[fingerprint])
            for fingerprint in sorted(self.brought)
        ]
        SeenEvent.objects.bulk_create(
            rows, update_conflicts=True, update_fields=["recorded_at"], unique_fields=["key"]
        )
