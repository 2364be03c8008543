"""Runs on a real Slurm: what slurmctld's own log says was done to the nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection

from fixtures.cluster.slurm_daemons import SlurmDaemons
from incidents.models import Incident
from incidents.vocabulary.lifecycle import State
from kintsugi.periodic.reserving import follow_reservations
from runbooks import services
from runbooks.guards.table import compute_cap
from runbooks.guards.verdicts import Bounds
from runbooks.lease.lease import LEASE
from runbooks.models import Run, RunState
from runbooks.steps.reboot import Reboot
from tests.runbooks.conftest import boots, reboots_asked
from tests.runbooks.real_site import RealSite
from tests.runbooks.site import Site, a_policy
from tests.runbooks.test_services import at_once
from tests.services.patience import patient

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("database_on_disk"),
]


def deeds(daemons: SlurmDaemons, node: str) -> list[str]:
    """What slurmctld logged about the node, without its time stamps."""
    lines = (line.partition("] ")[2] for line in daemons.log.read_text().splitlines())
    return [
        line for line in lines if f"node {node} " in f"{line} " or line.endswith(f"nodes {node}")
    ]


def a_run(site: RealSite, node: str) -> tuple[Run, Incident]:
    """The inventory, the incident of a lost GPU, and its run, all made on the wall clock."""
    tables = Site(nodes=0)
    tables.now = site.now()
    tables.add_node(node)
    incident = tables.raise_fault(node, resource=f"node/{node}/gpu/0000:19:00.0")
    services.start_due([incident.pk], now=site.now(), world=site.world)
    return Run.objects.get(incident=incident), incident


def a_site(daemons: SlurmDaemons, *nodes: str, **changes: object) -> RealSite:
    lost = [f"{node}/gpu/0" for node in nodes]
    return RealSite(daemons.conf, daemons.directory / "boots", nodes, lost=lost, **changes)  # type: ignore[arg-type]


def test_slurm_drains_waits_reboots_once_and_resumes(
    slurm_daemons: SlurmDaemons, take_node: Callable[[], str]
) -> None:
    node = take_node()
    site = a_site(slurm_daemons, node)
    # The job goes on until its node is drained, however late that is.
    ends = f"until scontrol show node {node} | grep -q DRAIN; do sleep 0.2; done"
    slurm_daemons.command("sbatch", f"--nodelist={node}", "--output=/dev/null", f"--wrap={ends}")
    slurm_daemons.wait_until(
        lambda: bool(site.world.slurm.list_jobs(node)), what="the job is on the node"
    )
    run, incident = a_run(site, node)
    ended = site.play(run.pk)
    incident.refresh_from_db()
    assert ended.state == RunState.SUCCEEDED, ended.outcome
    assert incident.state == State.MONITORING
    reason = ended.facts["reason"]
    assert reason.startswith(f"kintsugi:{incident.pk}/")
    done = deeds(slurm_daemons, node)
    assert done.index(f"update_node: node {node} reason set to: {reason}") < done.index(
        f"reboot request queued for nodes {node}"
    )
    assert done.count(f"reboot request queued for nodes {node}") == 1
    assert f"update_node: node {node} state set to DRAINING" in done
    assert f"update_node: node {node} state set to IDLE" in done
    assert boots(slurm_daemons, node) == 1
    assert not site.world.slurm.read_nodes((node,))[node].is_draining


@pytest.mark.parametrize(
    ("step", "point"), [("reboot", "attempted"), ("reboot", "acted"), ("resume", "acted")]
)
def test_another_worker_ends_the_run_with_one_reboot_when_one_is_killed(
    slurm_daemons: SlurmDaemons, take_node: Callable[[], str], tmp_path: Path, step: str, point: str
) -> None:
    node = take_node()
    run, incident = a_run(a_site(slurm_daemons, node), node)
    arguments = [
        str(run.pk),
        step,
        point,
        str(slurm_daemons.conf),
        str(slurm_daemons.directory / "boots"),
        node,
    ]
    worker = subprocess.run(
        [sys.executable, "-m", "tests.chaos.worker", *arguments],
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert worker.returncode == -signal.SIGKILL, worker.stderr
    ended = a_site(
        slurm_daemons, node, ahead=LEASE + Reboot.settles_in + timedelta(seconds=1)
    ).play(run.pk)
    incident.refresh_from_db()
    assert ended.state == RunState.SUCCEEDED, ended.outcome
    assert incident.state == State.MONITORING
    assert reboots_asked(slurm_daemons, node) == 1
    assert boots(slurm_daemons, node) == 1
    assert not a_site(slurm_daemons, node).world.slurm.read_nodes((node,))[node].is_draining


def _environment(tmp_path: Path) -> dict[str, str]:
    """The worker's settings: the database of this test."""
    values = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "kintsugi.settings",
        "KINTSUGI_DATA_DIR": str(tmp_path / "data"),
    }
    place = connection.settings_dict
    if connection.vendor == "postgresql":
        url = f"postgresql://{place['USER']}@{place['HOST']}:{place['PORT']}/{place['NAME']}"
        return values | {"DATABASE_URL": url}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kintsugi.sqlite3").symlink_to(place["NAME"])
    return values


