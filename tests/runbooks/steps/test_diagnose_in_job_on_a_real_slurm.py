"""A node lent to a job of ours on a real Slurm: ours runs there, nobody else's does, whatever
dies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from detectors.detector import Output, Target
from detectors.transports.ssh import LocalShell
from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions
from fixtures.cluster.world import SimulatedNode, SimulatedShell, SimulatedWorld
from runbooks import services
from runbooks.library import library
from runbooks.models import Run, RunState, StepRun
from runbooks.steps import diagnose_in_job
from tests.runbooks.conftest import CLUSTER
from tests.runbooks.real_site import RealSite
from tests.runbooks.site import Site

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("database_on_disk"),
]
NODE = "gn001"
STEPS = ("drain", "wait_for_jobs", "diagnose", "resume")


class Reading(SimulatedShell):
    """Reports that real jobs have left are read where they are."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        return (
            LocalShell().run(target, argv, timeout)
            if argv[0] == "tail"
            else super().run(target, argv, timeout)
        )


class Lending:
    """A real Slurm of two nodes, a run that tests gn001 by a job, and a job of somebody that waits
    for gn001."""

    def __init__(self, daemons: SlurmDaemons) -> None:
        self.daemons = daemons
        self.site = RealSite(daemons.conf, daemons.directory / "boots", [NODE])
        model = SimulatedWorld([SimulatedNode(NODE, clock=self.site.now)], clock=self.site.now)
        self.site.world = replace(self.site.world, shell=Reading(model))
        tables = Site(nodes=0)
        tables.now = self.site.now()
        for name in daemons.nodes:
            tables.add_node(name)
        incident = tables.raise_fault(NODE, resource=f"node/{NODE}/gpu/0000:19:00.0")
        services.start_due([incident.pk], now=self.site.now(), world=self.site.world)
        self.run = Run.objects.get(incident=incident)
        given = {"diagnose": {"where": "job", "level": 1}}
        self.run.plan = [library.plan_step(name, given.get(name, {})).as_row() for name in STEPS]
        self.run.save()
        self.site.play_until(self.run.pk, lambda run: run.step == STEPS.index("diagnose"))
        words = (f"--nodelist={NODE}", "--output=/dev/null", "--chdir=/", "--time=1", "--wrap=true")
        self.users = daemons.command("sbatch", "--parsable", *words).strip()
        kept = daemons.directory / "state" / "job_state"
        daemons.wait_until(
            lambda: kept.exists() and b"wrap" in kept.read_bytes(),
            what="slurmctld has kept the job",
        )

    def until(self, fact: str) -> Run:
        return self.site.play_until(self.run.pk, lambda run: fact in run.facts.get("lent", {}))

    def until_let_in(self) -> None:
        """Past the time in which slurmctld might forget the reservation."""
        self.until("reserved_at")
        kept = self.daemons.directory / "state" / "resv_state"
        self.daemons.wait_until(
            lambda: kept.exists() and b"kintsugi_" in kept.read_bytes(), what="it is kept"
        )
        self.site.ahead += timedelta(seconds=31)
        self.until("let_in_at")

    def until_judged(self) -> Run:
        self.until("out_at")
        assert self.state_of_users() == "PENDING"
        self.site.ahead += timedelta(seconds=61)
        done = lambda run: run.finished_at is not None or run.step == STEPS.index("resume")  # noqa: E731
        return self.site.play_until(self.run.pk, done)

    def state_of_users(self) -> str:
        asked = ("--noheader", "--states=all", f"--jobs={self.users}", "--format=%T")
        return self.daemons.command("squeue", *asked).strip()

    def beginnings(self) -> int:
        """How often slurmctld has begun."""
        return self.daemons.log.read_text().count("Running as primary controller")


