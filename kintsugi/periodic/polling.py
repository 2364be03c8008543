"""Rounds of polls: many targets at once through the doors, then judged and remembered together.
Decides nothing.

Only the looks run in threads; the database is asked in the caller's own, once for a whole batch of
targets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from time import monotonic

from detectors import resources
from detectors.catalog.catalog import Catalog
from detectors.detector import Detector, Target, TargetKind, Transports, get_provenance
from detectors.evaluation import judge
from detectors.expected import Expected
from detectors.faults import FaultEvent, Observation
from detectors.logs import log_events
from detectors.logs.unread import UnreadLine
from detectors.polling import observe_one
from detectors.provenance import Provenance
from incidents import services as incidents
from incidents.inventory import services
from incidents.inventory.part_history import Happened
from incidents.polling import polling
from incidents.polling.polling import PollPace, PollState
from incidents.vocabulary.changes import Change, ChangeKind

# A task is ended after two minutes (CELERY_TASK_TIME_LIMIT): what has not come back by then is said
# to hang.
_WITHIN = timedelta(seconds=100)
# What has come back waits for the others this long: a batch costs the database a few statements,
# whatever its size.
_GATHER_S = 0.5
_USUAL = timedelta(minutes=1)
_PLAN_AGAIN = timedelta(minutes=10)
# What is observed of a target or a detector that gave no answer.
_SILENCE = ("target.reachable", "detector.answered")
# How far a node's clock differs from the one that Kintsugi works by.
_DIFFERENCE = "clock.difference_s"
# What a node's own check may say of its boot, and no kernel does: /proc/sys/kernel/random/boot_id
# has 36 characters, the column 64; the time of a boot further back is none that Python knows.
_LONGEST_BOOT_ID = 64
_LONGEST_UPTIME = timedelta(days=36_500)


@dataclass(frozen=True)
class Watch:
    """What is watched through which doors. `shortest`: no detector looks more often; `sites`:
    Slurm, Prometheus."""

    via: Transports
    detectors: Sequence[Detector]
    shortest: timedelta = timedelta(0)
    sites: Sequence[Target] = ()
    schedule: Schedule = field(default_factory=lambda: Schedule())

    def find_detector(self, name: str) -> Detector | None:
        """None for one that this process does not have: a task of another version rang."""
        return next((detector for detector in self.detectors if detector.name == name), None)

    def get_period(self, detector: Detector) -> timedelta:
        return max(detector.every, self.shortest)

    def list_due_detectors(
        self, target: Target, last: Mapping[str, datetime], now: datetime
    ) -> list[Detector]:
        """Those that look at a node out of turn: all, but for slow ones that have looked within
        half their period."""
        wanted = []
        for detector in self.detectors:
            if detector.kind is not TargetKind.NODE:
                continue
            last_at = last.get(detector.name) if detector.every > _USUAL else None
            is_fresh = last_at is not None and now - last_at < detector.every / 2
            if not is_fresh and detector.wants(target):
                wanted.append(detector)
        return wanted

    def list_paces(self) -> list[PollPace]:
        """Which detector looks at what, by the inventory and by what each detector wants; one
        without targets too."""
        kinds = {detector.kind for detector in self.detectors}
        by_kind = {kind: self.list_targets(kind) for kind in kinds}
        paces = []
        for detector in self.detectors:
            targets = by_kind[detector.kind]
            names = frozenset(target.name for target in targets if detector.wants(target))
            every = self.get_period(detector)
            paces.append(PollPace(detector.name, detector.kind.value, every, names))
        return paces

    def list_targets(self, kind: TargetKind, names: Sequence[str] | None = None) -> list[Target]:
        if kind is not TargetKind.SITE:
            return services.list_targets(kind, names)
        if not self.sites:
            return []
        declared = {site.name: site.expected for site in services.list_targets(kind)}
        wanted = [site for site in self.sites if names is None or site.name in names]
        return [_merge_expected(site, declared.get(site.name)) for site in wanted]

    def poll(
        self, detector: Detector, names: Sequence[str], clock: Callable[[], datetime]
    ) -> Iterator[list[tuple[Target, list[Observation]]]]:
        """What a detector sees of these targets, in batches as they answer: a dead one holds no
        other up."""
        targets = self.list_targets(detector.kind, names) if names else []
        if len(targets) == 1:
            yield [(targets[0], observe_one(targets[0], detector, self.via, clock()))]
            return
        threads = max(1, len(targets))
        pool = ThreadPoolExecutor(threads, thread_name_prefix=f"poll-{detector.name}")
        try:
            waiting = {}
            for target in targets:
                waiting[pool.submit(_observe, target, detector, self.via, clock)] = target
            yield from _gather(waiting, detector, clock)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _merge_expected(site: Target, declared: Expected | None) -> Target:
    """The site's own addresses and settings go before what the inventory declares of it."""
    if declared is None:
        return site
    own = site.expected
    all_settings = {**declared.settings, **own.settings}
    urls = {**declared.urls, **own.urls}
    return replace(site, expected=replace(declared, settings=all_settings, urls=urls))


