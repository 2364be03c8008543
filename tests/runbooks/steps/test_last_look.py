"""What acts on a node by another way than Slurm's programs, or on its jobs, looks at the node once
more, directly before: a person may have taken it over since the turn began, or another worker the
run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from detectors import resources
from detectors.detector import Output, Target
from fixtures.cluster.facets.host import HostFacet
from fixtures.cluster.facets.services import ServicesFacet
from fixtures.cluster.world import SimulatedWorld
from incidents.models import Expectation
from runbooks.engine import turn
from runbooks.lease.lease import LEASE
from runbooks.library import library
from runbooks.models import Mode, Run, RunState
from runbooks.node import detached_command
from runbooks.steps.cold_cycle import ColdCycle
from tests.runbooks.site import Site, Unplugged

pytestmark = pytest.mark.django_db
NODE = "gn001"
THEIRS = "bob: tray out, hands inside"
SERVICE = "nvidia-fabricmanager"
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Case:
    """`begin` makes a site and a run whose plan has `step`; `count` how often it has acted."""

    step: str
    begin: Callable[[], tuple[Site, Run]]
    count: Callable[[Site], int]


class CountingShell(Unplugged):
    """Counts the commands that it starts apart from its connection."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self.starts = 0

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        self.starts += detached_command.NAME in argv and "start" in argv
        return super().run(target, argv, timeout)


def count_starts(site: Site) -> int:
    shell = site.world.shell
    assert isinstance(shell, CountingShell)
    return shell.starts


def count_requeues(site: Site) -> int:
    return site.slurm.journal.count(("requeue", "77"))


def count_offs(site: Site) -> int:
    return site.power.journal.count(("off", NODE))


def begin_cold_cycle() -> tuple[Site, Run]:
    site = Site(nodes=4)
    run = site.begin(site.lose_gpu(NODE))
    steps = ("drain", "wait_for_jobs", "cold_cycle", "wait_for_boot")
    run.plan = [library.plan_step(name, {}).as_row() for name in steps]
    run.save()
    return site, run


def begin_requeue() -> tuple[Site, Run]:
    site = Site(nodes=4, requeue_dead_jobs=True)
    site.slurm.add_job("77", nodes=[NODE])
    return site, site.begin(site.lose_gpu(NODE))


def begin_requeue_as_agreed() -> tuple[Site, Run]:
    site = Site(nodes=4)
    site.slurm.add_job("77", nodes=[NODE])
    site.slurm.work.comment("77", "kintsugi=requeue")
    return site, site.begin(site.lose_gpu(NODE))


def begin_gpu_reset() -> tuple[Site, Run]:
    site = Site(nodes=4)
    site.set_mode(Mode.ARMED, "gpu_reset")
    site.nodes.inject("gpu_ecc_uncorrectable", f"{NODE}/gpu/0")
    incident = site.raise_fault(NODE, fault_type="gpu.xid.48")
    site.now += timedelta(minutes=2)  # past any hold-down
    site.world = replace(site.world, shell=CountingShell(site.nodes))
    return site, site.begin(incident)


def begin_restart_of_service() -> tuple[Site, Run]:
    site = Site(nodes=4, verify_command=("true",))
    site.set_mode(Mode.ARMED, "isolate_node")
    Expectation.objects.create(kind="node", role="", mounts=["/lustre", "/home"])
    node = site.nodes.nodes[NODE]
    node.facet(HostFacet).down.add(SERVICE)
    node.facet(ServicesFacet).active.discard(SERVICE)
    incident = site.raise_fault(NODE, fault_type="node.service.down", resource=resources.node(NODE))
    site.now += timedelta(minutes=5)  # past any hold-down
    site.world = replace(site.world, shell=CountingShell(site.nodes))
    return site, site.begin(incident)


CASES = (
    Case("cold_cycle", begin_cold_cycle, count_offs),
    Case("reset_gpu", begin_gpu_reset, count_starts),
    Case("restart_units", begin_restart_of_service, count_starts),
    Case("requeue_dead_jobs", begin_requeue, count_requeues),
    Case("wait_for_jobs", begin_requeue_as_agreed, count_requeues),
)


@pytest.fixture(autouse=True)
def _no_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives leave is tested with approvals; here it is given."""
    monkeypatch.setattr(ColdCycle, "needs_approval", False)


def at_step(name: str) -> Callable[[Run], bool]:
    return lambda run: run.plan[run.step]["step"] == name


@pytest.mark.parametrize("point", ["allowed", "attempted"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.step)
def test_nothing_is_done_to_a_node_that_a_person_drains_just_before(case: Case, point: str) -> None:
    site, run = case.begin()
    run = site.play(run, until=at_step(case.step))
    said = []

    def reach(now_at: str) -> None:
        if now_at == point and not said:
            said.append(site.now)
            site.slurm.human_drain(NODE, THEIRS)

    turn.advance(run.pk, now=site.now, world=site.world, at=reach)
    assert said
    assert case.count(site) == 0
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.ABORTED
    assert case.count(site) == 0
    assert site.slurm.read_nodes((NODE,))[NODE].reason == THEIRS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.step)
def test_a_worker_that_stood_still_does_nothing_once_another_has_acted(case: Case) -> None:
    """Slurm shows the node as before: whose run it is tells."""
    site, run = case.begin()
    run = site.play(run, until=at_step(case.step))
    acts: list[int] = []

    def reach(point: str) -> None:
        if point != "attempted" or acts:
            return
        acts.append(0)
        for _ in range(3):
            site.now += LEASE + timedelta(minutes=2)  # past what the attempt may take
            turn.advance(run.pk, now=site.now, world=site.world)
            acts[0] = case.count(site)

    turn.advance(run.pk, now=site.now, world=site.world, at=reach)
    assert acts[0] > 0, "the other worker has acted"
    assert case.count(site) == acts[0]
