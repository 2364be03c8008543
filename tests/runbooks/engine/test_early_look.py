"""The node is asked while Slurm is. What it says counts as if it had been asked afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest

from detectors.detector import Output, Target
from detectors.provenance import Provenance, Transport
from fixtures.cluster.world import SimulatedWorld
from fixtures.memory_slurm import MemorySlurm
from runbooks.models import Run
from runbooks.slurm import protocol
from runbooks.slurm.protocol import Demand, NodeState
from tests.runbooks.site import Site, Unplugged

pytestmark = pytest.mark.django_db
NODE = "gn001"
ANYBODY = Provenance("10.66.6.6", Transport.UDP, program="kernel", facility=0)
LINE = "NVRM: Xid (PCI:0000:19:00): 119, pid=1, Timeout waiting for RPC from GSP!"


class Recording(Unplugged):
    """Keeps what nodes were asked, in order."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self.asked: list[str] = []

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        self.asked.append(argv[0])
        return super().run(target, argv, timeout)


class Slow(MemorySlurm):
    """Something happens between the node's answer and that of Slurm."""

    meanwhile: Callable[[], object] = staticmethod(protocol.do_nothing)

    def read_nodes_beside(self, beside: Callable[[], None]) -> dict[str, NodeState]:
        found = super().read_nodes_beside(beside)
        self.meanwhile()
        return found


class Queue(MemorySlurm):
    """Counts how often the jobs that run and wait are asked for."""

    asked = 0

    def list_demands(self) -> list[Demand]:
        self.asked += 1
        return super().list_demands()


_Slurm = TypeVar("_Slurm", bound=MemorySlurm)


def ask_by(site: Site, kind: type[_Slurm]) -> _Slurm:
    """The site's Slurm, looked at by another reader."""
    reader = kind.__new__(kind)
    vars(reader).update(vars(site.slurm))
    site.world = replace(site.world, slurm=reader)
    return reader


def slow_down(site: Site, meanwhile: Callable[[], object]) -> None:
    ask_by(site, Slow).meanwhile = meanwhile  # type: ignore[method-assign]


def record(site: Site) -> Recording:
    shell = Recording(site.nodes)
    site.world = replace(site.world, shell=shell)
    return shell


def tell(site: Site, fault_type: str) -> Run:
    """A text that anybody may have written, and the run that it begins."""
    incident = site.raise_fault(NODE, fault_type=fault_type, told_by=ANYBODY)
    return site.begin(incident)


def is_drained(site: Site) -> bool:
    return site.slurm.read_nodes((NODE,))[NODE].is_draining


def test_the_node_is_asked_once_and_before_slurm_has_answered() -> None:
    site = Site()
    shell = record(site)
    site.nodes.inject("gpu_lost", f"{NODE}/gpu/0")
    before: list[str] = []
    slow_down(site, lambda: before.extend(shell.asked))
    site.advance(tell(site, "gpu.xid.79"))
    assert "journalctl" in before
    assert shell.asked.count("journalctl") == 1
    assert is_drained(site)


def test_a_fault_that_comes_after_the_nodes_answer_has_it_asked_again() -> None:
    site = Site()
    shell = record(site)
    run = tell(site, "gpu.xid.79")

    def fail() -> None:
        site.nodes.nodes[NODE].kernel(LINE, at=site.now)
        site.raise_fault(NODE, fault_type="gpu.xid.119", told_by=ANYBODY)

    slow_down(site, fail)
    site.advance(run)
    assert shell.asked.count("journalctl") == 2
    assert is_drained(site)


def test_what_the_node_denies_is_denied_by_the_early_look_too() -> None:
    site = Site()
    run = site.advance(tell(site, "gpu.xid.79"))
    assert not is_drained(site)
    assert "does not show it" in run.waiting_for


def test_nobody_is_asked_early_for_what_needs_no_witness() -> None:
    site = Site()
    shell = record(site)
    before: list[str] = []
    slow_down(site, lambda: before.extend(shell.asked))
    site.advance(site.begin(site.lose_gpu(NODE)))
    assert before == []
    assert is_drained(site)


def test_a_person_who_drains_the_node_after_its_answer_keeps_it() -> None:
    site = Site()
    site.nodes.inject("gpu_lost", f"{NODE}/gpu/0")
    run = tell(site, "gpu.xid.79")
    slow_down(site, lambda: site.slurm.drain(NODE, "ada: hands inside"))
    site.advance(run)
    assert site.slurm.read_nodes((NODE,))[NODE].reason == "ada: hands inside"


def test_nobody_asks_what_jobs_need_for_a_node_that_serves_none() -> None:
    site = Site()
    queue = ask_by(site, Queue)
    site.advance(site.begin(site.lose_gpu(NODE)))
    assert is_drained(site)
    assert queue.asked == 0


def test_what_jobs_need_is_asked_once_for_a_node_that_serves_them() -> None:
    site = Site()
    queue = ask_by(site, Queue)
    site.advance(site.begin(site.stall_gpu(NODE)))
    assert is_drained(site)
    assert queue.asked == 1
