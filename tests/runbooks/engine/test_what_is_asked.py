"""What one turn asks of Slurm. Most turns wait, and a site has many of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from fixtures.memory_slurm import MemorySlurm
from runbooks.models import Run
from runbooks.slurm.protocol import NodeState, SlurmJob
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
NODE = "gn001"


class Recording(MemorySlurm):
    """Keeps what it was asked, in order; the whole fleet is `nodes`."""

    asked: list[str]

    def read_nodes(self, names: Sequence[str] = ()) -> dict[str, NodeState]:
        self.asked.append(",".join(names) or "nodes")
        return super().read_nodes(names)

    def list_jobs(self, node: str) -> list[SlurmJob]:
        self.asked.append(f"jobs of {node}")
        return super().list_jobs(node)


def record(site: Site) -> Recording:
    slurm = Recording.__new__(Recording)
    vars(slurm).update(vars(site.slurm))
    slurm.asked = []
    site.world = replace(site.world, slurm=slurm)
    return slurm


def advance_to(site: Site, run: Run, step: str) -> Run:
    while run.plan[run.step]["step"] != step:
        run = site.advance(run)
        site.now += timedelta(seconds=2)
    return run


def test_a_run_that_waits_for_jobs_asks_for_its_node_and_its_jobs_once() -> None:
    site = Site()
    site.slurm.add_job("900", nodes=[NODE])
    run = advance_to(site, site.begin(site.lose_gpu(NODE)), "wait_for_jobs")
    slurm = record(site)
    run = site.advance(run)
    assert "still on gn001" in run.waiting_for
    assert slurm.asked == [NODE, f"jobs of {NODE}"]


def test_a_run_that_acts_asks_for_the_fleet_once_nothing_else_ends_its_turn() -> None:
    site = Site()
    run = advance_to(site, site.begin(site.lose_gpu(NODE)), "reboot")
    slurm = record(site)
    site.advance(run)
    assert slurm.asked[:2] == [NODE, "nodes"]
