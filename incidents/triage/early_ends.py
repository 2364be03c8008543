"""Ends that came before the beginning they end: lines that overtook each other on their way. Reads
and writes.

Called by ingest under the placement lock. An end that finds nothing standing is kept for as long as
the ids of events are; a beginning that is dated before it is over already and raises nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

from detectors.faults import ClearRule, EventKind
from incidents.db.prepared import Given, Prepared
from incidents.models import SeenEvent
from incidents.triage.items import Item

# Beside the ids of events (`incidents.models.SeenEvent`); there `recorded_at` is when the fault
# ended.
_PREFIX = "c:"
_KEPT = Prepared(
    lambda: SeenEvent.objects.filter(key__among=Given("keys")).values_list("key", "recorded_at")
)


@dataclass
class Ends:
    """The latest early end of each fingerprint of a batch, and which of them the batch brought."""

    known: dict[str, datetime]
    brought: set[str] = field(default_factory=set)

    @classmethod
    def load(cls, items: Collection[Item]) -> Ends:
        keys = {
            f"{_PREFIX}{item.fingerprint}"
            for item in items
            if item.kind.clears is ClearRule.BY_EVENT
        }
        rows = _KEPT.rows(keys=keys) if keys else ()
        return cls({key.removeprefix(_PREFIX): at for key, at in rows})

    def get_end(self, item: Item) -> datetime | None:
        return self.known.get(item.fingerprint)

    def take(self, item: Item) -> None:
        """Only ends that the device itself reports: a poll that finds all well says nothing of a
        line before it."""
        if item.event.event is not EventKind.CLEARED or item.kind.clears is not ClearRule.BY_EVENT:
            return
        at = item.event.occurred_at
        self.known[item.fingerprint] = max(self.known.get(item.fingerprint, at), at)
        self.brought.add(item.fingerprint)

    def keep(self) -> None:
        if not self.brought:
            return
        rows = [
            SeenEvent(key=f"{_PREFIX}{mark}", recorded_at=self.known[mark])
            for mark in sorted(self.brought)
        ]
        SeenEvent.objects.bulk_create(
            rows, update_conflicts=True, update_fields=["recorded_at"], unique_fields=["key"]
        )