@dataclass
class Schedule:
    """Which paces this process has brought the schedule in the database up to, by which inventory,
    and when."""

    marks: tuple[object, ...] = ()
    planned_at: datetime | None = None
    planned: list[PollPace] = field(default_factory=list)

    def list_paces(self, watch: Watch, now: datetime) -> list[PollPace]:
        """Planned anew when a machine has come or gone, and from time to time: what detectors want
        changes too."""
        marks = polling.get_inventory_marks()
        is_old = self.planned_at is None or now - self.planned_at >= _PLAN_AGAIN
        if is_old or marks != self.marks:
            self.planned = watch.list_paces()
            polling.plan(self.planned, now)
            self.marks, self.planned_at = marks, now
        return self.planned


def _observe(
    target: Target, detector: Detector, via: Transports, clock: Callable[[], datetime]
) -> list[Observation]:
    return observe_one(target, detector, via, clock())


def _gather(
    waiting: dict[Future[list[Observation]], Target],
    detector: Detector,
    clock: Callable[[], datetime],
) -> Iterator[list[tuple[Target, list[Observation]]]]:
    deadline = monotonic() + _WITHIN.total_seconds()
    while waiting and monotonic() < deadline:
        wait(waiting, timeout=_GATHER_S)
        if not any(future.done() for future in waiting):
            wait(waiting, timeout=max(0.0, deadline - monotonic()), return_when=FIRST_COMPLETED)
        done = [future for future in waiting if future.done()]
        if done:
            yield [(waiting.pop(future), future.result()) for future in done]
    if waiting:
        targets = waiting.values()
        yield [(target, [_build_no_answer(target, detector, clock())]) for target in targets]


def _build_no_answer(target: Target, detector: Detector, now: datetime) -> Observation:
    text = f"it did not come back within {_WITHIN.total_seconds():g} s"
    attributes = {"detector": detector.name, "text": text}
    return Observation(target.resource, "detector.answered", False, now, attributes)


@dataclass(frozen=True)
class Round:
    """What one detector saw of one target, and what it remembered of the round before.

    `provenance`: who told what it saw, where it did not look itself.
    """

    detector: Detector
    target: Target
    observations: list[Observation]
    state: PollState
    provenance: Provenance | None = None

    @property
    def is_reachable(self) -> bool | None:
        """None: it was not asked, since the site has configured no way to; it is asked ever more
        seldom too."""
        return not is_unreachable(self.observations) if self.observations else None


def is_unreachable(observations: Sequence[Observation]) -> bool:
    """`observe_one` says it last."""
    if not observations:
        return False
    last = observations[-1]
    return last.metric == "target.reachable" and last.value is False


@dataclass(frozen=True)
class Restart:
    """A boot of a node that was not known yet."""

    node: str
    booted_at: datetime
    boot_id: str


@dataclass(frozen=True)
class Judgement:
    """What rounds say: fault events, boots, facts to be kept, the targets that were dead and answer
    again, and log lines that nobody reads.

    The rounds' own rows hold what is remembered next.
    """

    events: list[FaultEvent]
    restarts: list[Restart]
    observations: list[Observation]
    revived: list[str]
    unread: list[UnreadLine]


def evaluate_rounds(
    rounds: Sequence[Round],
    catalog: Catalog,
    *,
    is_overloaded: bool = False,
    is_clock_doubted: bool = False,
) -> Judgement:
    """The fault events of these rounds, whose rows now hold what is to be remembered. Reads only.

    Needs no transaction: it computes for long, and an embedded database lets one write at a time.
    While we are overloaded ourselves, who was silent is passed over: neither counted nor forgotten.
    So is how far clocks differ from ours while ours may be the one that is wrong.
    """
    if is_overloaded:
        rounds = [drop_silence(poll) for poll in rounds]
    if is_clock_doubted:
        rounds = [_drop_clock_differences(poll) for poll in rounds]
    observations: list[Observation] = []
    for poll in rounds:
        observations += poll.observations
    owners = {resources.owner(observation.resource) for observation in observations}
    active = polling.get_active_fingerprints(owners)
    hosts = sorted({poll.target.name for poll in rounds if poll.target.kind is TargetKind.NODE})
    boots = polling.get_boots(hosts) if hosts else {}
    restarts = _find_restarts(observations, boots)
    booted = {name: at for name, (_, at) in boots.items() if at is not None}
    booted |= {restart.node: restart.booted_at for restart in restarts}
    revived: set[str] = set()
    events: list[FaultEvent] = []
    unread: list[UnreadLine] = []
    for poll in rounds:
        if poll.state.failures and poll.is_reachable:
            revived.add(poll.target.name)
        is_node = poll.target.kind is TargetKind.NODE
        booted_at = booted.get(poll.target.name) if is_node else None
        compared = list(poll.detector.compare(poll.observations, poll.state.memory.samples))
        lines = [comparison for comparison in compared if comparison.metric == log_events.LINE]
        unread += log_events.find_unread(lines)
        events += _evaluate_round(poll, compared, active, catalog, booted_at)
        poll.state.failures = _count_failures(poll, is_overloaded=is_overloaded)
    return Judgement(events, restarts, observations, sorted(revived), unread)


