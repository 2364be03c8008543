"""The pipeline on one page: what happens to a signal from its arrival to the last message. Decides nothing.

Each method is one task of `kintsugi.tasks`; the replay calls the same methods with a virtual clock. A method
rings the next one (`Ring`) after its work is committed, and `sweep` finds what a lost ring dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from detectors import faults, resources
from detectors.catalog import Catalog
from detectors.classify import classify
from detectors.detector import Transports
from detectors.faults import FaultEvent
from detectors.polling import observe
from incidents import inventory
from incidents import services as incidents
from incidents.notify import services as notifications
from incidents.notify.notifier import Notifier
from runbooks import services as runbooks
from runbooks.step import World


class Extent(NamedTuple):
    """A range of a spool, committed together with the events that it held."""

    receiver: str
    segment: int
    start: int
    end: int


class Ring(Protocol):
    """Doorbells. Losing one costs time, never work; `at` may be ignored when it is far off."""

    def advance(self, run_id: int) -> None: ...

    def notify(self, notification_id: int, at: datetime | None = None) -> None: ...

    def poll(self, node: str) -> None: ...


@dataclass(frozen=True)
class Pipeline:
    """The five tasks over one set of doors to the world."""

    world: World
    notifier: Notifier
    ring: Ring
    clock: Callable[[], datetime]
    catalog: Catalog

    def ingest(self, wires: Sequence[Mapping[str, Any]], extent: Extent | None = None) -> None:
        """Events from a spool or a caller: remember them, start what they call for, tell people."""
        events, broken = _decode(wires)
        now = self.clock()
        if broken:
            incidents.quarantine(broken, now=now)
        self._remember(events, extent, now)

    def poll(self, node: str) -> None:
        """One round of all detectors on one node; what they see takes the same way as a log line."""
        target = inventory.target(node)
        if target is None:
            return
        now = self.clock()
        observations = observe(target, self.world.detectors, Transports(shell=self.world.shell), now)
        active = incidents.active_fingerprints(resources.node(node))
        judged = [event for seen in observations for event in classify(seen, active, self.catalog)]
        self._remember(judged, None, now)

    def advance(self, run_id: int) -> None:
        """At most one step of one run; rung again at once while it has more to do."""
        now = self.clock()
        runbooks.advance(run_id, now=now, world=self.world)
        if runbooks.is_due(run_id, now=self.clock()):
            self.ring.advance(run_id)
        self._tell(now)

    def notify(self, notification_id: int) -> None:
        """One message to one channel, and the next one of that channel when its time comes."""
        outcome = notifications.send(notification_id, self.notifier, now=self.clock())
        if outcome.next_id is not None:
            self.ring.notify(outcome.next_id, outcome.next_at)

    def sweep(self) -> None:
        """Everything whose time has come, whoever forgot to ring."""
        now = self.clock()
        incidents.sweep(now=now)
        for run_id in runbooks.start_due(None, now=now, world=self.world):
            self.ring.advance(run_id)
        for run_id in runbooks.due(now):
            self.ring.advance(run_id)
        self._tell(now)

    def poll_all(self) -> None:
        """Rings a poll of each node that can be reached over SSH."""
        for node in inventory.pollable():
            self.ring.poll(node)

    def _remember(self, events: Sequence[FaultEvent], extent: Extent | None, now: datetime) -> None:
        changes = incidents.ingest(events, now=now, extent=extent)
        touched = sorted({change.incident_id for change in changes if change.incident_id is not None})
        if touched:
            for run_id in runbooks.start_due(touched, now=now, world=self.world):
                self.ring.advance(run_id)
        self._tell(now)

    def _tell(self, now: datetime) -> None:
        for notification_id in notifications.due(now):
            self.ring.notify(notification_id)


def _decode(wires: Sequence[Mapping[str, Any]]) -> tuple[list[FaultEvent], list[tuple[Mapping[str, Any], str]]]:
    events, broken = [], []
    for wire in wires:
        try:
            events.append(faults.from_wire(dict(wire)))
        except (KeyError, TypeError, ValueError) as error:
            broken.append((wire, f"not a fault event: {error!r}"))
    return events, broken
