"""What a lost GPU costs, with a real Slurm's jobs: one that is cancelled after it, one that goes on
elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from detectors import resources
from fixtures.cluster.slurm_daemons import SlurmDaemons
from incidents import services
from incidents.impact import impact
from incidents.jobs import job_source
from incidents.models import Incident, IncidentJob
from kintsugi.periodic import job_watch, periods
from runbooks.guards import room
from tests.builders import an_event
from tests.runbooks.slurm.test_slurm import real_client
from tests.services.patience import deadline_in

pytestmark = [pytest.mark.django_db, pytest.mark.needs("slurmctld", "slurmd")]


def submitted(daemons: SlurmDaemons, nodes: str, *words: str) -> str:
    argv = (
        "sbatch",
        "--parsable",
        f"--nodelist={nodes}",
        "--gres=gpu:2",
        "--output=/dev/null",
        *words,
    )
    job = daemons.command(*argv, "--wrap=sleep 600").strip()
    daemons.wait_until(
        lambda: (
            "RUNNING" in daemons.command("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        ),
        what="the job runs",
    )
    return job


def test_a_job_cancelled_after_its_node_lost_a_gpu_is_counted_with_its_checkpoint(
    slurm_daemons: SlurmDaemons, take_node: Callable[[], str]
) -> None:
    first, second, other = take_node(), take_node(), take_node()
    begun = datetime.now(UTC)
    lost = submitted(slurm_daemons, f"{first},{second}", "--nodes=2")
    submitted(slurm_daemons, other)
    slurm_daemons.command(
        "scontrol", "update", f"JobId={lost}", f"Comment=checkpoint={begun.timestamp():.0f}"
    )
    slurm = real_client(slurm_daemons)
    now = datetime.now(UTC)
    event = an_event(
        resource=resources.gpu(first, "0000:9b:00.0"), occurred_at=now, observed_at=now
    )
    services.ingest([event], now=now)
    job_watch.update_jobs(now, slurm)
    incident = Incident.objects.get()
    assert incident.jobs_touched == 1, job_source.get_notice()
    slurm_daemons.command("scancel", lost)
    deadline, ahead = deadline_in(20), timedelta(0)
    while not IncidentJob.objects.filter(outcome="CANCELLED").exists():
        assert time.monotonic() < deadline
        ahead += periods.UPDATE_JOBS
        job_watch.update_jobs(now + ahead, slurm)
    row = IncidentJob.objects.select_related("job").get()
    assert (row.job.job_id, row.is_harmed, row.is_estimate, row.job.gpus) == (lost, True, False, 4)
    ran = (row.job.ended_at - row.job.started_at) / timedelta(hours=1)  # type: ignore[operator]
    assert row.gpu_hours_lost is not None
    assert 0 < row.gpu_hours_lost <= 4 * ran
    assert impact.get_tally(Incident.objects.get()).people == 1  # type: ignore[union-attr]
    assert "keeps no accounts" in job_source.get_notice()


@pytest.mark.parametrize(
    ("words", "gpus"),
    [(("--gpus=2",), 2), (("--ntasks=2", "--gpus-per-task=1"), 2), (("--gres=gpu:1",), 1)],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_gpus_of_a_job_are_known_however_it_asked_for_them(
    slurm_daemons: SlurmDaemons, take_node: Callable[[], str], words: tuple[str, ...], gpus: int
) -> None:
    wanted = ("sbatch", "--parsable", f"--nodelist={take_node()}", "--output=/dev/null", *words)
    job_id = slurm_daemons.command(*wanted, "--wrap=sleep 600").strip()
    slurm = real_client(slurm_daemons)
    slurm_daemons.wait_until(
        lambda: any(
            job.job_id == job_id for job in slurm.read_recent_jobs(timedelta(hours=1)).records
        ),
        what="the job runs",
    )
    (found,) = (
        job for job in slurm.read_recent_jobs(timedelta(hours=1)).records if job.job_id == job_id
    )
    assert found.gpus == gpus


def test_a_job_that_is_held_depends_on_another_or_begins_in_years_keeps_no_node(
    slurm_daemons: SlurmDaemons, take_node: Callable[[], str]
) -> None:
    running = submitted(slurm_daemons, take_node())
    wanted = ("sbatch", "--parsable", "--nodes=40", "--gres=gpu:2", "--output=/dev/null")
    for words in (("--hold",), (f"--dependency=afterok:{running}",), ("--begin=2099-01-01",)):
        slurm_daemons.command(*wanted, *words, "--wrap=true")
    waiting = slurm_daemons.command(*wanted, "--wrap=true").strip()
    slurm = real_client(slurm_daemons)
    slurm_daemons.wait_until(
        lambda: (
            slurm_daemons.command("squeue", "--noheader", f"--jobs={waiting}", "--format=%r")
            .strip()
            .startswith("Resources")
        ),
        what="the job waits for nodes",
    )
    demands = {one.job_id: one for one in slurm.list_demands() if one.nodes == 40}
    soon = datetime.now(UTC) + room.STARTS_SOON
    assert demands.pop(waiting)
    (begins_later,) = demands.values()
    assert begins_later.starts_at is not None
    assert begins_later.starts_at > soon
