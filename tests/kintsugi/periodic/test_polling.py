"""Polls of chunks: many targets at once, judged with a memory that outlives the process, honest
about who is silent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, ClassVar

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from detectors.catalog import catalog
from detectors.catalog.catalog import Catalog
from detectors.catalog.rules import ThresholdRule, When
from detectors.detector import (
    Detector,
    DetectorError,
    NotConfigured,
    NothingToCompare,
    OneByOne,
    Output,
    Reading,
    Sample,
    Target,
    TargetKind,
    Transports,
    Unreachable,
)
from detectors.faults import Observation
from incidents.models import Fault, Incident, Node, Notification, Poll, PollChunk
from incidents.polling import polling
from incidents.polling.polling import Chunk
from kintsugi import clock
from kintsugi.periodic.polling import Watch
from kintsugi.pipeline import Pipeline
from runbooks.step import World
from tests.builders import NOW, a_fault, a_node
from tests.runbooks.site import Site
from tests.services.patience import patient

pytestmark = pytest.mark.django_db
MINUTE, TICK = timedelta(minutes=1), timedelta(seconds=5)


class NoDoors(OneByOne):
    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        raise NotConfigured("none")


@dataclass
class Told(NothingToCompare):
    """A detector that sees what a test tells it: observations by target, or what it raises."""

    seen: dict[str, list[tuple[str, Any]] | Exception] = field(default_factory=dict)
    before: Callable[[Target], None] = lambda target: None

    name: ClassVar[str] = "told"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = MINUTE

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        self.before(target)
        told = self.seen.get(target.name, [])
        if isinstance(told, Exception):
            raise told
        return Reading(self.name, target, now)

    def parse(self, reading: Reading) -> Iterator[Observation]:
        told = self.seen.get(reading.target.name, [])
        for metric, value in told if isinstance(told, list) else ():
            yield reading.saw(metric, value)
        yield reading.answered()

    def sniff(self, text: bytes) -> str:
        return "told"


class SiteTold(Told):
    """Of Slurm: it speaks of nodes."""

    name: ClassVar[str] = "site_told"
    kind: ClassVar[TargetKind] = TargetKind.SITE

    def parse(self, reading: Reading) -> Iterator[Observation]:
        told = self.seen.get(reading.target.name, [])
        for resource, value in told if isinstance(told, list) else ():
            yield reading.saw("slurm.is_planned", value, resource)
        yield reading.answered()


@dataclass
class Rings:
    """Keeps what was rung."""

    polls: list[Chunk] = field(default_factory=list)

    def ingest(self) -> None: ...

    def advance(self, run_id: int, at: datetime | None = None) -> None: ...

    def notify(self, notification_id: int, at: datetime | None = None) -> None: ...

    def poll(self, chunk: Chunk) -> None:
        self.polls.append(chunk)


def with_a_counter() -> Catalog:
    """The catalogue, with a rule for a counter of these tests."""
    rows = catalog.load()
    rule = ThresholdRule("told.errors", "gpu.count_mismatch", When.RISES, "these tests", raise_at=5)
    return Catalog(rows.types, rows.signatures, {**rows.rules, rule.metric: (rule,)})


class House:
    """Some nodes, one detector that tells what a test says, and a clock that it turns."""

    def __init__(self, *detectors: Detector, nodes: int = 3) -> None:
        self.now = NOW
        self.names = [f"gn{number:03}" for number in range(1, nodes + 1)]
        for name in self.names:
            a_node(name)
        self.world: World = Site(nodes=0).world
        self.detectors = detectors
        self.sites = (Target("slurm", "localhost", kind=TargetKind.SITE),)
        self.start()

    def start(self) -> None:
        """A new process: nothing but the database is kept."""
        self.ring = Rings()
        watch = Watch(Transports(NoDoors()), self.detectors, sites=self.sites)
        self.pipeline = Pipeline(
            self.world,
            None,
            self.ring,
            lambda: self.now,
            with_a_counter(),
            watch,  # type: ignore[arg-type]
        )

    def rounds(self, count: int = 1) -> None:
        """So many periods: everything that falls due is polled."""
        for _ in range(count):
            for _ in range(round(MINUTE / TICK)):
                self.now += TICK
                self.pipeline.poll_due(TICK)
                while self.ring.polls:
                    self.pipeline.poll(self.ring.polls.pop(0))

    def standing(self) -> set[tuple[str, str]]:
        return set(Fault.objects.filter(is_active=True).values_list("fault_type", "owner"))


GPU_LOST = [("gpu.present", False)]
WELL = [("gpu.present", True)]


def test_what_a_chunk_sees_becomes_faults_and_ends_with_them() -> None:
    told = Told({"gn002": list(GPU_LOST)})
    house = House(told)
    house.rounds(2)
    assert house.standing() == {("gpu.lost", "node/gn002")}
    told.seen["gn002"] = list(WELL)
    house.rounds(1)
    assert house.standing() == set()


def test_a_polled_fault_and_its_incident_say_when_it_was_last_seen_well() -> None:
    told = Told({"gn002": list(WELL)})
    house = House(told)
    house.rounds(2)
    last_good = polling.get_last_polled("gn002", "node")["told"]
    assert last_good is not None
    told.seen["gn002"] = Unreachable("gn002 (10.0.0.2:22): timed out")
    house.rounds(1)
    told.seen["gn002"] = list(GPU_LOST)
    house.rounds(2)
    fault, incident = Fault.objects.get(fault_type="gpu.lost"), Incident.objects.get()
    assert fault.last_known_good_at == incident.last_known_good_at == last_good
    assert last_good < incident.onset_at - MINUTE


def test_a_target_that_does_not_answer_twice_in_a_row_is_a_fault() -> None:
    told = Told({"gn002": Unreachable("gn002 (10.0.0.2:22): timed out")})
    house = House(told)
    house.rounds(1)
    assert house.standing() == set()
    house.rounds(2)
    assert house.standing() == {("target.unreachable", "node/gn002")}
    assert "10.0.0.2:22" in Fault.objects.get().evidence.all()[0].excerpt
    del told.seen["gn002"]
    house.rounds(2)
    assert house.standing() == set()


def test_three_bad_answers_in_a_row_are_a_fault_of_the_detector_with_what_came_back() -> None:
    told = Told({"gn001": DetectorError("nvidia-smi on gn001: status 1: Please run as root")})
    house = House(told)
    house.rounds(2)
    assert house.standing() == set()
    house.rounds(2)
    fault = Fault.objects.get()
    assert (fault.fault_type, fault.qualifier) == ("detector.silent", "told")
    assert "Please run as root" in fault.evidence.all()[0].excerpt


def test_one_good_answer_in_between_begins_the_count_anew() -> None:
    told = Told()
    house = House(told, nodes=1)
    for number in range(6):
        told.seen["gn001"] = [] if number % 2 else DetectorError("no")
        house.rounds(1)
    assert house.standing() == set()


def test_counters_are_remembered_when_the_process_starts_anew() -> None:
    told = Told({"gn001": [("told.errors", 100)]})
    house = House(told)
    house.rounds(2)
    house.start()
    told.seen["gn001"] = [("told.errors", 107)]
    house.rounds(1)
    assert house.standing() == {("gpu.count_mismatch", "node/gn001")}


def test_the_first_sight_of_a_counter_is_a_baseline_however_high() -> None:
    house = House(Told({"gn001": [("told.errors", 10**12)]}))
    house.rounds(3)
    assert house.standing() == set()


def test_what_is_not_configured_is_neither_silent_nor_healthy() -> None:
    told = Told({name: NotConfigured("no key") for name in ("gn001", "gn002", "gn003")})
    house = House(told)
    a_fault("gpu.lost", "node/gn001", at=NOW)
    house.rounds(4)
    assert house.standing() == {("gpu.lost", "node/gn001")}


def test_faults_of_a_node_in_planned_work_are_recorded_and_told_when_it_is_over() -> None:
    slurm = SiteTold({"slurm": [("node/gn001", True), ("node/gn002", False)]})  # type: ignore[dict-item]
    told = Told()
    house = House(slurm, told)
    house.rounds(1)
    told.seen |= {"gn001": list(GPU_LOST), "gn002": list(GPU_LOST)}
    house.rounds(2)
    assert house.standing() == {("gpu.lost", "node/gn001"), ("gpu.lost", "node/gn002")}
    assert owners_told() == {"node/gn002"}
    slurm.seen["slurm"] = [("node/gn001", False), ("node/gn002", False)]
    house.rounds(1)
    assert owners_told() == {"node/gn002"}
    house.now += polling.SETTLES
    house.pipeline.sweep()
    assert owners_told() == {"node/gn001", "node/gn002"}


def owners_told() -> set[str]:
    return set(Notification.objects.values_list("incident__owner", flat=True))


def test_a_new_boot_ends_what_a_reboot_ends() -> None:
    told = Told({"gn001": [("node.boot_id", "b1"), ("node.uptime_s", 86400.0)]})
    house = House(told)
    house.rounds(1)
    a_fault("gpu.xid.79", "node/gn001/gpu/0000:19:00.0", at=house.now)
    told.seen["gn001"] = [("node.boot_id", "b2"), ("node.uptime_s", 1.0)]
    house.now += MINUTE
    house.rounds(1)
    assert house.standing() == set()
    node = Node.objects.get(name="gn001")
    assert node.boot_id == "b2"
    assert node.boot_seen_at is not None
    assert node.boot_seen_at > NOW + MINUTE


def test_a_detector_may_be_silent_for_a_while_after_a_boot() -> None:
    told = Told({"gn001": DetectorError("drivers are loading")})
    house = House(told, nodes=1)
    Node.objects.filter(name="gn001").update(boot_id="b1", boot_seen_at=NOW)
    house.rounds(5)
    assert house.standing() == set()
    house.rounds(5)
    assert house.standing() == {("detector.silent", "node/gn001")}


def test_a_dead_target_holds_no_other_up() -> None:
    answered: dict[str, float] = {}
    gone = threading.Event()
    given_up: list[float] = []

    def wait(target: Target) -> None:
        if target.name == "gn001":
            gone.wait(patient(3))
            given_up.append(monotonic())
            raise Unreachable("gn001: timed out")
        answered[target.name] = monotonic()

    house = House(Told(before=wait), nodes=20)
    seen: list[str] = []
    for batch in house.pipeline.watch.poll(house.detectors[0], house.names, lambda: NOW):  # type: ignore[union-attr]
        seen += [target.name for target, _ in batch]
        if len(seen) == 19:
            assert "gn001" not in seen
            assert given_up == []
            gone.set()
    assert sorted(seen) == house.names
    assert max(answered.values()) < given_up[0]


def test_a_chunk_costs_the_database_the_same_whatever_its_size() -> None:
    counts = []
    for size in (2, 10):
        Node.objects.all().delete()
        Poll.objects.all().delete()
        PollChunk.objects.all().delete()
        house = House(Told(), nodes=size)
        polling.plan(house.pipeline.watch.list_paces(), NOW)  # type: ignore[union-attr]
        PollChunk.objects.update(next_poll_at=NOW)
        (chunk,) = polling.claim(house.pipeline.watch.list_paces(), NOW, tick=TICK)  # type: ignore[union-attr]
        with CaptureQueriesContext(connection) as queries:
            house.pipeline.poll(chunk)
        counts.append(
            len([query for query in queries if "UPDATE incidents_poll" not in query["sql"]])
        )
    # On PostgreSQL one of them is SET LOCAL, which asks no table.
    assert counts[0] == counts[1] <= 27


def test_a_node_that_comes_into_the_inventory_is_polled_and_one_that_leaves_is_not() -> None:
    house = House(Told())
    house.rounds(1)
    a_node("gn009")
    Node.objects.filter(name="gn001").delete()
    house.rounds(2)
    polled = set(Poll.objects.exclude(polled_at=None).values_list("target", flat=True))
    assert polled == {"gn002", "gn003", "gn009"}


def test_readings_that_a_node_pushes_are_judged_with_the_same_memory() -> None:
    house = House(Told())
    for _ in range(2):
        house.now += MINUTE
        seen = [
            Observation("node/gn001", "detector.answered", False, house.now, {"detector": "told"})
        ]
        house.pipeline.ingest_observations("gn001", {"told": seen})
    assert house.standing() == set()
    house.now += MINUTE
    seen = [Observation("node/gn001", "detector.answered", False, house.now, {"detector": "told"})]
    house.pipeline.ingest_observations("gn001", {"told": seen})
    assert house.standing() == {("detector.silent", "node/gn001")}


def tell_of_clock(house: House, ahead_s: float) -> None:
    """How far the node's clock is from ours, in two rounds."""
    for _ in range(2):
        house.now += MINUTE
        seen = [
            Observation("node/gn001", "clock.difference_s", ahead_s, house.now),
            Observation("node/gn001", "target.reachable", True, house.now),
        ]
        house.pipeline.ingest_observations("gn001", {"told": seen})


