"""A day of a small site on a simulated clock, in one process: lines, ingest, polls, sweeps, repairs,
messages, and history that is removed.

Faults begin and end all day at the same rate, and what has ended is kept for two hours, so that
after some hours the site is as large as it will be: memory that still grows then is lost.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from detectors.catalog import catalog
from detectors.detector import Transports
from fixtures.cluster.log_line import LogLine
from incidents import services as incidents
from incidents.models import Incident
from incidents.notify.notifier import Delivered, Found, Message, NotFound, Posted
from incidents.polling.polling import Chunk
from incidents.vocabulary.lifecycle import OPEN, Trigger
from kintsugi.history import retention
from kintsugi.periodic.polling import Watch
from kintsugi.pipeline import Pipeline
from kintsugi.replay.intake import ReplayIntake
from runbooks import services as runbooks
from runbooks.guards.table import Bounds
from tests.runbooks import site as sites

# A node falls ill once a day: the second time within 24 h it is left to people.
NODES = 120
POLL_EVERY = timedelta(minutes=30)
STEP, SWEEP, HOUR = timedelta(seconds=20), timedelta(minutes=1), timedelta(hours=1)
FAULT_EVERY = timedelta(minutes=12)
KEPT = timedelta(hours=2)
FAULTS = ("gpu_lost", "gpu_ecc_uncorrectable", "gpu_app_error", "nvlink_error")
# A person takes what asks for one.
PERSON_AFTER = timedelta(minutes=30)
_WIDE = Bounds(cap_nodes=NODES, cap_share=1.0, pod_floor=0.0, per_hour=1000, breaker_share=1.0)


@dataclass(frozen=True)
class Size:
    """Of this process: resident `bytes`, and `blocks` that Python has allocated, which no
    allocator's habits blur."""

    bytes: int
    blocks: int


class CountingNotifier:
    """Delivers every message, and keeps none."""

    def __init__(self) -> None:
        self.count = 0

    def serves(self, channel: str) -> bool:
        return True

    def get_pace(self, channel: str) -> timedelta:
        return timedelta(0)

    def post(self, message: Message) -> Posted:
        self.count += 1
        return Delivered(ts=str(self.count))

    def update(self, message: Message, ts: str) -> Posted:
        self.count += 1
        return Delivered(ts=ts)

    def find(self, message: Message, since: datetime) -> Found:
        return NotFound()


class Calls:
    """The doorbell: what is rung is done at the end of the step."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[Pipeline], object]] = deque()

    def ingest(self) -> None:
        self.waiting.append(lambda pipeline: pipeline.ingest_waiting())

    def advance(self, run_id: int, at: datetime | None = None) -> None:
        self.waiting.append(lambda pipeline: pipeline.advance(run_id))

    def notify(self, notification_id: int, at: datetime | None = None) -> None:
        """What is due later is found by a sweep."""
        if at is None:
            self.waiting.append(lambda pipeline: pipeline.notify(notification_id))

    def poll(self, chunk: Chunk) -> None:
        self.waiting.append(lambda pipeline: pipeline.poll(chunk))

    def answer(self, pipeline: Pipeline) -> None:
        while self.waiting:
            self.waiting.popleft()(pipeline)


class Day:
    """`sizes`: at the end of each hour. `done`: what came about, and how often."""

    def __init__(self, history: Path) -> None:
        self._history = history
        self.site = sites.Site(nodes=NODES, bounds=_WIDE)
        self.notifier, self._calls = CountingNotifier(), Calls()
        self._intake = ReplayIntake(catalog.load())
        self._lines: list[LogLine] = []
        via, world = Transports(shell=self.site.world.shell), self.site.world
        watch = Watch(via, world.detectors, shortest=POLL_EVERY)
        self.pipeline = Pipeline(
            world, self.notifier, self._calls, lambda: self.site.now, catalog.load(), watch
        )
        self.done: Counter[str] = Counter()
        self.sizes: list[Size] = []

    def play(self, hours: int) -> None:
        for _ in range(hours):
            self._play_hour()
            self._prune()
            self.sizes.append(measure())

    def _play_hour(self) -> None:
        begins_at = self.site.now
        while self.site.now < begins_at + HOUR:
            self.site.now += STEP
            elapsed = self.site.now - begins_at
            if elapsed % FAULT_EVERY == timedelta(0):
                self._break_something()
            self._send_lines()
            self.pipeline.poll_due(STEP)
            for run_id in runbooks.get_due_runs(self.site.now):
                self._calls.advance(run_id)
            if elapsed % SWEEP == timedelta(0):
                self.pipeline.tick()
                self._act_as_person()
            self._calls.answer(self.pipeline)

    def _break_something(self) -> None:
        """The next node has something, in turn."""
        number = self.done["broken"]
        node, name = self.site.names[number % NODES], FAULTS[number % len(FAULTS)]
        self._lines += self.site.nodes.inject(name, f"{node}/gpu/0", now=self.site.now)
        self.done["broken"] += 1

    def _send_lines(self) -> None:
        due = [line for line in self._lines if line.at <= self.site.now]
        self._lines = [line for line in self._lines if line.at > self.site.now]
        for line in due:
            self._intake.take(line.wire(), self.site.now)
        if events := self._intake.flush(self.site.now):
            self.pipeline.ingest(events)

    def _act_as_person(self) -> None:
        asked = Incident.objects.filter(state__in=OPEN).exclude(needs_human="")
        for pk in asked.filter(opened_at__lt=self.site.now - PERSON_AFTER).values_list(
            "pk", flat=True
        ):
            incidents.act(pk, Trigger.RESOLVE, actor="bob", note="mended", now=self.site.now)
            self.done["by a person"] += 1

    def _prune(self) -> None:
        now = self.site.now
        removed = retention.prune(self._history, now - KEPT, now=now, most=retention.MOST_AT_ONCE)
        self.done.update(removed)
        self.site.slurm.journal.clear()


def measure() -> Size:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Size(pages * resource.getpagesize(), sys.getallocatedblocks())
