"""Rounds of polls: many targets at once through the doors, then judged and remembered together.
Decides nothing.

Only the looks run in threads; the database is asked in the caller's own, once for a whole batch of
targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from time import monotonic

from detectors import resources
from detectors.catalog.catalog import Catalog
from detectors.detector import Detector, Target, TargetKind, Transports
from detectors.evaluation import judge
from detectors.expected import Expected
from detectors.faults import FaultEvent, Observation
from detectors.logs import log_events
from detectors.polling import observe_one
from incidents import services as incidents
from incidents.inventory import services
from incidents.polling import polling
from incidents.polling.polling import PollPace, PollState
from incidents.vocabulary.changes import Change

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


@dataclass(frozen=True)
class Watch:
    """What is watched through which doors. `shortest`: no detector looks more often; `sites`:
    Slurm, Prometheus."""

    via: Transports
    detectors: Sequence[Detector]
    shortest: timedelta = timedelta(0)
    sites: Sequence[Target] = ()
    schedule: Schedule = field(default_factory=lambda: Schedule())

    def detector(self, name: str) -> Detector | None:
        """None for one that this process does not have: a task of another version rang."""
        return next((detector for detector in self.detectors if detector.name == name), None)

    def every(self, detector: Detector) -> timedelta:
        return max(detector.every, self.shortest)

    def of_node(
        self, target: Target, last: Mapping[str, datetime], now: datetime
    ) -> list[Detector]:
        """Those that look at a node out of turn: all, but for slow ones that have looked within
        half their period."""
        slow = [d for d in self.detectors if d.every > _USUAL and d.name in last]
        fresh = {d.name for d in slow if now - last[d.name] < d.every / 2}
        return [
            d
            for d in self.detectors
            if d.kind is TargetKind.NODE and d.name not in fresh and d.wants(target)
        ]

    def paces(self) -> list[PollPace]:
        """Which detector looks at what, by the inventory and by what each detector wants; one
        without targets too."""
        by_kind = {
            kind: self.targets(kind) for kind in {detector.kind for detector in self.detectors}
        }
        return [
            PollPace(
                detector.name,
                detector.kind.value,
                self.every(detector),
                frozenset(
                    target.name for target in by_kind[detector.kind] if detector.wants(target)
                ),
            )
            for detector in self.detectors
        ]

    def targets(self, kind: TargetKind, names: Sequence[str] | None = None) -> list[Target]:
        if kind is not TargetKind.SITE:
            return services.targets(kind, names)
        declared = (
            {site.name: site.expected for site in services.targets(kind)} if self.sites else {}
        )
        return [
            _with(site, declared.get(site.name))
            for site in self.sites
            if names is None or site.name in names
        ]

    def looks(
        self, detector: Detector, names: Sequence[str], clock: Callable[[], datetime]
    ) -> Iterator[list[tuple[Target, list[Observation]]]]:
        """What a detector sees of these targets, in batches as they answer: a dead one holds no
        other up."""
        targets = self.targets(detector.kind, names) if names else []
        if len(targets) == 1:
            yield [(targets[0], observe_one(targets[0], detector, self.via, clock()))]
            return
        pool = ThreadPoolExecutor(
            max_workers=max(1, len(targets)), thread_name_prefix=f"poll-{detector.name}"
        )
        try:
            waiting = {
                pool.submit(_look, target, detector, self.via, clock): target for target in targets
            }
            yield from _gathered(waiting, detector, clock)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _with(site: Target, declared: Expected | None) -> Target:
    """The site's own addresses and settings go before what the inventory declares of it."""
    if declared is None:
        return site
    own = site.expected
    told = replace(
        declared, settings={**declared.settings, **own.settings}, urls={**declared.urls, **own.urls}
    )
    return replace(site, expected=told)


@dataclass
class Schedule:
    """Which paces this process has brought the schedule in the database up to, by which inventory,
    and when."""

    marks: tuple[object, ...] = ()
    planned_at: datetime | None = None
    planned: list[PollPace] = field(default_factory=list)

    def paces(self, watch: Watch, now: datetime) -> list[PollPace]:
        """Planned anew when a machine has come or gone, and from time to time: what detectors want
        changes too."""
        marks = polling.marks()
        if self.planned_at is None or marks != self.marks or now - self.planned_at >= _PLAN_AGAIN:
            self.planned = watch.paces()
            polling.plan(self.planned, now)
            self.marks, self.planned_at = marks, now
        return self.planned


def _look(
    target: Target, detector: Detector, via: Transports, clock: Callable[[], datetime]
) -> list[Observation]:
    return observe_one(target, detector, via, clock())


def _gathered(
    waiting: dict[Future[list[Observation]], Target],
    detector: Detector,
    clock: Callable[[], datetime],
) -> Iterator[list[tuple[Target, list[Observation]]]]:
    deadline = monotonic() + _WITHIN.total_seconds()
    while waiting and monotonic() < deadline:
        wait(waiting, timeout=_GATHER_S)
        if not any(future.done() for future in waiting):
            wait(waiting, timeout=max(0.0, deadline - monotonic()), return_when=FIRST_COMPLETED)
        batch = [
            (waiting.pop(future), future.result()) for future in list(waiting) if future.done()
        ]
        if batch:
            yield batch
    if waiting:
        text = f"it did not come back within {_WITHIN.total_seconds():g} s"
        attributes = {"detector": detector.name, "text": text}
        yield [
            (
                target,
                [Observation(target.resource, "detector.answered", False, clock(), attributes)],
            )
            for target in waiting.values()
        ]