def test_persons_drain_stays_as_it_is(
    slurm_daemons: SlurmDaemons, take_node: Callable[[], str]
) -> None:
    node = take_node()
    slurm_daemons.command(
        "scontrol", "update", f"NodeName={node}", "State=DRAIN", 'Reason=bob: tray | 3="x" out'
    )
    site = a_site(slurm_daemons, node)
    run, _ = a_run(site, node)
    services.advance(run.pk, now=site.now(), world=site.world)
    run.refresh_from_db()
    assert 'is taken out by root: "bob: tray | 3="x" out"' in run.waiting_for
    assert [line for line in deeds(slurm_daemons, node) if "reason set" in line] == [
        f'update_node: node {node} reason set to: bob: tray | 3="x" out'
    ]


def test_cap_holds_when_twenty_workers_drain_through_slurm_at_once(
    slurm_daemons: SlurmDaemons, take_node: Callable[[], str]
) -> None:
    nodes = [take_node() for _ in range(20)]
    # Their GPUs answer: no limit holds a node that is seen to be of no use.
    site = RealSite(slurm_daemons.conf, slurm_daemons.directory / "boots", nodes, lost=[])
    # What is tested is the cap: twenty nodes that turn bad at once would trip the breaker too.
    site.world = replace(site.world, policy=a_policy(bounds=Bounds(breaker_share=1.0)))
    runs = [a_run(site, node)[0] for node in nodes]
    limit = compute_cap(len(slurm_daemons.nodes))
    # Nodes of the tests before may still be coming back; what a person drained stays out.
    slurm_daemons.wait_until(
        lambda: all(
            state.is_drained for state in site.world.slurm.read_nodes().values() if state.is_out
        ),
        what="no node is on its way back",
    )
    before = sum(state.is_out for state in site.world.slurm.read_nodes().values())
    at_once(20, lambda number: services.advance(runs[number].pk, now=site.now(), world=site.world))
    after = [name for name, state in site.world.slurm.read_nodes().items() if state.is_out]
    assert len(after) == max(limit, before)
    for name in set(after) & set(nodes):
        site.world.slurm.resume(name)


def test_maintenance_in_slurm_keeps_faults_from_people_and_its_end_announces_them(
    slurm_daemons: SlurmDaemons, take_node: Callable[[], str]
) -> None:
    node = take_node()
    site = a_site(slurm_daemons, node)
    words = ("ReservationName=maint", "StartTime=now", "Duration=60", f"Nodes={node}", "Users=root")
    slurm_daemons.command("scontrol", "create", "reservation", *words, "Flags=MAINT,IGNORE_JOBS")
    follow_reservations(site.now(), site.world)
    tables = Site(nodes=0)
    tables.now = site.now()
    tables.add_node(node)
    incident = tables.raise_fault(node, resource=f"node/{node}/gpu/0000:19:00.0")
    assert services.start_due([incident.pk], now=site.now(), world=site.world) == []
    assert incident.silence is not None
    assert incident.silence.origin == "slurm:maint"
    slurm_daemons.command("scontrol", "delete", "ReservationName=maint")
    follow_reservations(site.now(), site.world)
    incident.refresh_from_db()
    assert incident.silence is None
    assert incident.timeline.filter(kind="announced").exists()
    assert services.start_due([incident.pk], now=site.now(), world=site.world) != []
