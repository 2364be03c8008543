"""The courier between spool and queue: what is offered again and when, and how much the queue is
given."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from detectors.receivers import redelivery
from detectors.receivers.counters import Counters
from detectors.receivers.redelivery import FIRST_PATIENCE_S, Courier
from detectors.receivers.spool import Batch, Spool
from tests.builders import an_event
from tests.detectors.receiver_twin import MemoryLedger

LONG_S = 3600


class Queue(MemoryLedger):
    """A queue of its own, from which a worker takes the oldest batch; what it takes is committed
    later, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.is_committing = False
        self.queue: deque[Batch] = deque()

    def offer(self, batch: Batch) -> None:
        super().offer(batch)
        self.queue.append(batch)

    def waiting(self) -> int:
        return len(self.queue)

    def take(self) -> Batch:
        return self.queue.popleft()

    def work_off(self) -> None:
        while self.queue:
            self.marks.add(self.take().extent)


class Scene:
    """One courier and its clock. The clock moves in steps of a second, as the courier looks."""

    def __init__(self, home: Path, ledger: Queue | None = None) -> None:
        self.now = 1000.0
        self.ledger = ledger or Queue()
        self.counters = Counters()
        self.spool = Spool(home / "spool")
        self.courier = Courier(
            self.spool, self.ledger, counters=self.counters, clock=lambda: self.now
        )
        self.posted = 0

    def post(self, batches: int = 1, *, excerpt: str = "") -> None:
        for _ in range(batches):
            self.posted += 1
            self.courier.post(
                self.spool.append(
                    [an_event("gpu.xid.48", f"node/gn{self.posted:03d}", excerpt=excerpt)]
                )
            )
            self.courier.step()

    def let_pass(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            self.courier.step()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_nothing_is_offered_again_while_it_waits_in_the_queue(scene: Scene) -> None:
    scene.post(batches=5)
    scene.let_pass(LONG_S)
    assert len(scene.ledger.queue) == 5
    assert scene.counters.offered_again == 0


def test_what_a_worker_took_and_never_committed_is_offered_again_behind_what_still_waits(
    scene: Scene,
) -> None:
    scene.post(batches=5)
    lost = scene.ledger.take()
    scene.let_pass(2 * FIRST_PATIENCE_S)
    assert [batch.extent for batch in scene.ledger.queue][-1] == lost.extent
    assert len(scene.ledger.queue) == 5


def test_a_worker_has_its_time_from_when_it_took_the_batch_and_not_from_the_offer(
    scene: Scene,
) -> None:
    scene.post(batches=2)
    scene.let_pass(LONG_S)
    taken = scene.ledger.take()
    scene.let_pass(FIRST_PATIENCE_S - 1)
    assert scene.counters.offered_again == 0
    scene.ledger.marks.add(taken.extent)
    scene.let_pass(LONG_S)
    assert scene.counters.offered_again == 0


def test_everything_is_offered_again_once_when_the_broker_lost_its_queue(scene: Scene) -> None:
    scene.post(batches=5)
    scene.let_pass(LONG_S)
    scene.ledger.queue.clear()
    scene.let_pass(LONG_S)
    assert len(scene.ledger.queue) == 5
    assert scene.counters.offered_again == 5


def test_batches_of_another_receiver_in_the_queue_cost_a_lost_batch_time_and_nothing_else(
    tmp_path: Path,
) -> None:
    scene, other = Scene(tmp_path / "a"), Spool(tmp_path / "b" / "spool")
    scene.post()
    scene.ledger.take()
    scene.ledger.queue.extend(
        other.append([an_event("gpu.xid.48", f"node/gn90{index}")]) for index in range(3)
    )
    scene.let_pass(LONG_S)
    assert scene.counters.offered_again == 0
    scene.ledger.queue.clear()
    scene.let_pass(2 * FIRST_PATIENCE_S)
    assert scene.counters.offered_again == 1


def test_what_is_on_disk_at_the_start_is_offered_whatever_stands_in_the_queue(
    tmp_path: Path,
) -> None:
    before = Scene(tmp_path)
    before.post(batches=3)
    before.spool.close()
    after = Scene(tmp_path, before.ledger)
    after.let_pass(LONG_S)
    assert len(after.ledger.queue) == 6
    assert after.counters.offered_again == 0


def test_the_queue_is_given_so_many_bytes_and_the_rest_when_there_is_room(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "OUTSTANDING_BYTES", 10_000)
    scene.post(batches=50, excerpt="x" * 900)
    scene.let_pass(LONG_S)
    sizes = [batch.extent.size for batch in scene.ledger.queue]
    assert 5_000 <= sum(sizes) <= 10_000 + max(sizes)
    for _ in range(50):
        scene.ledger.work_off()
        scene.let_pass(2.0)
    assert len({batch.extent for batch in scene.ledger.batches}) == 50
    assert len(scene.ledger.batches) == 50
    assert scene.courier.outstanding == 0


def test_batches_that_the_queue_does_not_take_stay_on_disk_beyond_so_many_bytes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "FRESH_BYTES", 10_000)
    scene.ledger.is_queue_up = False
    scene.post(batches=50, excerpt="x" * 900)
    assert scene.courier.outstanding <= 11
    scene.ledger.is_queue_up = True
    for _ in range(10):
        scene.let_pass(2.0)
        scene.ledger.work_off()
    assert len({batch.extent for batch in scene.ledger.batches}) == 50
