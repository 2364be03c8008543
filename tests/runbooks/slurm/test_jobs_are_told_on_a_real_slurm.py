"""What a job's owner and the job itself are told through Slurm: a line in its output, a signal that
its script takes. And what Slurm says of GPUs that were not asked for by node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.cluster.slurm_daemons import SlurmDaemons
from runbooks.slurm.protocol import SlurmRefusal
from tests.runbooks.slurm.test_slurm import real_client

pytestmark = pytest.mark.needs("slurmctld", "slurmd")


def submit(daemons: SlurmDaemons, node: str, output: Path, script: str, *words: str) -> str:
    argv = ("sbatch", "--parsable", f"--nodelist={node}", f"--output={output}", *words)
    job = daemons.command(*argv, f"--wrap={script}").strip()
    daemons.wait_until(
        lambda: (
            "RUNNING" in daemons.command("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        ),
        what="the job runs",
    )
    return job


def test_a_line_and_a_signal_reach_the_job_and_it_goes_on(
    slurm_daemons: SlurmDaemons, take_node: Callable[[], str], tmp_path: Path
) -> None:
    output, saved = tmp_path / "out", tmp_path / "saved"
    script = f"trap 'touch {saved}' USR1; touch {tmp_path}/ready; while :; do sleep 0.2; done"
    job = submit(slurm_daemons, take_node(), output, script)
    slurm_daemons.wait_until((tmp_path / "ready").exists, what="the script listens")
    slurm = real_client(slurm_daemons)
    slurm.notify_job(job, 'Kintsugi: gn001 is broken: "GPU 3" | a=b; rm -rf /\nand more')
    slurm.signal_job(job, "USR1", is_batch=True)
    slurm_daemons.wait_until(saved.exists, what="the script has taken the signal")
    slurm_daemons.wait_until(
        lambda: "Kintsugi: gn001 is broken" in output.read_text(), what="the owner can read it"
    )
    assert "rm -rf / and more" in output.read_text()
    state = slurm_daemons.command("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    assert state.strip() == "RUNNING"
    slurm_daemons.command("scancel", job)


@pytest.mark.parametrize("words", [("--gpus=2",), ("--gres=gpu:2",), ("--gpus-per-node=2",)])
def test_a_jobs_gpus_and_partition_are_known_however_it_asked(
    slurm_daemons: SlurmDaemons,
    take_node: Callable[[], str],
    tmp_path: Path,
    words: tuple[str, ...],
) -> None:
    node = take_node()
    job = submit(slurm_daemons, node, tmp_path / "out", "sleep 600", *words)
    (found,) = real_client(slurm_daemons).list_jobs(node)
    assert (found.job_id, found.gpus_per_node, found.partition) == (job, 2, "gpu")
    slurm_daemons.command("scancel", job)


def test_a_job_that_slurm_does_not_know_and_a_signal_that_ends_jobs_are_refused(
    slurm_daemons: SlurmDaemons,
) -> None:
    slurm = real_client(slurm_daemons)
    with pytest.raises(SlurmRefusal, match="knows no such job"):
        slurm.notify_job("999999", "x")
    with pytest.raises(SlurmRefusal, match="no job id"):
        slurm.signal_job("ALL", "USR1", is_batch=False)


def test_no_signal_is_sent_but_those_that_a_policy_may_name(
    slurm_daemons: SlurmDaemons, take_node: Callable[[], str], tmp_path: Path
) -> None:
    job = submit(slurm_daemons, take_node(), tmp_path / "out", "sleep 600")
    with pytest.raises(SlurmRefusal, match="no signal"):
        real_client(slurm_daemons).signal_job(job, "KILL", is_batch=True)
    slurm_daemons.command("scancel", job)
