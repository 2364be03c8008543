"""A job that is requeued keeps away from the broken node on a real Slurm; its own list stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions
from runbooks.slurm.client import ScontrolWriter
from runbooks.slurm.protocol import SlurmJob
from tests.runbooks.conftest import CLUSTER
from tests.runbooks.slurm.test_slurm import real_client
from tests.services.patience import deadline_in

pytestmark = pytest.mark.needs("slurmctld", "slurmd", "munged")
NODES = ("gn001", "gn002", "gn003")


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[SlurmDaemons]:
    options = SlurmOptions(gpus_per_node=2, cpus_per_node=16)
    with SlurmDaemons(tmp_path, nodes=NODES, cluster_name=CLUSTER, options=options) as running:
        yield running


def until(condition: Callable[[], bool]) -> None:
    deadline = deadline_in(30)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def submit(daemons: SlurmDaemons, *options: str) -> str:
    """A job's id, once it runs."""
    words = ("--parsable", "--requeue", "--output=/dev/null", *options, "--wrap=sleep 600")
    number = daemons.command("sbatch", *words).strip()
    slurm = real_client(daemons)
    until(lambda: running_on(slurm, number) != ())
    return number


def running_on(slurm: ScontrolWriter, number: str) -> tuple[str, ...]:
    job = find(slurm, number)
    return job.nodes if job.state == "RUNNING" else ()


def find(slurm: ScontrolWriter, number: str) -> SlurmJob:
    job = slurm._find_job_by_id(number)
    assert job is not None
    return job


def excluded(daemons: SlurmDaemons, number: str) -> set[str]:
    slurm = real_client(daemons)
    return set(slurm._read_node_lists(find(slurm, number)).excluded)


def test_a_requeued_job_starts_elsewhere_and_keeps_its_own_list(daemons: SlurmDaemons) -> None:
    """The node is not drained here: the list alone keeps the job away."""
    slurm = real_client(daemons)
    number = submit(daemons, "--exclude=gn003")
    (node,) = running_on(slurm, number)
    other = ({"gn001", "gn002"} - {node}).pop()
    slurm.requeue(number)
    assert slurm.exclude_node(number, node)
    assert not slurm.exclude_node(number, node)
    assert excluded(daemons, number) == {node, "gn003"}
    until(lambda: find(slurm, number).state == "PENDING")
    daemons.command("scontrol", "update", f"JobId={number}", "StartTime=now")
    until(lambda: running_on(slurm, number) == (other,))
    assert excluded(daemons, number) == {node, "gn003"}


def test_when_the_node_is_back_its_own_list_is_left(daemons: SlurmDaemons) -> None:
    slurm = real_client(daemons)
    for number, own in ((submit(daemons, "--exclude=gn003"), {"gn003"}), (submit(daemons), set())):
        (node,) = running_on(slurm, number)
        slurm.requeue(number)
        slurm.exclude_node(number, node)
        until(lambda number=number: find(slurm, number).state == "PENDING")  # type: ignore[misc]
        slurm.admit_node(number, node)
        assert excluded(daemons, number) == own


def test_a_job_that_asks_for_the_node_is_left_as_it_is(daemons: SlurmDaemons) -> None:
    slurm = real_client(daemons)
    number = submit(daemons, "--nodelist=gn002", "--exclude=gn003")
    slurm.requeue(number)
    assert not slurm.exclude_node(number, "gn002")
    assert excluded(daemons, number) == {"gn003"}


def test_a_job_that_runs_again_is_left_as_it_is(daemons: SlurmDaemons) -> None:
    slurm = real_client(daemons)
    number = submit(daemons, "--exclude=gn003")
    assert not slurm.exclude_node(number, "gn001")
    slurm.admit_node(number, "gn003")
    assert excluded(daemons, number) == {"gn003"}


def test_the_other_tasks_of_an_array_keep_their_list(daemons: SlurmDaemons) -> None:
    slurm = real_client(daemons)
    array = daemons.command(
        *("sbatch", "--parsable", "--requeue", "--output=/dev/null", "--array=1-2"),
        *("--exclude=gn003", "--wrap=sleep 600"),
    ).strip()
    until(lambda: running_on(slurm, array) != ())
    (node,) = running_on(slurm, array)
    other = next(
        job.job_id
        for name in NODES
        for job in slurm.list_jobs(name)
        if job.task and job.job_id != array
    )
    slurm.requeue(array)
    assert slurm.exclude_node(array, node)
    assert excluded(daemons, array) == {node, "gn003"}
    assert excluded(daemons, other) == {"gn003"}
