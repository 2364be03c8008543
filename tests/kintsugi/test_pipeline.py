"""The pipeline on one page: a lost GPU goes from its log line to a node back in service, rung by
rung."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection

from detectors import resources
from detectors.catalog import catalog
from detectors.faults import to_wire
from fixtures.cluster.log_line import LogLine
from fixtures.replay import stage
from incidents.inventory import services
from incidents.models import Fault, InboxBatch, Incident, Notification, QuarantinedEvent, SpoolMark
from incidents.polling.polling import Chunk
from incidents.vocabulary.lifecycle import State
from kintsugi import tasks
from kintsugi.pipeline import Pipeline
from runbooks.fleet import fleet
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY, Policy
from runbooks.models import Mode, Run, RunbookMode, RunState
from tests.builders import an_event

pytestmark = pytest.mark.django_db
TOPOLOGY = Path(__file__).resolve().parents[2] / "fixtures" / "topology" / "sakuraone.toml"
START = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
NODE, LOST_INDEX = "gn017", 2


@dataclass
class Deque:
    """A ring that a test answers in order."""

    calls: deque[tuple[str, int | Chunk]] = field(default_factory=deque)
    # By run, when it was last rung for.
    due_at: dict[int, datetime | None] = field(default_factory=dict)

    def ingest(self) -> None:
        self.calls.append(("ingest", 0))

    def advance(self, run_id: int, at: datetime | None = None) -> None:
        self.calls.append(("advance", run_id))
        self.due_at[run_id] = at

    def notify(self, notification_id: int, at: datetime | None = None) -> None:
        self.calls.append(("notify", notification_id))

    def poll(self, chunk: Chunk) -> None:
        self.calls.append(("poll", chunk))


class House:
    """The whole product on a virtual clock, an in-memory Slurm and simulated nodes."""

    def __init__(self, directory: Path) -> None:
        self.now = START
        topology = services.load(TOPOLOGY)
        services.apply(topology, self.now)
        policy = Policy(
            cluster_name=topology.site.cluster_name,
            boot_time=timedelta(minutes=20),
            verify_command=("dcgmi", "diag", "-r", "2"),
            verify_timeout=timedelta(minutes=20),
            requeue_dead_jobs=False,
            stop_file=directory / "stop",
        )
        clock: Callable[[], datetime] = lambda: self.now  # noqa: E731 - the stage keeps it
        boots: list[tuple[str, list[LogLine]]] = []
        self.stage = stage.build(
            topology,
            clock=clock,
            boot_takes=timedelta(minutes=5),
            policy=policy,
            on_boot=lambda node, lines: boots.append((node, lines)),
        )
        self.ring = Deque()
        self.pipeline = Pipeline(
            self.stage.doors, self.stage.notifier, self.ring, clock, catalog.load()
        )

    def answer(self) -> None:
        """Every rung call, until nothing rings."""
        while self.ring.calls:
            name, argument = self.ring.calls.popleft()
            if name == "ingest":
                self.pipeline.ingest_waiting()
            else:
                getattr(self.pipeline, name)(argument)

    def let_pass(self, duration: timedelta) -> None:
        until = self.now + duration
        while self.now < until:
            self.now = min(until, self.now + timedelta(seconds=30))
            self.pipeline.tick()
            self.answer()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture
def armed(house: House) -> House:
    RunbookMode.objects.create(
        runbook=DRAIN_REBOOT_VERIFY, mode=Mode.ARMED, set_by="test", set_at=START
    )
    return house


def _lose_gpu(house: House, name: str = NODE) -> dict[str, object]:
    node = house.stage.world.nodes[name]
    house.stage.world.inject("gpu_lost", f"node/{name}/gpu/{LOST_INDEX}")
    resource = resources.gpu(name, node.gpus[LOST_INDEX].pci)
    house.now += timedelta(
        seconds=1
    )  # the line was written a second before it reaches the pipeline
    return to_wire(an_event("gpu.xid.79", resource, at=house.now - timedelta(seconds=1)))


def test_a_lost_gpu_has_its_node_drained_at_once_and_back_in_service_in_the_end(
    armed: House,
) -> None:
    armed.pipeline.ingest([_lose_gpu(armed)])
    armed.answer()
    assert armed.stage.slurm.read_nodes((NODE,))[NODE].reason.startswith("kintsugi:")
    armed.let_pass(timedelta(hours=2))
    incident = Incident.objects.get()
    run = Run.objects.get()
    assert (run.state, incident.state, incident.recovery) == (
        RunState.SUCCEEDED,
        State.RESOLVED,
        "node_restart",
    )
    assert not armed.stage.slurm.read_nodes((NODE,))[NODE].is_out
    assert [act for act in armed.stage.slurm.journal if act[0] == "reboot"] == [("reboot", NODE)]
    assert not Notification.objects.exclude(state=Notification.SendState.SENT).exists()


def test_shadow_is_the_default_and_touches_nothing(house: House) -> None:
    house.pipeline.ingest([_lose_gpu(house)])
    house.answer()
    house.let_pass(timedelta(minutes=30))
    assert house.stage.slurm.journal == []
    assert Run.objects.get().state == RunState.SHADOWED


def test_an_event_that_comes_twice_counts_once(house: House) -> None:
    wire = _lose_gpu(house)
    for _ in range(2):
        house.pipeline.ingest([wire])
    assert Fault.objects.get(fault_type="gpu.xid.79").count == 1


def put(wires: Sequence[Mapping[str, object]], number: int = 1, *, rank: int = 1) -> None:
    """Into the inbox, as a receiver does."""
    payload = json.dumps([{**wire, "event_id": ""} for wire in wires]).encode()
    InboxBatch.objects.create(
        receiver="r1",
        segment=1,
        start=number * 1000,
        rank=rank,
        payload=payload,
        size=len(payload),
        recorded_at=START,
    )


def test_what_waits_in_the_inbox_is_counted_once_and_gone(house: House) -> None:
    put([_lose_gpu(house)])
    assert house.pipeline.ingest_waiting()
    assert not house.pipeline.ingest_waiting()
    assert Fault.objects.get(fault_type="gpu.xid.79").count == 1
    assert not InboxBatch.objects.exists()


def test_a_receiver_of_version_0_1_is_told_that_its_batch_is_counted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "pipeline", lambda: house.pipeline)
    wire, extent = _lose_gpu(house), ["r1", 1, 0, 400]
    for _ in range(2):
        tasks.ingest([wire], extent)
    assert Fault.objects.get(fault_type="gpu.xid.79").count == 1
    assert SpoolMark.objects.filter(receiver="r1", segment=1, start=0, end=400).count() == 1


def test_a_batch_whose_counting_failed_waits_for_the_next_worker(house: House) -> None:
    put([_lose_gpu(house)])
    with (
        pytest.raises(OperationalError),
        connection.execute_wrapper(_fail_on("incidents_incident")),
    ):
        house.pipeline.ingest_waiting()
    assert InboxBatch.objects.count() == 1
    assert house.pipeline.ingest_waiting()
    assert Fault.objects.get(fault_type="gpu.xid.79").count == 1


def test_urgent_batches_are_taken_before_older_ones(house: House) -> None:
    other = to_wire(an_event("gpu.xid.31", f"node/{NODE}/gpu/0000:aa:00.0", at=house.now))
    put([{**other, "excerpt": "x" * 300_000}], 1)
    put([_lose_gpu(house)], 2, rank=0)
    house.pipeline.ingest_waiting()
    assert [fault.fault_type for fault in Fault.objects.all()] == ["gpu.xid.79"]


def test_what_is_over_a_senders_share_is_taken_last_and_a_batch_at_a_time(house: House) -> None:
    flood = [an_event("gpu.xid.48", f"node/gn050/gpu/{number:04x}:19:00.0") for number in range(3)]
    for number, event in enumerate(flood):
        put([to_wire(event)], number, rank=2)
    put([to_wire(an_event("gpu.xid.31", f"node/{NODE}/gpu/0000:aa:00.0", at=house.now))], 3)
    put([_lose_gpu(house)], 4, rank=0)
    left = []
    while house.pipeline.ingest_waiting():
        ranks = InboxBatch.objects.order_by("pk").values_list("rank", flat=True)
        left.append(list(ranks))
    assert left == [[2, 2, 2, 1], [2, 2, 2], [2, 2], [2], []]
    assert Fault.objects.filter(fault_type="gpu.xid.48").count() == 3


def test_a_batch_that_is_no_list_of_events_is_put_aside_whole(house: House) -> None:
    InboxBatch.objects.create(
        receiver="r1", segment=1, start=0, rank=1, payload=b"{", size=1, recorded_at=START
    )
    assert house.pipeline.ingest_waiting()
    assert "not a batch of events" in QuarantinedEvent.objects.get().error
    assert not InboxBatch.objects.exists()


def test_the_sweep_rings_for_a_batch_whose_bell_was_lost(house: House) -> None:
    put([_lose_gpu(house)])
    house.now += timedelta(minutes=1)
    house.pipeline.sweep()
    house.answer()
    assert Fault.objects.filter(fault_type="gpu.xid.79").exists()


def _fail_on(table: str) -> Callable[..., Any]:
    def wrapper(
        execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        if sql.startswith(f'INSERT INTO "{table}"'):
            raise OperationalError("the server closed the connection")
        return execute(sql, params, many, context)

    return wrapper


def test_a_record_that_is_no_event_is_put_aside_and_the_rest_goes_on(house: House) -> None:
    house.pipeline.ingest([{"event_id": "x", "event": "exploded"}, _lose_gpu(house)])
    assert QuarantinedEvent.objects.count() == 1
    assert Fault.objects.filter(fault_type="gpu.xid.79").exists()


def test_a_poll_sees_the_lost_gpu_without_any_log_line(house: House) -> None:
    _lose_gpu(house)
    house.pipeline.poll_node(NODE)
    lost = Fault.objects.get(fault_type="gpu.lost")
    assert lost.owner == f"node/{NODE}"


def test_a_node_that_does_not_answer_twice_is_a_fault_that_ends_when_it_answers(
    house: House,
) -> None:
    house.stage.shell.unreachable.add(NODE)
    house.pipeline.poll_node(NODE)
    assert not Fault.objects.exists()
    house.now += timedelta(minutes=1)
    house.pipeline.poll_node(NODE)
    assert Fault.objects.get().fault_type == "target.unreachable"
    house.stage.shell.unreachable.clear()
    house.now += timedelta(minutes=1)
    house.pipeline.poll_node(NODE)
    assert not Fault.objects.get().is_active


def test_the_sweep_goes_on_with_a_run_whose_ring_was_lost(armed: House) -> None:
    armed.pipeline.ingest([_lose_gpu(armed)])
    armed.ring.calls.clear()
    armed.now += timedelta(seconds=5)
    armed.pipeline.sweep()
    armed.answer()
    assert armed.stage.slurm.read_nodes((NODE,))[NODE].is_draining


def test_the_sweep_rings_first_for_a_fresh_run_and_spreads_those_that_wait(armed: House) -> None:
    waiting = ["gn018", "gn019", "gn020"]
    for name in waiting:
        armed.stage.slurm.add_job(f"9{name[-2:]}", nodes=[name])
        armed.pipeline.ingest([_lose_gpu(armed, name)])
        armed.answer()
    armed.pipeline.ingest([_lose_gpu(armed)])
    fresh = Run.objects.get(node__name=NODE)
    armed.ring.calls.clear()
    armed.now += timedelta(minutes=1)
    armed.pipeline.sweep()
    rung = [call[1] for call in armed.ring.calls if call[0] == "advance"]
    assert rung[0] == fresh.pk
    assert len(rung) == 4
    times = [armed.ring.due_at[pk] or armed.now for pk in rung]
    gaps = {later - earlier for earlier, later in pairwise(times)}
    assert times[0] == armed.now
    assert gaps == {timedelta(milliseconds=250)}


def test_a_run_that_the_sweep_starts_is_rung_once(armed: House) -> None:
    site = RunbookMode.objects.create(
        runbook=fleet.SITE, mode=Mode.OFF, set_by="test", set_at=START
    )
    armed.pipeline.ingest([_lose_gpu(armed)])
    assert not Run.objects.exists()
    site.delete()
    armed.ring.calls.clear()
    armed.pipeline.sweep()
    assert [call for call in armed.ring.calls if call[0] == "advance"] == [
        ("advance", Run.objects.get().pk)
    ]


def test_what_waits_to_be_told_is_not_rung_again_at_each_turn(armed: House) -> None:
    """Otherwise a hundred messages that wait for a busy worker become ten thousand rings, and
    repairs wait for them."""
    nodes = ["gn001", "gn002", "gn003", "gn004"]
    for node in nodes:
        armed.pipeline.ingest([_lose_gpu(armed, node)])
    assert [name for name, _ in armed.ring.calls].count("notify") == len(nodes)
    armed.answer()
    assert Notification.objects.filter(state=Notification.SendState.SENT).count() >= len(nodes)
    assert not Notification.objects.exclude(state=Notification.SendState.SENT).exists()