def test_a_nodes_clock_is_not_called_wrong_by_a_clock_that_may_be_wrong_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database's was set forward by an hour, and this machine's was not."""
    house = House(Told())
    monkeypatch.setattr(clock, "_ask_database", lambda: datetime.now(UTC) + 60 * MINUTE)
    try:
        clock.synchronise()
        tell_of_clock(house, 3600.0)
        assert house.standing() == set()
        monkeypatch.setattr(clock, "_ask_database", lambda: datetime.now(UTC))
        clock.synchronise()
        tell_of_clock(house, 3600.0)
        assert house.standing() == {("clock.skewed", "node/gn001")}
    finally:
        clock.forget()


def posted(house: House, errors: int, *, detector: str = "told") -> None:
    """The node's own check, a minute later."""
    house.now += MINUTE
    seen = [
        Observation("node/gn001", "told.errors", errors, house.now),
        Observation("node/gn001", "target.reachable", True, house.now),
    ]
    house.pipeline.ingest_observations("gn001", {detector: seen})


def test_a_post_that_says_nothing_new_writes_no_memory_and_is_the_last_look() -> None:
    house = House(Told(), nodes=1)
    posted(house, 7)
    before = list(Poll.objects.values())
    for _ in range(3):
        posted(house, 7)
    assert list(Poll.objects.values()) == before
    assert polling.get_last_polled("gn001", "node") == {"told": house.now}
    ((_, _, sample),) = polling.iterate_samples(["told"], "node", ["gn001"])
    assert sample == Sample(7, house.now)


