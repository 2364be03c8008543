"""The doors to a real Slurm and to nodes that boot when it reboots them; used in this process and
in workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from detectors import registry
from detectors.detector import Output, Target
from detectors.transports.ssh import LocalShell
from fixtures.cluster.world import SimulatedNode, SimulatedShell, SimulatedWorld
from runbooks import services
from runbooks.engine import turn
from runbooks.engine.turn import Point
from runbooks.models import Run
from runbooks.slurm.client import ScontrolWriter, parse_controller
from runbooks.step import World
from tests.runbooks.site import CLUSTER, a_policy
from tests.services.patience import deadline_in


class BootingShell(SimulatedShell):
    """Nodes that have booted as often as `boots`, the file that Slurm's RebootProgram writes,
    says."""

    def __init__(self, world: SimulatedWorld, boots: Path) -> None:
        super().__init__(world)
        self._boots = boots

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        asked = self._boots.read_text().split().count(target.name) if self._boots.exists() else 0
        node = self.world.node(target.name)
        while node.boots < asked:
            self.world.reboot(target.name)
        return super().run(target, argv, timeout)


@dataclass
class RealSite:
    """`ahead` turns the clock, so that a dead worker's lease has run out. Lost GPUs are given as
    `node/gpu`."""

    conf: Path
    boots: Path
    nodes: Sequence[str]
    ahead: timedelta = timedelta(0)
    lost: Sequence[str] = ()

    def __post_init__(self) -> None:
        model = SimulatedWorld(
            [SimulatedNode(name, clock=self.now) for name in self.nodes], clock=self.now
        )
        for resource in self.lost:
            model.inject("gpu_lost", resource)
        slurm = ScontrolWriter(
            LocalShell(), parse_controller("local"), cluster_name=CLUSTER, conf=str(self.conf)
        )
        self.world = World(
            slurm=slurm,
            writer=slurm,
            shell=BootingShell(model, self.boots),
            detectors=registry.DETECTORS,
            policy=a_policy(),
        )

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def play(
        self,
        run_id: int,
        *,
        within: timedelta = timedelta(seconds=90),
        at: Point = lambda point: None,
    ) -> Run:
        """As the pipeline does: advances whenever the run is due, until it ends."""
        deadline = deadline_in(within.total_seconds())
        while time.monotonic() < deadline:
            if services.is_due(run_id, now=self.now()):
                turn.advance(run_id, now=self.now(), world=self.world, at=at)
            run = Run.objects.get(pk=run_id)
            if run.finished_at is not None:
                return run
            time.sleep(0.02)
        raise AssertionError(
            f"run {run_id} did not end within {within}: {Run.objects.get(pk=run_id).waiting_for}"
        )

    def ingest(self) -> None: ...

    def advance(self, run_id: int, at: datetime | None = None) -> None:
        """One turn, due or not."""
        Run.objects.filter(pk=run_id).update(wake_at=self.now())
        turn.advance(run_id, now=self.now(), world=self.world)

    def play_until(
        self,
        run_id: int,
        condition: Callable[[Run], bool],
        *,
        within: timedelta = timedelta(seconds=90),
    ) -> Run:
        """Advances whenever the run is due, until the condition holds of it."""
        deadline = deadline_in(within.total_seconds())
        while not condition(run := Run.objects.get(pk=run_id)):
            assert run.finished_at is None, run.outcome
            assert time.monotonic() < deadline, run.waiting_for
            if services.is_due(run_id, now=self.now()):
                turn.advance(run_id, now=self.now(), world=self.world)
            time.sleep(0.02)
        return run