@pytest.fixture
def lending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Lending]]:
    """Called with what dcgmi says on the node."""
    monkeypatch.setattr(diagnose_in_job, "FOLDER", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with SlurmDaemons(
        tmp_path / "slurm",
        nodes=[NODE, "gn002"],
        cluster_name=CLUSTER,
        options=SlurmOptions(gpus_per_node=8),
    ) as daemons:

        def begin(status: str = "Pass", *, lasts: int = 0) -> Lending:
            tests = [{"name": "Memory", "results": [{"gpu_id": "3", "status": status}]}]
            report = json.dumps(
                {"DCGM GPU Diagnostic": {"test_categories": [{"category": "c", "tests": tests}]}}
            )
            (tmp_path / "bin").mkdir()
            dcgmi = tmp_path / "bin" / "dcgmi"
            dcgmi.write_text(
                f"#!/bin/sh\nsleep {lasts}\necho '{report}'\nexit {0 if status == 'Pass' else 226}\n"
            )
            dcgmi.chmod(0o755)
            return Lending(daemons)

        yield begin


def test_a_job_tests_the_node_and_nobody_elses_starts_there_until_it_is_resumed(
    lending: Callable[..., Lending],
) -> None:
    lent = lending()
    lent.until_let_in()
    lent.until_judged()
    row = StepRun.objects.get(run=lent.run, name="diagnose", outcome=StepRun.Outcome.DONE)
    assert row.text == "`dcgmi diag -r 1 -j` passed on gn001."
    assert "Memory" in next(iter(row.evidence.values()))
    assert lent.site.world.slurm.list_reservations() == []
    assert lent.state_of_users() == "PENDING"
    assert lent.site.play(lent.run.pk).state == RunState.SUCCEEDED
    lent.daemons.wait_until(
        lambda: lent.state_of_users() == "COMPLETED", what="the user's job ran after the resume"
    )


def test_a_failing_test_leaves_the_node_drained_and_unreserved(
    lending: Callable[..., Lending],
) -> None:
    lent = lending("Fail")
    lent.until_let_in()
    lent.until("out_at")
    lent.site.ahead += timedelta(seconds=61)
    run = lent.site.play(lent.run.pk)
    assert (run.state, "failed: Memory on GPU 3" in run.outcome) == (RunState.NOT_CURED, True), (
        run.outcome
    )
    assert lent.site.world.slurm.read_nodes((NODE,))[NODE].is_drained
    assert lent.site.world.slurm.list_reservations() == []
    assert lent.state_of_users() == "PENDING"


def test_nobody_elses_job_starts_when_slurmctld_is_killed_right_after_the_node_was_let_in(
    lending: Callable[..., Lending],
) -> None:
    lent = lending()
    lent.until_let_in()
    begun = lent.beginnings()
    lent.daemons.kill_controller()
    lent.daemons.start_controller()
    lent.daemons.wait_until(lambda: lent.beginnings() > begun, what="slurmctld is back")
    lent.until_judged()
    # A slurmctld that began anew knows more of it once its slurmd has registered.
    lent.daemons.wait_until(
        lambda: lent.site.world.slurm.read_nodes((NODE,))[NODE].is_drained, what="it is drained"
    )
    assert lent.state_of_users() == "PENDING"


def test_the_node_is_drained_at_once_when_its_reservation_is_taken_away(
    lending: Callable[..., Lending],
) -> None:
    """The job of ours is ended first, as an operator would have to: Slurm keeps a reservation that
    is in use."""
    lent = lending(lasts=60)
    lent.daemons.command("scancel", lent.users)  # by that the operator opens the node for it
    lent.until_let_in()
    lent.until("submitted_at")
    job = lent.site.world.slurm.find_job(f"{lent.run.pk}-2-diagnose")
    assert job is not None
    lent.site.world.slurm.cancel(job.job_id)
    lent.daemons.wait_until(
        lambda: not lent.site.world.slurm.list_jobs(NODE), what="its job is over"
    )
    lent.daemons.command("scontrol", "delete", f"ReservationName=kintsugi_{lent.run.pk}-2-diagnose")
    lent.site.ahead += timedelta(seconds=16)
    lent.until("out_at")
    assert lent.site.world.slurm.read_nodes((NODE,))[NODE].is_drained
    lent.site.ahead += timedelta(seconds=61)
    run = lent.site.play(lent.run.pk)
    assert (run.state, "the reservation of gn001 has ended" in run.outcome) == (
        RunState.FAILED,
        True,
    )