def test_the_last_look_of_a_detector_that_does_not_post_this_time_stays() -> None:
    house = House(Told(), SlowlyTold(), nodes=1)
    posted(house, 7, detector="slow")
    posted(house, 7, detector="slow")
    last_at = house.now
    posted(house, 9)
    posted(house, 9)
    assert polling.get_last_polled("gn001", "node") == {"slow": last_at, "told": house.now}
    ((_, _, sample),) = polling.iterate_samples(["slow"], "node", ["gn001"])
    assert sample == Sample(7, last_at)


def test_posts_and_polls_that_take_turns_add_up() -> None:
    told = Told({"gn001": [("told.errors", 10)]})
    house = House(told, nodes=1)
    house.rounds()
    posted(house, 12)
    told.seen["gn001"] = [("told.errors", 14)]
    house.rounds()
    posted(house, 18)
    assert house.standing() == set()  # never five at once
    told.seen["gn001"] = [("told.errors", 25)]
    house.rounds()
    assert house.standing() == {("gpu.count_mismatch", "node/gn001")}


def test_of_nodes_that_nobody_may_enter_nothing_is_written_and_posts_go_on() -> None:
    told = Told({name: NotConfigured("no key") for name in ("gn001", "gn002", "gn003")})
    house = House(told)
    posted(house, 7)
    posted_at, before = house.now, list(Poll.objects.values())
    house.rounds(12)
    assert list(Poll.objects.values()) == before
    assert polling.get_last_polled("gn001", "node") == {"told": posted_at}
    told.seen.clear()
    house.rounds(6)
    assert polling.get_last_polled("gn002", "node").keys() == {"told"}