def _evaluate_round(
    poll: Round,
    compared: Sequence[Observation],
    active: Collection[str],
    catalog: Catalog,
    booted_at: datetime | None,
) -> list[FaultEvent]:
    """Its fault events; its state holds what is to be remembered. `compared`: what its detector
    says beside the round before."""
    state = poll.state
    state.seen_at = max((seen.observed_at for seen in poll.observations), default=None)
    result = judge.judge(
        [*poll.observations, *compared],
        state.memory,
        active=active,
        catalog=catalog,
        booted_at=booted_at,
        keeps=poll.detector.keeps,
    )
    state.memory = result.memory
    lines = [comparison for comparison in compared if comparison.metric == log_events.LINE]
    provenance = poll.provenance or get_provenance(poll.detector, poll.target)
    events = [replace(event, provenance=provenance) for event in result.events]
    return [*log_events.of_lines(lines, sender=provenance), *events]


def drop_silence(poll: Round) -> Round:
    """What was answered, and nothing of what was not."""
    answered = [observation for observation in poll.observations if not _is_silence(observation)]
    return replace(poll, observations=answered)


def _is_silence(observation: Observation) -> bool:
    return observation.metric in _SILENCE and observation.value is False


def _drop_clock_differences(poll: Round) -> Round:
    kept = [observation for observation in poll.observations if observation.metric != _DIFFERENCE]
    return replace(poll, observations=kept)


def _count_failures(poll: Round, *, is_overloaded: bool) -> int:
    if poll.is_reachable:
        return 0
    return poll.state.failures if is_overloaded else poll.state.failures + 1


def store_judgement(
    judgement: Judgement, now: datetime, *, may_move_parts: bool = True
) -> list[Change]:
    """Keeps what rounds said of boots, planned work and inventory; says what a new boot changed.

    In the caller's transaction. What nodes are worked on as planned makes a window: their faults
    are recorded, and kept from people.
    """
    changes: list[Change] = []
    for restart in judgement.restarts:
        changes += incidents.record_node_restart(
            restart.node, booted_at=restart.booted_at, boot_id=restart.boot_id, now=now
        )
    plans = _find_plans(judgement.observations)
    if plans:
        polling.store_plans(plans, now)
        incidents.follow_states(now)
    entries = services.store_observations(
        judgement.observations, now, may_move_parts=may_move_parts
    )
    for entry in entries:
        if entry.happened is Happened.NOT_BELIEVED:
            changes.append(Change(None, None, ChangeKind.NOT_BELIEVED, entry.text))
    return changes


def _find_restarts(
    observations: Sequence[Observation], boots: Mapping[str, tuple[str, datetime | None]]
) -> list[Restart]:
    """When nodes booted whose boot was not known yet (node.boot_id, node.uptime_s)."""
    booted = _compute_boot_times(observations)
    restarts = []
    for observation in observations:
        boot_id = str(observation.value or "")
        if observation.metric != "node.boot_id" or not 0 < len(boot_id) <= _LONGEST_BOOT_ID:
            continue
        name = resources.host_of(observation.resource) or ""
        booted_at = booted.get(observation.resource)
        if name in boots and booted_at is not None and boot_id != boots[name][0]:
            restarts.append(Restart(name, booted_at, boot_id))
    return restarts


def _compute_boot_times(observations: Sequence[Observation]) -> dict[str, datetime]:
    times = {}
    for observation in observations:
        uptime = observation.value
        if observation.metric != "node.uptime_s" or not isinstance(uptime, int | float):
            continue
        if 0 <= uptime < _LONGEST_UPTIME.total_seconds():
            times[observation.resource] = observation.observed_at - timedelta(seconds=uptime)
    return times


def _find_plans(observations: Sequence[Observation]) -> dict[str, str]:
    """Why each node is worked on as planned, as Slurm says; empty for one that is not."""
    plans = {}
    for observation in observations:
        is_planned = observation.value
        if observation.metric != "slurm.is_planned" or not isinstance(is_planned, bool):
            continue
        host = resources.host_of(observation.resource)
        if host is not None:
            why = observation.attributes.get("why") or "planned"
            plans[host] = why if is_planned else ""
    return plans
