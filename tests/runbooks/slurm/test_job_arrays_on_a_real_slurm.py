"""Job arrays on a real Slurm: the id that one task of an array has is that of the whole array too, and
what is done to a task is done to no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.cluster.slurm_daemons import SlurmDaemons
from runbooks.slurm.client import ScontrolWriter
from runbooks.slurm.protocol import SlurmJob
from tests.runbooks.slurm.test_real_slurm_states import a_slurm
from tests.runbooks.slurm.test_slurm import real_client
from tests.services.patience import deadline_in

pytestmark = pytest.mark.needs("slurmctld", "slurmd", "munged")
TASKS = 2


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[SlurmDaemons]:
    with a_slurm(tmp_path) as running:
        yield running


@pytest.fixture
def slurm(daemons: SlurmDaemons) -> ScontrolWriter:
    """Where one array runs, a task on each node."""
    what = "while :; do sleep 1; done"
    options = ("--requeue", "--exclusive", f"--array=1-{TASKS}", "--output=/dev/null")
    daemons.command("sbatch", *options, f"--wrap={what}")
    client = real_client(daemons)
    until(lambda: len(running(client)) == TASKS)
    return client


def until(condition: Callable[[], bool]) -> None:
    deadline = deadline_in(30)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def running(slurm: ScontrolWriter) -> dict[str, SlurmJob]:
    """Jobs that run, by id."""
    found = (slurm.list_jobs(node) for node in ("gn001", "gn002"))
    return {job.job_id: job for jobs in found for job in jobs if job.state == "RUNNING"}


@pytest.mark.parametrize("number", range(TASKS))
def test_a_task_is_requeued_and_the_others_run_on(slurm: ScontrolWriter, number: int) -> None:
    before = running(slurm)
    chosen = before[sorted(before)[number]]
    slurm.requeue(chosen.job_id)
    until(lambda: chosen.job_id not in running(slurm))
    time.sleep(1)
    rest = {name: job for name, job in before.items() if name != chosen.job_id}
    assert running(slurm) == rest


@pytest.mark.parametrize("number", range(TASKS))
def test_a_task_is_signalled_and_the_others_are_not(slurm: ScontrolWriter, number: int) -> None:
    before = running(slurm)
    chosen = before[sorted(before)[number]]
    slurm.signal_job(chosen.job_id, "USR1", is_batch=True)
    until(lambda: chosen.job_id not in running(slurm))
    time.sleep(1)
    assert running(slurm).keys() == before.keys() - {chosen.job_id}


def test_each_task_has_the_name_that_means_it_alone(slurm: ScontrolWriter) -> None:
    tasks = {job.task for job in running(slurm).values()}
    (array,) = {task.partition("_")[0] for task in tasks}
    assert tasks == {f"{array}_1", f"{array}_2"}
