"""From the spool into the inbox: each batch once and in order, whatever is away or killed."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from detectors.receivers import delivery
from detectors.receivers.counters import Counters
from detectors.receivers.delivery import Backlog, Delivery, InboxAway
from detectors.receivers.spool import Batch, Spool, Turn
from tests.builders import an_event
from tests.detectors.receiver_twin import MemoryInbox

LONG_S = 3600


class Scene:
    """One spool, its delivery, and its clock, which moves in steps of a second."""

    def __init__(self, home: Path, inbox: MemoryInbox | None = None) -> None:
        self.now = 1000.0
        self.home = home
        self.inbox = inbox or MemoryInbox()
        self.counters = Counters()
        self.posted: list[str] = []
        self.spool = Spool(home / "spool", segment_bytes=4096)
        self.delivery = self._make_delivery()

    def _make_delivery(self) -> Delivery:
        return Delivery(self.spool, self.inbox, counters=self.counters, clock=lambda: self.now)

    def post(self, batches: int = 1, *, excerpt: str = "", turn: Turn = Turn.ORDINARY) -> None:
        for _ in range(batches):
            resource = f"node/gn{len(self.posted):03d}"
            self.posted.append(resource)
            event = an_event("gpu.xid.48", resource, excerpt=excerpt)
            self.delivery.post(self.spool.append([event], turn=turn))

    def let_pass(self, seconds: float = 2.0) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            self.delivery.deliver_waiting()

    def restart(self) -> None:
        """SIGKILL, and a new process on the same directory."""
        self.spool.close()
        self.spool = Spool(self.home / "spool", segment_bytes=4096)
        self.delivery = self._make_delivery()

    @property
    def delivered(self) -> list[str]:
        return [wire["resource"] for batch in self.inbox.batches for wire in batch.wires]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_what_is_spooled_is_delivered_once_and_in_order(scene: Scene) -> None:
    for _ in range(5):
        scene.post(batches=3)
        scene.let_pass()
    assert scene.delivered == scene.posted
    assert scene.delivery.undelivered_bytes == 0


def test_nothing_is_delivered_again_however_long_it_waits_in_the_inbox(scene: Scene) -> None:
    scene.post(batches=5)
    scene.let_pass(LONG_S)
    assert scene.delivered == scene.posted


def test_what_is_on_disk_at_the_start_is_delivered_first(scene: Scene) -> None:
    scene.post(batches=3)
    scene.restart()
    scene.post(batches=2)
    scene.let_pass()
    assert scene.delivered == scene.posted


def test_more_than_goes_into_one_transaction_is_on_disk_at_the_start(scene: Scene) -> None:
    scene.post(batches=3 * delivery.MOST_BATCHES)
    scene.restart()
    scene.let_pass()
    scene.post(batches=2)
    scene.let_pass()
    assert scene.delivered == scene.posted


def test_more_than_goes_into_one_transaction_is_on_disk_and_the_inbox_goes_away_in_between(
    scene: Scene,
) -> None:
    scene.post(batches=2 * delivery.MOST_BATCHES)
    scene.restart()
    scene.inbox.goes_after_next_put = True
    scene.let_pass()
    scene.post(batches=2)
    scene.inbox.is_up = True
    scene.let_pass(5)
    assert scene.delivered == scene.posted


def test_what_comes_while_the_inbox_is_away_is_delivered_in_order_when_it_is_back(
    scene: Scene,
) -> None:
    scene.post()
    scene.let_pass()
    scene.inbox.is_up = False
    scene.post(batches=400)
    scene.let_pass(60)
    assert scene.counters.deliveries_failed > 0
    scene.inbox.is_up = True
    scene.post(batches=3)
    scene.let_pass(20)
    assert scene.delivered == scene.posted


def test_an_answer_that_was_lost_after_the_commit_delivers_nothing_twice(scene: Scene) -> None:
    scene.post(batches=2)
    scene.let_pass()
    scene.inbox.loses_next_answer = True
    scene.post(batches=2)
    scene.let_pass(5)
    scene.post(batches=2)
    scene.let_pass(5)
    assert scene.delivered == scene.posted


def test_batches_beyond_what_memory_holds_are_read_from_the_disk(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "FRESH_BYTES", 10_000)
    scene.let_pass()
    scene.inbox.is_up = False
    scene.post(batches=50, excerpt="x" * 900)
    assert sum(batch.extent.size for batch in scene.delivery._fresh) <= 11_000
    scene.inbox.is_up = True
    scene.let_pass(10)
    assert scene.delivered == scene.posted


def test_a_disk_that_does_not_answer_for_a_while_loses_nothing(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.post(batches=3)
    scene.restart()
    first = scene.home / "spool" / f"{scene.spool.segments[0]:012d}.segment"
    first.rename(first.with_suffix(".away"))
    scene.let_pass(5)
    assert scene.delivered == []
    assert caplog.text.count("the spool cannot be read") == 1
    first.with_suffix(".away").rename(first)
    scene.post()
    scene.let_pass(5)
    assert scene.delivered == scene.posted


def test_segments_go_when_they_are_delivered(scene: Scene) -> None:
    scene.inbox.is_up = False
    scene.post(batches=40, excerpt="x" * 900)
    scene.let_pass()
    assert len(scene.spool.segments) > 5
    scene.inbox.is_up = True
    scene.let_pass(5)
    assert scene.spool.segments == [scene.spool.current]


def test_a_full_inbox_leaves_the_rest_on_disk_and_says_so(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.inbox.backlog = Backlog(9000, delivery.MOST_INBOX_BYTES, timedelta(minutes=3))
    scene.post(batches=5)
    scene.let_pass(10)
    assert scene.delivered == []
    assert scene.delivery.undelivered_bytes > 0
    assert caplog.text.count("9000 batches wait in the database") == 1
    assert "Does an ingest worker run?" in caplog.text
    scene.inbox.backlog = Backlog(10, 10_000, timedelta(seconds=1))
    scene.let_pass(5)
    assert scene.delivered == scene.posted


def test_an_hour_without_ingest_leaves_the_rest_on_disk(scene: Scene) -> None:
    scene.inbox.backlog = Backlog(1, 300, delivery.OLDEST_IN_INBOX)
    scene.post()
    scene.let_pass(10)
    assert scene.delivered == []


def test_a_bell_rings_for_every_urgent_batch_and_once_a_second_for_others_while_workers_work(
    scene: Scene,
) -> None:
    scene.inbox.backlog = Backlog(10, 10_000, timedelta(seconds=1))
    scene.let_pass()
    rung = scene.inbox.rung
    for _ in range(5):
        scene.post()
        scene.delivery.deliver_waiting()
    assert scene.inbox.rung - rung <= 1
    rung = scene.inbox.rung
    for _ in range(5):
        scene.post(turn=Turn.URGENT)
        scene.delivery.deliver_waiting()
    assert scene.inbox.rung - rung == 5


def test_a_bell_that_was_held_back_while_workers_work_rings_within_a_second(scene: Scene) -> None:
    scene.inbox.backlog = Backlog(10, 10_000, timedelta(seconds=1))
    scene.post()
    scene.delivery.deliver_waiting()
    rung = scene.inbox.rung
    scene.post()
    scene.delivery.deliver_waiting()
    assert (scene.delivered, scene.inbox.rung) == (scene.posted, rung)
    scene.let_pass(10)
    assert scene.inbox.rung == rung + 1


def test_a_receiver_that_stops_rings_for_what_it_delivered_last(scene: Scene) -> None:
    scene.inbox.backlog = Backlog(10, 10_000, timedelta(seconds=1))
    scene.post()
    scene.delivery.deliver_waiting()
    rung = scene.inbox.rung
    scene.post()
    scene.delivery.stop()
    scene.delivery.run()
    assert scene.inbox.rung == rung + 1


def test_a_receiver_that_starts_rings_for_what_one_before_it_may_have_delivered(
    scene: Scene,
) -> None:
    scene.post()
    scene.let_pass()
    scene.restart()
    rung = scene.inbox.rung
    scene.let_pass(10)
    assert scene.inbox.rung == rung + 1


def test_a_bell_rings_for_what_was_delivered_although_the_answer_was_lost(scene: Scene) -> None:
    scene.let_pass()
    scene.inbox.loses_next_answer = True
    rung = scene.inbox.rung
    scene.post()
    scene.let_pass(5)
    assert scene.delivered == scene.posted
    assert scene.inbox.rung == rung + 1


def test_bells_are_few_while_no_worker_answers(scene: Scene) -> None:
    scene.inbox.backlog = Backlog(5000, 10_000_000, timedelta(minutes=5))
    for _ in range(50):
        scene.post(turn=Turn.URGENT)
        scene.delivery.deliver_waiting()
    assert scene.inbox.rung <= 2


def test_urgency_is_kept_on_disk(scene: Scene) -> None:
    scene.post()
    scene.post(turn=Turn.URGENT)
    scene.restart()
    scene.let_pass()
    assert [batch.is_urgent for batch in scene.inbox.batches] == [False, True]


class AnyOrder(RuleBasedStateMachine):
    """Posts, kills, lost answers and outages in any order: the inbox has a prefix of what was
    posted, each once."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.scene = Scene(Path(self._folder.name))

    @rule(
        batches=st.one_of(st.integers(1, 9), st.just(delivery.MOST_BATCHES + 1)),
        size=st.sampled_from([0, 900]),
    )
    def post(self, batches: int, size: int) -> None:
        self.scene.post(batches, excerpt="x" * size)

    @rule(seconds=st.integers(1, 4))
    def let_pass(self, seconds: int) -> None:
        self.scene.let_pass(seconds)

    @rule()
    def be_killed(self) -> None:
        self.scene.restart()

    @rule(is_up=st.booleans())
    def switch(self, is_up: bool) -> None:
        self.scene.inbox.is_up = is_up

    @rule()
    def lose_an_answer(self) -> None:
        self.scene.inbox.loses_next_answer = True

    @invariant()
    def is_prefix(self) -> None:
        delivered = self.scene.delivered
        assert delivered == self.scene.posted[: len(delivered)]

    def teardown(self) -> None:
        self.scene.inbox.is_up = True
        self.scene.let_pass(6)
        try:
            assert self.scene.delivered == self.scene.posted
        finally:
            self.scene.spool.close()
            self._folder.cleanup()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=15, deadline=None)


def test_the_twin_refuses_what_the_database_would(tmp_path: Path) -> None:
    inbox, spool = MemoryInbox(), Spool(tmp_path)
    first: Batch = spool.append([an_event()])
    inbox.put("r", [first], None)
    with pytest.raises(delivery.PositionMoved):
        inbox.put("r", [first], None)
    inbox.is_up = False
    with pytest.raises(InboxAway):
        inbox.read_position("r")
    spool.close()