@dataclass(frozen=True)
class Round:
    """What one detector saw of one target, and what it remembered of the round before."""

    detector: Detector
    target: Target
    observations: list[Observation]
    kept: PollState

    @property
    def is_reachable(self) -> bool | None:
        """None: it was not asked, since the site has configured no way to; it is asked ever more
        seldom too."""
        return not is_unreachable(self.observations) if self.observations else None


def is_unreachable(observations: Sequence[Observation]) -> bool:
    """`observe_one` says it last."""
    last = observations[-1] if observations else None
    return last is not None and last.metric == "target.reachable" and last.value is False


@dataclass(frozen=True)
class Restart:
    """A boot of a node that was not known yet."""

    node: str
    booted_at: datetime
    boot_id: str


@dataclass(frozen=True)
class Judgement:
    """What rounds say: fault events, boots, facts to be kept, and the targets that were dead and
    answer again.

    The rounds' own rows hold what is remembered next.
    """

    events: list[FaultEvent]
    restarts: list[Restart]
    seen: list[Observation]
    revived: list[str]


def evaluate_rounds(
    rounds: Sequence[Round], catalog: Catalog, *, is_overloaded: bool = False
) -> Judgement:
    """The fault events of these rounds, whose rows now hold what is to be remembered. Reads only.

    Needs no transaction: it computes for long, and an embedded database lets one write at a time.
    While we are overloaded ourselves, who was silent is passed over: neither counted nor forgotten.
    """
    if is_overloaded:
        rounds = [without_silence(one) for one in rounds]
    seen = [observation for one in rounds for observation in one.observations]
    revived = sorted({one.target.name for one in rounds if one.kept.failures and one.is_reachable})
    active = polling.get_active_fingerprints(
        {resources.owner(observation.resource) for observation in seen}
    )
    hosts = sorted({one.target.name for one in rounds if one.target.kind is TargetKind.NODE})
    known = polling.boots(hosts) if hosts else {}
    restarts = _restarts(seen, known)
    booted = {name: at for name, (_, at) in known.items() if at is not None}
    booted |= {restart.node: restart.booted_at for restart in restarts}
    events: list[FaultEvent] = []
    for one in rounds:
        compared = list(one.detector.compare(one.observations, one.kept.memory.samples))
        result = judge.judge(
            [*one.observations, *compared],
            one.kept.memory,
            active=active,
            catalog=catalog,
            booted_at=booted.get(one.target.name) if one.target.kind is TargetKind.NODE else None,
            keeps=one.detector.keeps,
        )
        events += log_events.of_lines([line for line in compared if line.metric == log_events.LINE])
        one.kept.memory = result.memory
        one.kept.failures = _failures(one, is_overloaded=is_overloaded)
        events += result.events
    return Judgement(events, restarts, seen, revived)


def without_silence(one: Round) -> Round:
    """What was answered, and nothing of what was not."""
    heard = [
        seen for seen in one.observations if not (seen.metric in _SILENCE and seen.value is False)
    ]
    return replace(one, observations=heard)


def _failures(one: Round, *, is_overloaded: bool) -> int:
    if one.is_reachable:
        return 0
    return one.kept.failures if is_overloaded else one.kept.failures + 1


def learn(judgement: Judgement, now: datetime) -> list[Change]:
    """Keeps what rounds said of boots, planned work and inventory; says what a new boot changed.

    In the caller's transaction. What nodes are worked on as planned makes a window: their faults
    are recorded, and kept from people.
    """
    changes: list[Change] = []
    for restart in judgement.restarts:
        changes += incidents.node_restarted(
            restart.node, booted_at=restart.booted_at, boot_id=restart.boot_id, now=now
        )
    plans = _plans(judgement.seen)
    if plans:
        polling.learn_plans(plans, now)
        incidents.follow_states(now)
    services.learn(judgement.seen, now)
    return changes


def _restarts(
    seen: Sequence[Observation], known: Mapping[str, tuple[str, datetime | None]]
) -> list[Restart]:
    """When nodes booted whose boot was not known yet (node.boot_id, node.uptime_s)."""
    uptimes = {
        o.resource: o
        for o in seen
        if o.metric == "node.uptime_s" and isinstance(o.value, int | float)
    }
    restarts = []
    for told in [o for o in seen if o.metric == "node.boot_id" and o.value]:
        name, uptime = resources.host_of(told.resource) or "", uptimes.get(told.resource)
        if name not in known or uptime is None or str(told.value) == known[name][0]:
            continue
        booted_at = uptime.observed_at - timedelta(seconds=float(uptime.value))
        restarts.append(Restart(name, booted_at, str(told.value)))
    return restarts


def _plans(seen: Sequence[Observation]) -> dict[str, str]:
    """Why each node is worked on as planned, as Slurm says; empty for one that is not."""
    told = [o for o in seen if o.metric == "slurm.is_planned" and isinstance(o.value, bool)]
    known = [
        (resources.host_of(o.resource), (o.attributes.get("why") or "planned") if o.value else "")
        for o in told
    ]
    return {host: why for host, why in known if host is not None}
