"""The receiver of a replay: the real one's matching and folding, without its sockets and its
spool."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from detectors.catalog.catalog import Catalog
from detectors.faults import event_id, to_wire
from detectors.logs.signatures import Matcher
from detectors.provenance import Provenance
from detectors.receivers.counters import Counters
from detectors.receivers.folding import Folder
from detectors.receivers.intake import Intake, Sender, Zones
from detectors.resources import UNKNOWN_HOST

SOURCE = "replay"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class ReplayIntake:
    """Counts `lines` taken and `events` handed on. What names no host is the unknown host's."""

    def __init__(self, catalog: Catalog) -> None:
        self._folder = Folder()
        self._intake = Intake(
            Matcher(catalog), zones=Zones(), counters=Counters(), folder=self._folder
        )
        # A file of many machines: each line is of the one that it names.
        self._sender = Sender(UNKNOWN_HOST, provenance=Provenance("replay", is_relay=True))
        self.lines = 0
        self.events = 0

    def take(self, line: bytes, now: datetime) -> bool:
        """Whether something waits to be flushed at once."""
        self.lines += 1
        self._intake.take(line, self._sender, observed_at=now, now=_compute_seconds(now))
        return self._folder.ready > 0

    def flush(self, now: datetime) -> list[dict[str, Any]]:
        """What is due, as it travels to `ingest`."""
        wire_events = []
        for folded in self._folder.take(_compute_seconds(now)):
            event = replace(folded.build_event(now, SOURCE), event_id=event_id(SOURCE, self.events))
            wire_events.append(to_wire(event))
            self.events += 1
        return wire_events

    def get_next_due(self) -> datetime | None:
        """When repeats that are held back will be due."""
        due = self._folder.get_next_due()
        return _EPOCH + timedelta(seconds=due) if due is not None else None


def _compute_seconds(at: datetime) -> float:
    return (at - _EPOCH).total_seconds()
