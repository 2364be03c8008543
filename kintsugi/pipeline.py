"""The pipeline on one page: what happens to a signal from its arrival to the last message. Decides nothing.

Each method is one task of `kintsugi.tasks`; the replay calls the same methods with a virtual clock. A method
rings the next one (`Ring`) after its work is committed, and `sweep` finds what a lost ring dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from django.db import transaction

from detectors import faults
from detectors.catalog import Catalog
from detectors.detector import TargetKind, Transports
from detectors.faults import FaultEvent, Observation
from detectors.polling import observe_one
from incidents import inventory, poll_pauses, polling
from incidents import services as incidents
from incidents.changes import Change
from incidents.notify import services as notifications
from incidents.notify.notifier import Notifier
from incidents.polling import Chunk
from kintsugi import job_watch
from kintsugi.act_watch import ActWatch
from kintsugi.comparing import Comparing
from kintsugi.polling import Round, Watch, is_unreachable, judged
from kintsugi.reserving import Reserving
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

    def poll(self, chunk: Chunk) -> None: ...


@dataclass(frozen=True)
class Pipeline:
    """The tasks over one set of doors to the world. `watch`: what polls look at; without it the world's detectors."""

    world: World
    notifier: Notifier
    ring: Ring
    clock: Callable[[], datetime]
    catalog: Catalog
    watch: Watch | None = None

    def ingest(self, wires: Sequence[Mapping[str, Any]], extent: Extent | None = None) -> None:
        """Events from a spool or a caller: remember them, start what they call for, tell people."""
        events, broken = _decode(wires)
        now = self.clock()
        if broken:
            incidents.quarantine(broken, now=now)
        self._remember(events, extent, now)

    def poll_due(self, tick: timedelta) -> None:
        """Rings the polls that are due. `tick` is the time between two calls."""
        now = self.clock()
        for chunk in polling.claim(self._watch.schedule.paces(self._watch, now), now, tick=tick):
            self.ring.poll(chunk)

    def poll(self, chunk: Chunk) -> None:
        """One detector looks at some targets; what it sees takes the same way as a log line."""
        detector = self._watch.detector(chunk.detector)
        if detector is None:
            return
        chunk = polling.begin(chunk, self.clock())
        for seen in self._watch.looks(detector, chunk.targets, self.clock):
            now = self.clock()
            with transaction.atomic():
                kept = polling.kept(chunk, [target.name for target, _ in seen])
                rounds = [
                    Round(detector, target, told, kept[target.name]) for target, told in seen if target.name in kept
                ]
                changes = self._judged(rounds, now, lease=chunk.lease)
            self._after(changes, now)

    def look_at(self, node: str) -> None:
        """One round of detectors on one node, now and in this process; ends at the first that cannot reach it.

        Those that are slow on purpose are left out while their last look is fresh, and those that are paused.
        """
        seen: dict[str, list[Observation]] = {}
        last = polling.last_polled(node, TargetKind.NODE.value)
        paused = poll_pauses.of_node(node, self.clock())
        for target in inventory.targets(TargetKind.NODE, [node]):
            for detector in self._watch.of_node(target, last, self.clock()):
                if detector.name in paused:
                    continue
                seen[detector.name] = observe_one(target, detector, self._watch.via, self.clock())
                if is_unreachable(seen[detector.name]):
                    break
        self.take(node, seen)

    def take(self, node: str, seen: Mapping[str, Sequence[Observation]]) -> None:
        """What detectors saw of one node, by their names, out of turn: here, or in a check that the node ran itself."""
        now = self.clock()
        with transaction.atomic():
            kept = polling.kept_of(node, TargetKind.NODE.value, sorted(seen), now)
            targets = inventory.targets(TargetKind.NODE, [node])
            known = [(detector, seen[name]) for name in seen if (detector := self._watch.detector(name)) is not None]
            rounds = [
                Round(detector, target, list(told), kept[detector.name])
                for target in targets
                for detector, told in known
            ]
            changes = self._judged(rounds, now, lease=None)
        self._after(changes, now)

    def advance(self, run_id: int) -> None:
        """At most one step of one run; rung again at once while it has more to do."""
        now = self.clock()
        runbooks.advance(run_id, now=now, world=self.world)
        if runbooks.is_due(run_id, now=self.clock()):
            self.ring.advance(run_id)
        for next_id in runbooks.start_after(run_id, now=now, world=self.world):
            self.ring.advance(next_id)
        self._tell(now)

    def notify(self, notification_id: int) -> None:
        """One message to one channel, and the next one of that channel when its time comes."""
        outcome = notifications.send(notification_id, self.notifier, now=self.clock())
        if outcome.next_id is not None:
            self.ring.notify(outcome.next_id, outcome.next_at)

    def sweep(self) -> None:
        """Everything whose time has come, whoever forgot to ring."""
        now = self.clock()
        told = incidents.management_network(now, hears=lambda names: runbooks.heard(names, self.world.slurm))
        told += incidents.blind_detectors(now)
        told += incidents.conclusions_ended(now)
        told += incidents.reviews_due(now)
        told += runbooks.breaker(now, bounds=self.world.policy.bounds)
        if told:
            self._remember(told, None, now)
        incidents.sweep(now=now)
        incidents.end_silences(now)
        incidents.vendor_cases_due(now)
        runbooks.judge_cures(now)
        started = runbooks.start_due(None, now=now, world=self.world)
        for run_id in started:
            self.ring.advance(run_id)
        for run_id in runbooks.due(now):
            if run_id not in started:
                self.ring.advance(run_id)
        compared = self._comparing.due(now, self.catalog, self.world.slurm)  # last: it may wait for Slurm
        if compared:
            self._remember(compared, None, now)
        job_watch.due(now, self.world.slurm)
        self._act_watch.due(now, self.world)
        if self._reserving.due(now, self.world.slurm):  # what waited for a maintenance to end waits no longer
            for run_id in runbooks.start_due(None, now=now, world=self.world):
                self.ring.advance(run_id)
        self._tell(now)

    @cached_property
    def _watch(self) -> Watch:
        return self.watch or Watch(Transports(shell=self.world.shell), self.world.detectors)

    @cached_property
    def _reserving(self) -> Reserving:
        return Reserving()

    @cached_property
    def _act_watch(self) -> ActWatch:
        return ActWatch()

    @cached_property
    def _comparing(self) -> Comparing:
        return Comparing()

    def _judged(self, rounds: Sequence[Round], now: datetime, *, lease: datetime | None) -> list[Change]:
        """In one transaction: what is remembered, when the next look comes, and what became of the events."""
        if not rounds:
            return []
        were_dead = {one.target.name for one in rounds if one.kept.failures}
        events, changes = judged(rounds, self.catalog, now)
        for detector in {id(one.detector): one.detector for one in rounds}.values():
            mine = [one.kept for one in rounds if one.detector is detector]
            polling.finish(mine, self._watch.every(detector), now, lease=lease)
        living = sorted(were_dead & {one.target.name for one in rounds if one.is_reachable})
        if living:
            polling.answered(rounds[0].target.kind.value, living, now)
        return [*changes, *(incidents.ingest(events, now=now) if events else [])]

    def _remember(self, events: Sequence[FaultEvent], extent: Extent | None, now: datetime) -> None:
        self._after(incidents.ingest(events, now=now, extent=extent), now)

    def _after(self, changes: Sequence[Change], now: datetime) -> None:
        """Starts the repairs that the changes call for, and tells people."""
        touched = sorted({change.incident_id for change in changes if change.incident_id is not None})
        if touched:
            for run_id in runbooks.start_due(touched, now=now, world=self.world):
                self.ring.advance(run_id)
        if changes:
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
