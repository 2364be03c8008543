"""Folds repeats of one line into one event with a count, so that storage follows facts and not
lines.

Pure: the time is an argument (seconds of a monotonic clock), and nothing here reads, writes or
waits.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime

from detectors.faults import EventKind, FaultEvent
from detectors.logs.signatures import Fact, excerpt_of
from detectors.provenance import UNKNOWN, Provenance

# A line's first occurrences go out one by one: what a person reads first is exact and at once. From
# then on its repeats are held, twice as long each time: 800,000 lines a minute of one node must not
# become 800,000 rows.
BURST = 4
SHORTEST_HOLD_S = 0.1
LONGEST_HOLD_S = 2.0
# More new events than this within a second is a storm: from then on repeats are held from the
# second occurrence, for the longest time at once. Ingest commits some 10,000 a second at best, and
# new faults must not queue behind repeats.
STORM_EVENTS_PER_S = 1000
# A line that was quiet for this long starts anew, at once again.
_FORGET_AFTER_S = 10.0
# Lines remembered; about 1 KiB each.
_CAPACITY = 20_000


@dataclass(slots=True)
class Folded:
    """Occurrences of one line that count as one event: the first one's time, text and key, and how
    many.

    While `is_open` and without a key, an occurrence of the same line may be counted here as well as
    by the folder.
    """

    fact: Fact
    at: datetime
    line: bytes
    source_key: str
    count: int
    is_open: bool = True
    source: str = "syslog"
    provenance: Provenance = UNKNOWN

    def build_event(self, observed_at: datetime, source: str = "") -> FaultEvent:
        """`source` where it is another than its own."""
        fact = self.fact
        return FaultEvent(
            event_id="",
            fault_type=fact.fault_type,
            event=fact.event,
            resource=fact.resource,
            source=source or self.source,
            occurred_at=self.at,
            observed_at=observed_at,
            severity=fact.severity,
            action=fact.action,
            component=fact.component,
            qualifier=fact.qualifier,
            source_key=self.source_key,
            count=self.count,
            code=fact.code,
            excerpt=excerpt_of(self.line),
            attributes=fact.attributes,
            provenance=self.provenance,
        )


def fold_event(event: FaultEvent) -> Folded:
    """An event that came by another way than a line; what is told of it stands for its line."""
    fact = Fact(
        fault_type=event.fault_type,
        event=event.event,
        resource=event.resource,
        host=event.resource.split("/", 2)[1],
        occurred_at=event.occurred_at,
        severity=event.severity,
        action=event.action,
        component=event.component,
        code=event.code,
        qualifier=event.qualifier,
        source_key=event.source_key,
        count=event.count,
        excerpt=event.excerpt,
        meaning="",
        attributes=event.attributes,
    )
    line = event.excerpt.encode("utf-8", "replace")
    return Folded(
        fact,
        event.occurred_at,
        line,
        event.source_key,
        event.count,
        source=event.source,
        provenance=event.provenance,
    )


@dataclass(slots=True)
class _Line:
    """What is known of one repeating line: what waits to be taken, and how long its repeats are
    held."""

    emitted: int = 0
    waiting: Folded | None = None
    due_s: float = 0.0
    seen_s: float = 0.0


# By fault type and resource: what the waiting lines say of it, and these lines by their identity.
_Standing = dict[tuple[str, str], tuple[EventKind, dict[int, _Line]]]


@dataclass
class Folder:
    """Facts go in one by one and come out folded. Memory is bounded by `capacity`, whatever comes
    in."""

    capacity: int = _CAPACITY
    folded: int = 0
    _lines: dict[Hashable, _Line] = field(default_factory=dict)
    _ready: list[_Line] = field(default_factory=list)
    _held: list[_Line] = field(default_factory=list)
    _standing: _Standing = field(default_factory=dict)
    _swept_s: float = 0.0
    _emitted_since_sweep: int = 0
    _is_storm: bool = False

    @property
    def ready(self) -> int:
        """How many events need not wait."""
        return len(self._ready)

    @property
    def remembered(self) -> int:
        """How many lines are known."""
        return len(self._lines)

    @property
    def is_waiting(self) -> bool:
        return bool(self._ready or self._held)

    def repeat(self, identity: Hashable, count: int, *, now: float) -> Folded | None:
        """Counts a repeat where its line is already waiting; None when the occurrence itself is
        needed (`add`)."""
        line = self._lines.get(identity)
        if (
            line is None
            or line.waiting is None
            or (line.waiting.source_key and line.emitted < BURST)
        ):
            return None
        self._count(line.waiting, count)
        line.seen_s = now
        return line.waiting

    def add(self, identity: Hashable, new: Folded, *, now: float) -> Folded:
        """One occurrence; returns where it waits. `identity` is equal for lines that differ in
        their stamps alone."""
        self._keep_order(new.fact)
        line = self._lines.get(identity)
        if line is None:
            line = self._remember(identity, now)
        line.seen_s = now
        is_flood = line.emitted >= BURST
        if line.waiting is not None and (is_flood or not line.waiting.source_key):
            self._count(line.waiting, new.count)
            return line.waiting
        if is_flood:
            new.source_key = ""
            self._wait(line, new, self._held)
        else:
            # An occurrence with a key of its own can be told from its copy on another path: it goes
            # alone.
            self._wait(_Line() if line.waiting is not None else line, new, self._ready)
            line.emitted += 1
        return new

    def take(self, now: float, *, everything: bool = False) -> list[Folded]:
        """What is due; `everything` also what is held (when the receiver stops)."""
        due = [line for line in self._held if everything or line.due_s <= now]
        self._held = [] if everything else [line for line in self._held if line.due_s > now]
        leaving = self._ready + due
        self._ready = []
        self._emitted_since_sweep += len(leaving)
        self._is_storm = self._is_storm or self._emitted_since_sweep > STORM_EVENTS_PER_S
        taken = [self._make_folded(line, now) for line in leaving]
        if now - self._swept_s > 1.0:
            self._sweep(now)
        return taken

    def get_next_due(self) -> float | None:
        """When the first held event is due; None when none is held."""
        return min((line.due_s for line in self._held), default=None)

    def _count(self, waiting: Folded, count: int) -> None:
        waiting.count += count
        waiting.source_key = ""
        self.folded += 1

    def _wait(self, line: _Line, new: Folded, queue: list[_Line]) -> None:
        line.waiting = new
        queue.append(line)
        condition = (new.fact.fault_type, new.fact.resource)
        standing = self._standing.get(condition)
        if standing is None:
            self._standing[condition] = (new.fact.event, {id(line): line})
        else:
            standing[1][id(line)] = line

    def _remove_waiting(self, line: _Line, fact: Fact) -> None:
        condition = (fact.fault_type, fact.resource)
        standing = self._standing.get(condition)
        if standing is not None and standing[1].pop(id(line), None) is not None and not standing[1]:
            del self._standing[condition]

    def _keep_order(self, fact: Fact) -> None:
        """Down, up, down must end down: an opposite event closes what waits, so that nothing folds
        across it."""
        condition = (fact.fault_type, fact.resource)
        standing = self._standing.get(condition)
        if standing is None or standing[0] is fact.event:
            return
        del self._standing[condition]
        for line in standing[1].values():
            if line.waiting is not None:
                line.waiting.is_open = False
            self._ready.append(_Line(line.emitted, line.waiting))
            line.waiting = None
        self._ready = [line for line in self._ready if line.waiting is not None]
        self._held = [line for line in self._held if line.waiting is not None]

    def _remember(self, identity: Hashable, now: float) -> _Line:
        if len(self._lines) >= self.capacity:
            self._sweep(now)
        if len(self._lines) >= self.capacity:
            self._lines = {
                key: line for key, line in self._lines.items() if line.waiting is not None
            }
        line = _Line()
        if len(self._lines) < self.capacity:
            self._lines[identity] = line
        return line

    def _sweep(self, now: float) -> None:
        rate = self._emitted_since_sweep / max(now - self._swept_s, 1.0)
        self._is_storm = rate > STORM_EVENTS_PER_S
        self._swept_s, self._emitted_since_sweep = now, 0
        quiet = now - _FORGET_AFTER_S
        self._lines = {
            key: line for key, line in self._lines.items() if line.waiting or line.seen_s > quiet
        }

    def _make_folded(self, line: _Line, now: float) -> Folded:
        folded, line.waiting = line.waiting, None
        if folded is None:
            raise AssertionError("a listed line has an event waiting")
        folded.is_open = False
        self._remove_waiting(line, folded.fact)
        if self._is_storm and line.emitted < BURST:
            line.emitted = BURST
        if line.emitted >= BURST:
            hold = SHORTEST_HOLD_S * 2.0 ** min(line.emitted - BURST, 10)
            line.due_s = now + (LONGEST_HOLD_S if self._is_storm else min(hold, LONGEST_HOLD_S))
            line.emitted += 1
        return folded
