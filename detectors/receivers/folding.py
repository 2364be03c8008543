"""Folds repeats of one line into one fact with a count, so that storage follows facts and not lines.

Pure: the time is an argument (seconds of a monotonic clock), and nothing here reads, writes or waits.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from detectors.faults import EventKind
from detectors.signatures import Fact

# A line's first occurrences go out one by one: what a person reads first is exact and at once. From then on its
# repeats are held, twice as long each time: 800,000 lines a minute of one node must not become 800,000 rows.
BURST = 4
SHORTEST_HOLD_S = 0.1
LONGEST_HOLD_S = 2.0
# A line that was quiet for this long starts anew, at once again.
_FORGET_AFTER_S = 10.0
# Lines remembered; about 1 KiB each.
_CAPACITY = 20_000


@dataclass(slots=True)
class _Line:
    """What is known of one repeating line: `waiting` facts not taken yet, and how long its repeats are held."""

    emitted: int = 0
    waiting: Fact | None = None
    count: int = 0
    due_s: float = 0.0
    seen_s: float = 0.0


@dataclass
class Folder:
    """Facts go in one by one and come out folded. Memory is bounded by `capacity`, whatever comes in."""

    capacity: int = _CAPACITY
    folded: int = 0
    _lines: dict[Hashable, _Line] = field(default_factory=dict)
    _ready: list[_Line] = field(default_factory=list)
    _held: list[_Line] = field(default_factory=list)
    _standing: dict[tuple[str, str], tuple[EventKind, list[_Line]]] = field(default_factory=dict)
    _swept_s: float = 0.0

    @property
    def ready(self) -> int:
        """How many facts need not wait."""
        return len(self._ready)

    @property
    def is_waiting(self) -> bool:
        return bool(self._ready or self._held)

    def repeat(self, identity: Hashable, count: int, *, now: float) -> bool:
        """Counts a repeat of a line whose fact is already waiting; False when the fact itself is needed (`add`)."""
        line = self._lines.get(identity)
        if line is None or line.waiting is None or (line.waiting.source_key and line.emitted < BURST):
            return False
        line.count += count
        line.seen_s = now
        self.folded += 1
        return True

    def add(self, identity: Hashable, fact: Fact, *, now: float) -> None:
        """One fact. `identity` is equal for lines that say the same but for their time stamps."""
        self._keep_order(fact)
        line = self._lines.get(identity)
        if line is None:
            line = self._remember(identity, now)
        line.seen_s = now
        is_flood = line.emitted >= BURST
        if line.waiting is not None and (is_flood or not line.waiting.source_key):
            line.count += fact.count
            self.folded += 1
        elif is_flood:
            self._wait(line, replace(fact, source_key=""), self._held)
        else:
            # An occurrence with a key of its own can be told from its copy on another path: it goes alone.
            self._wait(_Line() if line.waiting is not None else line, fact, self._ready)
            line.emitted += 1

    def take(self, now: float, *, everything: bool = False) -> list[Fact]:
        """The facts that are due; `everything` also those that are held (when the receiver stops)."""
        due = [line for line in self._held if everything or line.due_s <= now]
        self._held = [] if everything else [line for line in self._held if line.due_s > now]
        facts = [_emit(line, now) for line in self._ready + due]
        self._ready = []
        self._standing = {}
        for line in self._held:
            self._note(line)
        if now - self._swept_s > 1.0:
            self._sweep(now)
        return facts

    def next_due(self) -> float | None:
        """When the first held fact is due; None when none is held."""
        return min((line.due_s for line in self._held), default=None)

    def _wait(self, line: _Line, fact: Fact, queue: list[_Line]) -> None:
        line.waiting, line.count = fact, fact.count
        queue.append(line)
        self._note(line)

    def _note(self, line: _Line) -> None:
        if line.waiting is not None:
            condition = (line.waiting.fault_type, line.waiting.resource)
            self._standing.setdefault(condition, (line.waiting.event, []))[1].append(line)

    def _keep_order(self, fact: Fact) -> None:
        """Down, up, down must end down: an opposite event closes what waits, so that nothing folds across it."""
        condition = (fact.fault_type, fact.resource)
        event, lines = self._standing.get(condition, (fact.event, []))
        if event is fact.event:
            return
        del self._standing[condition]
        for line in lines:
            self._ready.append(_Line(line.emitted, line.waiting, line.count))
            line.waiting = None
        self._ready = [line for line in self._ready if line.waiting is not None]
        self._held = [line for line in self._held if line.waiting is not None]

    def _remember(self, identity: Hashable, now: float) -> _Line:
        if len(self._lines) >= self.capacity:
            self._sweep(now)
        if len(self._lines) >= self.capacity:
            self._lines = {key: line for key, line in self._lines.items() if line.waiting is not None}
        line = _Line()
        if len(self._lines) < self.capacity:
            self._lines[identity] = line
        return line

    def _sweep(self, now: float) -> None:
        self._swept_s = now
        quiet = now - _FORGET_AFTER_S
        self._lines = {key: line for key, line in self._lines.items() if line.waiting or line.seen_s > quiet}


def _emit(line: _Line, now: float) -> Fact:
    fact, line.waiting = line.waiting, None
    if fact is None:
        raise AssertionError("a listed line has a waiting fact")
    if line.emitted >= BURST:
        line.due_s = now + min(SHORTEST_HOLD_S * 2.0 ** min(line.emitted - BURST, 10), LONGEST_HOLD_S)
        line.emitted += 1
    return fact if fact.count == line.count else replace(fact, count=line.count, source_key="")
