"""A cold cycle that lasts longer than SlurmdTimeout: Slurm sets the node down, and the run goes on
all the same."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from detectors.slurm import output
from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions
from fixtures.cluster.world import SimulatedNode, SimulatedShell, SimulatedWorld
from fixtures.memory_power import MemoryPower
from incidents.models import Incident
from runbooks import services
from runbooks.library import library
from runbooks.models import Run, RunState
from runbooks.steps.cold_cycle import ColdCycle
from tests.runbooks.real_site import RealSite
from tests.runbooks.site import CLUSTER, Site

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("database_on_disk"),
]
NODE = "gn001"
STEPS = ("drain", "wait_for_jobs", "cold_cycle", "wait_for_boot", "resume")


def now() -> datetime:
    return datetime.now(UTC)


def a_site(daemons: SlurmDaemons) -> RealSite:
    """Power is the daemons' and the node's alike."""
    model = SimulatedWorld([SimulatedNode(NODE, clock=now)], clock=now)

    def switched(node: str, is_on: bool, at: datetime) -> None:
        daemons.switch(node, is_on=is_on)
        one = model.node(node)
        one.power_on(at) if is_on else one.power_off(at)

    site = RealSite(daemons.conf, daemons.directory / "boots", [NODE])
    power = MemoryPower([NODE], now=now, takes=timedelta(seconds=0.5), on_change=switched)
    site.world = replace(site.world, shell=SimulatedShell(model), power=power)
    return site


def a_run(site: RealSite) -> Run:
    tables = Site(nodes=0)
    tables.now = site.now()
    tables.add_node(NODE)
    tables.add_node("gn002")
    incident = tables.raise_fault(NODE, resource=f"node/{NODE}/gpu/0000:19:00.0")
    services.start_due([incident.pk], now=site.now(), world=site.world)
    run = Run.objects.get(incident=incident)
    given = {"cold_cycle": {"off_for": "30s"}}
    run.plan = [library.plan_step(name, given.get(name, {})).as_row() for name in STEPS]
    run.save()
    return run


@pytest.mark.parametrize("returns", ["0", "2"])
def test_a_node_that_slurm_sets_down_while_it_is_off_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returns: str
) -> None:
    monkeypatch.setattr(ColdCycle, "needs_approval", False)
    options = SlurmOptions(
        gpus_per_node=2,
        slurmd_timeout=timedelta(seconds=2),
        settings={"ReturnToService": returns},
    )
    with SlurmDaemons(
        tmp_path / "slurm", nodes=[NODE, "gn002"], cluster_name=CLUSTER, options=options
    ) as daemons:
        site = a_site(daemons)
        run = site.play(a_run(site).pk)
        assert run.state == RunState.SUCCEEDED, (run.outcome, Incident.objects.get().needs_human)
        assert "was off for" in run.steps.get(name="cold_cycle").text
        set_down = re.findall(r"Nodes (\S+) not responding, setting DOWN", daemons.log.read_text())
        assert any(NODE in output.iterate_hosts(nodes) for nodes in set_down)
        state = site.world.slurm.read_nodes((NODE,))[NODE]
        assert (state.is_draining, state.base) == (False, "IDLE")
