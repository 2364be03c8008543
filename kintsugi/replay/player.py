"""Plays what is on the agenda through the real pipeline, with a look at whatever falls due in
between.

Decides nothing about faults; time only moves from one due moment to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from detectors.catalog import catalog as fault_catalog
from detectors.faults import EventKind, to_wire
from incidents.correlation.conclusions import make_conclusion
from incidents.notify.notifier import Notifier
from incidents.polling.polling import Chunk
from kintsugi.pipeline import Pipeline
from kintsugi.replay import due
from kintsugi.replay.agenda import Agenda
from kintsugi.replay.due import Due
from kintsugi.replay.intake import ReplayIntake
from runbooks import services as runbooks
from runbooks.step import World

# How the receiver groups events under load: what comes within this time of a flush waits for the
# next.
GROUPING = timedelta(milliseconds=100)
# Repeats are held by a clock of floats: a look at the very microsecond could find them not yet due,
# for ever.
FLUSH_MARGIN = timedelta(milliseconds=1)
# A period has elapsed once its last moment lies behind.
MARGIN = timedelta(seconds=1)
# What only a sweep finds: many faults that make one, the end of such a conclusion, a detector
# silent for two minutes, and what has not healed with its cause when the join window is over.
SWEPT_AFTER = (timedelta(seconds=5), timedelta(seconds=150), timedelta(seconds=605))
# What should have been done by now and was not is looked at again, but not for ever second by
# second.
OVERDUE_AGAIN = timedelta(minutes=5)


class ReplayQueue:
    """The tasks that the pipeline asks for: a queue for now, the agenda for later. What is queued
    twice runs once."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._waiting: dict[tuple[str, int], Callable[[Pipeline], None]] = {}

    def ingest(self) -> None: ...

    def advance(self, run_id: int, at: datetime | None = None) -> None:
        self._enqueue("advance", run_id, lambda pipeline: pipeline.advance(run_id))

    def poll(self, chunk: Chunk) -> None:
        """A replay looks where its scenario says, never by a schedule."""

    def notify(self, notification_id: int, at: datetime | None = None) -> None:
        if at is not None and at > self._agenda():
            self._agenda.add(at, lambda: self.notify(notification_id))
        else:
            self._enqueue("notify", notification_id, lambda pipe: pipe.notify(notification_id))

    def _enqueue(self, task: str, number: int, run: Callable[[Pipeline], None]) -> None:
        self._waiting.setdefault((task, number), run)

    def run_all(self, pipeline: Pipeline) -> None:
        while self._waiting:
            first = next(iter(self._waiting))
            run = self._waiting.pop(first)
            run(pipeline)


class Player:
    """One play. `say` is told each day that it has come to, for people who watch."""

    def __init__(
        self,
        pipeline: Pipeline,
        queue: ReplayQueue,
        *,
        agenda: Agenda,
        intake: ReplayIntake,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.pipeline = pipeline
        self.agenda = agenda
        self.intake = intake
        self._queue = queue
        self._say = say
        self._flushed_at: datetime | None = None
        self._is_flush_due = False
        self._scheduled: set[tuple[datetime, Callable[[], None]]] = set()

    def play(self, until: datetime) -> None:
        """Everything that is due up to `until`."""
        day = self.agenda().date()
        while self._has_deed(until):
            do_next = self.agenda.take()
            do_next()
            self._queue.run_all(self.pipeline)
            if self.agenda().date() != day:
                day = self.agenda().date()
                self._say(f"{day}: {self.intake.lines} lines, {self.intake.events} events")
        self.agenda.move(until)
        self._sweep()

    def _has_deed(self, until: datetime) -> bool:
        next_at = self.agenda.get_next_at()
        return next_at is not None and next_at <= until

    def deliver(self, line: bytes) -> None:
        """One raw line reaches the receiver now."""
        if not self.intake.take(line, self.agenda()):
            self._flush_held()
        elif self._flushed_at is None or self.agenda() - self._flushed_at >= GROUPING:
            self._flush()
        else:
            self._flush_at(self._flushed_at + GROUPING)

    def poll(self, node: str) -> None:
        self.pipeline.poll_node(node)
        self.settle()

    def conclude(
        self, kind: EventKind, fault_type: str, resources: Sequence[str], text: str
    ) -> None:
        """A round of polls saw this on these resources, all in one."""
        now = self.agenda()
        events = []
        for resource in resources:
            event = make_conclusion(kind, fault_type, resource, text=text, now=now)
            events.append(to_wire(event))
        self.pipeline.ingest(events)
        self._sweep_later()
        self.settle()

    def sweep(self) -> None:
        """Finds what a deed of people or of the world has made due."""
        self.pipeline.tick()
        self.settle()

    def settle(self) -> None:
        """What rang is answered, and the next look is put down for when something will be due."""
        self._queue.run_all(self.pipeline)
        now = self.agenda()
        for kind, due_at in due.iterate_moments():
            job = self._wake if kind is Due.RUN else self._sweep
            self._schedule(due_at + MARGIN if due_at >= now else now + OVERDUE_AGAIN, job)

    def _schedule(self, at: datetime, job: Callable[[], None]) -> None:
        if (at, job) not in self._scheduled:
            self._scheduled.add((at, job))
            self.agenda.add(at, job)

    def _sweep(self) -> None:
        """And once more as the next sweep comes: what a fault's end ends is seen by that one."""
        self._scheduled.discard((self.agenda(), self._sweep))
        self.sweep()
        self.agenda.add(self.agenda() + SWEPT_AFTER[0], self.sweep)

    def _wake(self) -> None:
        """What a sweep does for runs, and nothing else: a run wakes often while its node boots."""
        self._scheduled.discard((self.agenda(), self._wake))
        for run_id in runbooks.get_due_runs(self.agenda()):
            self._queue.advance(run_id)
        self.settle()

    def _sweep_later(self) -> None:
        """Whole seconds, so that a burst of batches is looked at once."""
        now = self.agenda().replace(microsecond=0)
        for after in SWEPT_AFTER:
            self._schedule(now + after, self._sweep)

    def _flush_at(self, at: datetime) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self.agenda.add(at, self._flush)

    def _flush_held(self) -> None:
        held_until = self.intake.get_next_due()
        if held_until is not None:
            self._flush_at(held_until + FLUSH_MARGIN)

    def _flush(self) -> None:
        self._is_flush_due = False
        self._flushed_at = self.agenda()
        events = self.intake.flush(self.agenda())
        if events:
            self.pipeline.ingest(events)
            self._sweep_later()
        self.settle()
        self._flush_held()


def make_player(
    agenda: Agenda,
    world: World,
    notifier: Notifier,
    say: Callable[[str], None],
    *,
    intake: ReplayIntake | None = None,
) -> Player:
    catalog = fault_catalog.load()
    queue = ReplayQueue(agenda)
    pipeline = Pipeline(world=world, notifier=notifier, queue=queue, clock=agenda, catalog=catalog)
    intake = intake or ReplayIntake(catalog)
    return Player(pipeline, queue, agenda=agenda, intake=intake, say=say)
