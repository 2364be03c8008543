"""The pipeline on one page: what happens to a signal from its arrival to the last message. Decides
nothing.

Each method is one task of `kintsugi.tasks`; the replay calls the same methods with a virtual clock.
A method enqueues the next one (`TaskQueue`) after its work is committed, and `sweep` finds what a
queue lost. What may wait for Slurm is no part of the sweep: each such task has its own period, and
one process at a time does it (`incidents.checks.periodic_tasks`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Protocol

from django.db import transaction

from detectors.catalog.catalog import Catalog
from detectors.detector import Detector, Target, TargetKind, Transports
from detectors.faults import FaultEvent, Observation, to_wire
from detectors.polling import observe_one
from detectors.provenance import UNKNOWN, Provenance
from incidents import services as incidents
from incidents.checks import overload, own_health, periodic_tasks, slurm_reach, unread_lines
from incidents.inventory import services
from incidents.notify import services as notifications
from incidents.notify.notifier import Notifier
from incidents.people import drain_requests
from incidents.people.drain_requests import DrainRequest
from incidents.polling import poll_pauses, polling
from incidents.polling.polling import Chunk, PollState
from incidents.vocabulary.changes import Change
from kintsugi import clock
from kintsugi.periodic import comparing, job_watch, node_watch, periods, reserving
from kintsugi.periodic.clock_watch import ClockWatch
from kintsugi.periodic.polling import (
    Judgement,
    Round,
    Watch,
    evaluate_rounds,
    is_unreachable,
    store_judgement,
)
from runbooks import services as runbooks
from runbooks.step import World

# What waits for Slurm, each in a task of its own (`kintsugi.tasks`).
WAITS_FOR_SLURM = (
    *("ask_reach", "look_at_nodes", "compare", "update_jobs", "record_acts"),
    "follow_reservations",
)


Answers = Sequence[tuple[Target, list[Observation]]]
"""What one detector saw of each target."""


# A task to ingest is answered within milliseconds, or when the batches before are counted.
_INGEST_UNHEARD = timedelta(seconds=2)
# Our choice: what a turn that waits takes on a slow machine, and within the time between two sweeps
# as shipped.
_GAP, _SPREAD = timedelta(milliseconds=250), timedelta(seconds=4)


class TaskQueue(Protocol):
    """What is to be done soon. Losing a task costs time, never work; `at` may be ignored when it is
    far off."""

    def ingest(self) -> None: ...

    def advance(self, run_id: int, at: datetime | None = None) -> None: ...

    def notify(self, notification_id: int, at: datetime | None = None) -> None: ...

    def poll(self, chunk: Chunk) -> None: ...


@dataclass(frozen=True)
class Pipeline:
    """The tasks over one set of clients to the world. `watch`: what polls look at; without it the
    world's detectors. `pace`: how this process gets on; a replay's clock knows no lateness.
    """

    world: World
    notifier: Notifier
    queue: TaskQueue
    clock: Callable[[], datetime]
    catalog: Catalog
    watch: Watch | None = None
    pace: Callable[[], overload.Pace] = lambda: overload.UNHINDERED

    def ingest_waiting(self) -> bool:
        """The most urgent batches of the inbox: remember them, start what they call for, tell
        people. False: none waits that no other process has taken."""
        now = self.clock()
        changes = incidents.ingest_waiting(now)
        if changes is None:
            return False
        self._follow_up(changes, now)
        return True

    def ingest(self, wires: Sequence[Mapping[str, Any]]) -> None:
        """The same for a caller's own events."""
        now = self.clock()
        self._follow_up(incidents.ingest_wires(wires, now=now), now)

    def request_drain(self, request: DrainRequest, told_by: Provenance) -> int | None:
        """Takes it, and answers with the incident that it belongs to, None where it has none.
        Raises DrainRequestRefused."""
        event = drain_requests.make_event(request, told_by, now=self.clock())
        self.ingest([to_wire(event)])
        return drain_requests.find_incident(request.node, request.check)

    def format_prospect(self, incident_id: int | None) -> str:
        """What is in the way of what was asked for, or what is done about it. Empty: there is no
        such incident."""
        stop_file = self.world.policy.stop_file
        return runbooks.format_prospect(incident_id, self.clock(), stop_file=stop_file)

    def poll_due(self, tick: timedelta) -> None:
        """Enqueues the polls that are due. `tick` is the time between two calls."""
        now = self.clock()
        paces = self._watch.schedule.list_paces(self._watch, now)
        for chunk in polling.claim(paces, now, tick=tick):
            self.queue.poll(chunk)

    def poll(self, chunk: Chunk) -> None:
        """One detector looks at some targets; what it sees takes the same way as a log line."""
        detector = self._watch.find_detector(chunk.detector)
        if detector is None:
            return
        chunk = polling.begin(chunk, self.clock())
        not_asked: list[str] = []
        for answers in self._watch.poll(detector, chunk.targets, self.clock):
            now = self.clock()
            if chunk.number is not None:
                not_asked += [target.name for target, seen in answers if not seen]
                answers = [answer for answer in answers if answer[1]]
            if answers:
                self._follow_up(self._ingest_polls(chunk, detector, answers, now), now)
        polling.end(chunk, self._watch.get_period(detector), self.clock(), not_asked=not_asked)

    def _ingest_polls(
        self, chunk: Chunk, detector: Detector, answers: Answers, now: datetime
    ) -> list[Change]:
        """Evaluated before the transaction, and once more in it where a round out of turn came
        between."""
        names = [target.name for target, _ in answers]
        every = self._watch.get_period(detector)
        is_overloaded = overload.is_suspending(now)

        def evaluate() -> tuple[list[Round], Judgement]:
            states = polling.get_poll_states(chunk, names)
            rounds = _make_rounds(detector, answers, states)
            judgement = evaluate_rounds(
                rounds,
                self.catalog,
                is_overloaded=is_overloaded,
                is_clock_doubted=_is_clock_doubted(),
            )
            return rounds, judgement

        rounds, judgement = evaluate()
        with transaction.atomic():
            states = [poll.state for poll in rounds]
            if polling.is_overtaken(chunk, states, every, now):
                rounds, judgement = evaluate()
            changes = self._store(rounds, judgement, now, chunk=chunk)
        _look_again_soon(rounds, judgement, now)
        return changes

    def poll_node(self, node: str) -> None:
        """One round of detectors on one node, now and in this process; ends at the first that
        cannot reach it.

        Those that are slow on purpose are left out while their last look is fresh, and those that
        are paused.
        """
        observations: dict[str, list[Observation]] = {}
        last = polling.get_last_polled(node, TargetKind.NODE.value)
        paused = poll_pauses.get_paused_detectors(node, self.clock())
        for target in services.list_targets(TargetKind.NODE, [node]):
            for detector in self._watch.list_due_detectors(target, last, self.clock()):
                if detector.name in paused:
                    continue
                answer = observe_one(target, detector, self._watch.via, self.clock())
                observations[detector.name] = answer
                if is_unreachable(answer):
                    break
        self.ingest_observations(node, observations)

    def ingest_report(
        self,
        node: str,
        observations: Mapping[str, Sequence[Observation]],
        provenance: Provenance = UNKNOWN,
    ) -> list[Change]:
        """What a check saw that the node ran itself: it takes no part from another machine.
        `provenance`: what proved that it is the node."""
        return self.ingest_observations(node, observations, report=provenance)

    def ingest_observations(
        self,
        node: str,
        observations: Mapping[str, Sequence[Observation]],
        *,
        report: Provenance | None = None,
    ) -> list[Change]:
        """What detectors saw of one node, by their names, out of turn. `report`: who told it, where
        the node ran them itself."""
        now = self.clock()
        detectors = {}
        for name in sorted(observations):
            detector = self._watch.find_detector(name)
            if detector is not None:
                detectors[name] = detector
        targets = services.list_targets(TargetKind.NODE, [node])

        def evaluate() -> tuple[list[Round], Judgement]:
            states = polling.get_states_out_of_turn(node, list(detectors))
            rounds = []
            for target in targets:
                for name, detector in detectors.items():
                    answer = list(observations[name])
                    rounds.append(Round(detector, target, answer, states[name], report))
            judgement = evaluate_rounds(rounds, self.catalog, is_clock_doubted=_is_clock_doubted())
            return rounds, judgement

        with transaction.atomic():
            polling.begin_out_of_turn(node)
            rounds, judgement = evaluate()
            if polling.is_overtaken_out_of_turn(node, [poll.state for poll in rounds]):
                rounds, judgement = evaluate()
            is_report = report is not None
            changes = self._store(rounds, judgement, now, chunk=None, is_report=is_report)
        _look_again_soon(rounds, judgement, now)
        self._follow_up(changes, now)
        return changes

    def advance(self, run_id: int) -> None:
        """At most one step of one run; enqueued again at once while it has more to do."""
        now = self.clock()
        runbooks.advance(run_id, now=now, world=self.world)
        if runbooks.is_due(run_id, now=self.clock()):
            self.queue.advance(run_id)
        for next_id in runbooks.start_after(run_id, now=now, world=self.world):
            self.queue.advance(next_id)
        self._notify_due(now)

    def notify(self, notification_id: int) -> None:
        """One message to one channel, and the next one of that channel when its time comes."""
        outcome = notifications.send(
            notification_id, self.notifier, now=self.clock(), run_words=runbooks.format_progress
        )
        if outcome.next_id is not None:
            self.queue.notify(outcome.next_id, outcome.next_at)

    def send_due_messages(self) -> None:
        """Of each channel the first that is due, in this process."""
        for notification_id in notifications.list_due(self.clock()):
            self.notify(notification_id)

    def sweep(self) -> None:
        """Everything whose time has come, whoever forgot to enqueue it. Waits for nobody but the
        database."""
        now = self.clock()
        if incidents.is_inbox_waiting(now - _INGEST_UNHEARD):
            self.queue.ingest()
        self._conclude(now)
        self.evaluate_own_health()
        # First: an incident that asks a person is not settled by its faults' end.
        runbooks.sweep_standstills(now)
        runbooks.sweep_unanswered(now)
        runbooks.sweep_wrong_acts(now)
        runbooks.sweep_left_drains(now)
        runbooks.sweep_second_person(now)
        incidents.sweep(now=now)
        incidents.end_silences(now)
        incidents.vendor_cases_due(now)
        runbooks.evaluate_outcomes(now)
        started = runbooks.start_due(None, now=now, world=self.world)
        for run_id in started:
            self.queue.advance(run_id)
        due = [run_id for run_id in runbooks.get_due_runs(now) if run_id not in started]
        for run_id, at in zip(due, _spread(now, len(due)), strict=True):
            self.queue.advance(run_id, at)
        self._notify_due(now)

    def _conclude(self, now: datetime) -> None:
        """Faults that no single machine tells: ours, the site's networks', questions to people."""

        def reach(names: Sequence[str]) -> Collection[str] | None:
            return slurm_reach.list_heard(names, now)

        pace = self.pace()
        events = incidents.evaluate_overload(now, pace=pace, hears=reach)
        events += incidents.evaluate_management_network(now, hears=reach)
        events += incidents.evaluate_blindness(now)
        events += incidents.conclusions_ended(now)
        events += incidents.reviews_due(now)
        events += runbooks.evaluate_breaker(now, bounds=self.world.policy.bounds)
        if not own_health.has_silent_worker("slurm", now):
            events += self._clock_watch.evaluate(now, pace=pace)
        if events:
            self._ingest(events, now)

    def evaluate_own_health(self) -> None:
        """Whether Kintsugi's own parts are alive and get on; what is not becomes faults. First of
        all, what was due by a clock that was set back since is brought forward with it."""

        def work(now: datetime) -> None:
            events = self._follow_clock(now)
            events += incidents.evaluate_own_health(now, inbox=incidents.read_inbox(now))
            if events:
                self._ingest(events, now)

        self._run_once(own_health.TASK, periods.OWN_HEALTH, work)

    def _follow_clock(self, now: datetime) -> list[FaultEvent]:
        with transaction.atomic():
            step = incidents.get_step_back(now)
            if step is None:
                return []
            runbooks.move_times_back(step, now)
            return incidents.move_times_back(step, now)

    def ask_reach(self) -> None:
        """Which of many silent nodes Slurm still hears; `sweep` concludes from the answer."""

        def work(now: datetime) -> None:
            slurm_reach.ask(
                now, lambda names: node_watch.get_answering_nodes(names, now, self.world)
            )

        self._run_once("ask_reach", periods.ASK_REACH, work)

    def compare(self) -> None:
        """What only several machines' polls show together."""

        def work(now: datetime) -> None:
            events = comparing.compare(now, self.catalog, self.world.slurm)
            if events:
                self._ingest(events, now)
            self._notify_due(now)

        self._run_once("compare", periods.COMPARE, work)

    def update_jobs(self) -> None:
        """Slurm's jobs, and what open incidents cost them."""

        def work(now: datetime) -> None:
            job_watch.update_jobs(now, self.world.slurm)
            self._notify_due(now)

        self._run_once("update_jobs", job_watch.compute_period(self.clock()), work)

    def look_at_nodes(self) -> None:
        """All of Slurm's nodes, for whoever shows or counts them."""

        def work(now: datetime) -> None:
            node_watch.look_at_nodes(now, self.world)

        self._run_once("look_at_nodes", node_watch.compute_period(), work)

    def record_acts(self) -> None:
        """What people did to nodes, for the dry-run report."""

        def work(now: datetime) -> None:
            node_watch.record_acts(now, self.world)

        self._run_once("record_acts", periods.RECORD_ACTS, work)

    def follow_reservations(self) -> None:
        """Slurm's maintenance as windows; what waited for the end of one waits no longer. Our own
        reservations go when nothing needs them."""

        def work(now: datetime) -> None:
            if not reserving.follow_reservations(now, self.world):
                return
            for run_id in runbooks.start_due(None, now=now, world=self.world):
                self.queue.advance(run_id)
            self._notify_due(now)

        self._run_once("follow_reservations", periods.FOLLOW_RESERVATIONS, work)

    def tick(self) -> None:
        """All that the beat calls, one after the other in this process: for a replay."""
        self.ask_reach()
        self.look_at_nodes()
        self.sweep()
        self.compare()
        self.update_jobs()
        self.record_acts()
        self.follow_reservations()

    def _run_once(self, name: str, every: timedelta, work: Callable[[datetime], None]) -> None:
        """In one process at a time and once a period, however many beats call."""
        periodic_tasks.run_once(name, lambda: work(self.clock()), clock=self.clock, every=every)

    @cached_property
    def _watch(self) -> Watch:
        return self.watch or Watch(Transports(shell=self.world.shell), self.world.detectors)

    @cached_property
    def _clock_watch(self) -> ClockWatch:
        return ClockWatch(WAITS_FOR_SLURM)

    def _store(
        self,
        rounds: Sequence[Round],
        judgement: Judgement,
        now: datetime,
        *,
        chunk: Chunk | None,
        is_report: bool = False,
    ) -> list[Change]:
        """In the caller's transaction: what is remembered, when the next look comes, what became of
        the events. What may take the lock of placement comes last."""
        if not rounds:
            return []
        states = [poll.state for poll in rounds]
        every = {poll.detector.name: self._watch.get_period(poll.detector) for poll in rounds}
        if chunk is not None:
            polling.finish(states, every[chunk.detector], now, chunk=chunk)
        else:
            polling.finish_out_of_turn(rounds[0].target.name, states, every, now)
        unread_lines.record(judgement.unread, now)
        changes = store_judgement(judgement, now, may_move_parts=not is_report)
        if judgement.events:
            changes += incidents.ingest(judgement.events, now=now)
        return changes

    def _ingest(self, events: Sequence[FaultEvent], now: datetime) -> None:
        self._follow_up(incidents.ingest(events, now=now), now)

    def _follow_up(self, changes: Sequence[Change], now: datetime) -> None:
        """Starts the repairs that the changes call for, and tells people."""
        touched = {change.incident_id for change in changes if change.incident_id is not None}
        if touched:
            for run_id in runbooks.start_due(sorted(touched), now=now, world=self.world):
                self.queue.advance(run_id)
        if changes:
            self._notify_due(now)

    def _notify_due(self, now: datetime) -> None:
        for notification_id in notifications.list_due(now):
            self.queue.notify(notification_id)


def _look_again_soon(rounds: Sequence[Round], judgement: Judgement, now: datetime) -> None:
    """By all detectors at what answers again."""
    if judgement.revived:
        polling.schedule_answering(rounds[0].target.kind.value, judgement.revived, now)


def _is_clock_doubted() -> bool:
    """Whether this machine's clock and the database's are so far apart that one of them is
    wrong."""
    difference = clock.get_difference()
    return difference is not None and abs(difference) >= own_health.APART


def _spread(now: datetime, count: int) -> list[datetime]:
    """When each of so many runs is to be rung: what waits on many nodes leaves room for a fault
    that comes between."""
    gap = min(_GAP, _SPREAD / count) if count else _GAP
    return [now + position * gap for position in range(count)]


def _make_rounds(
    detector: Detector, answers: Answers, states: Mapping[str, PollState]
) -> list[Round]:
    """Of the targets whose rows the caller holds."""
    return [
        Round(detector, target, answer, states[target.name])
        for target, answer in answers
        if target.name in states
    ]