def test_a_node_that_nobody_may_enter_leaves_the_chunk_of_those_that_may_be() -> None:
    house = House(Told({"gn002": NotConfigured("no key")}))
    house.rounds(3)
    assert [row.target for row in Poll.objects.filter(next_poll_at__isnull=False)] == ["gn002"]
    assert polling.get_last_polled("gn002", "node").get("told") is None
    assert house.standing() == set()


class SlowlyTold(Told):
    name: ClassVar[str] = "slow"
    every: ClassVar[timedelta] = timedelta(minutes=5)


def test_a_round_out_of_turn_spares_slow_detectors_that_have_just_looked() -> None:
    house = House(Told(), SlowlyTold(), nodes=1)
    house.pipeline.poll_node("gn001")
    house.now += MINUTE
    house.pipeline.poll_node("gn001")
    assert polling.get_last_polled("gn001", "node") == {"told": house.now, "slow": NOW}
    house.now += 4 * MINUTE
    house.pipeline.poll_node("gn001")
    assert polling.get_last_polled("gn001", "node")["slow"] == house.now


def test_a_ring_for_a_detector_that_this_version_does_not_have_is_passed_over() -> None:
    house = House(Told())
    house.pipeline.poll(Chunk("gone", ("gn001",), NOW + MINUTE))
    assert not Fault.objects.exists()


class Compares(Told):
    """A detector that does something while it compares a round with the one before: while it is
    judged."""

    name: ClassVar[str] = "compares"
    during: Callable[[], None] = staticmethod(lambda: None)  # type: ignore[assignment]

    def compare(
        self, observations: Sequence[Observation], before: Mapping[tuple[str, str], Sample]
    ) -> Iterator[Observation]:
        self.during()
        return iter(())


@pytest.mark.django_db(transaction=True)
def test_what_polls_saw_is_judged_before_their_transaction_begins() -> None:
    """An embedded database lets one write at a time: who computes in a transaction holds all others
    up."""
    in_transaction: list[bool] = []
    detector = Compares()
    detector.during = lambda: in_transaction.append(connection.in_atomic_block)
    House(detector).rounds(2)
    assert in_transaction
    assert not any(in_transaction)


def test_a_round_out_of_turn_that_comes_between_is_not_forgotten() -> None:
    """A report that a node pushes while a poll of it is judged: what both remember has to add
    up."""
    detector = Compares({"gn001": [("told.errors", 10)]})
    house = House(detector, nodes=1)
    house.rounds()

    def pushed() -> None:
        detector.during = lambda: None
        errors = Observation("node/gn001", "told.errors", 14, house.now)
        answers = Observation("node/gn001", "target.reachable", True, house.now)
        house.pipeline.ingest_observations("gn001", {"compares": [errors, answers]})

    detector.seen["gn001"] = [("told.errors", 18)]
    detector.during = pushed
    house.rounds()
    assert not Fault.objects.exists()  # 10, 14, 18: never five at once
