"""The node's own check as Prolog and HealthCheckProgram of a real slurmd."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbooks.slurm import ownership
from tests.detectors.cli.checked_slurm import NODE, a_checked_slurm
from tests.detectors.cli.test_check import Server
from tests.runbooks.slurm.test_slurm import real_client

pytestmark = pytest.mark.needs("slurmctld", "slurmd", "munged", "srun")


def test_slurms_health_check_fills_the_cache_and_each_prolog_answers_from_it(
    tmp_path: Path,
) -> None:
    with a_checked_slurm(tmp_path) as checked:
        asked = checked.read("asked")
        for _ in range(3):
            checked.run_job()
        assert len(checked.list_prolog_times_ms()) == 3
        assert checked.read("asked") == asked != ""
        line = checked.read("health.out")
        assert line.startswith("KINTSUGI OK - ")
        assert checked.read("prolog.out") == line * 3


def test_jobs_start_in_slurm_though_the_check_finds_a_gpu_lost(tmp_path: Path) -> None:
    with a_checked_slurm(tmp_path, lost=[1]) as checked:
        checked.run_job()
        assert "KINTSUGI CRITICAL - gpu.lost on node/gn001/gpu/0000:3b:00.0" in checked.read(
            "prolog.out"
        )
        assert not real_client(checked.slurm).read_nodes((NODE,))[NODE].is_out


def test_slurm_drains_the_node_itself_where_the_server_grants_that_the_job_is_stopped(
    tmp_path: Path,
) -> None:
    """What Slurm then writes is Slurm's own, which a run may take over."""
    with (
        Server(200, {"is_granted": True, "reason": "gpu.lost on gn001"}) as granting,
        a_checked_slurm(tmp_path, lost=[1], words=["--block", granting.url]) as checked,
    ):
        slurm = checked.slurm
        client = real_client(slurm)
        job = slurm.command("sbatch", "--parsable", "--output=/dev/null", "--wrap=true").strip()
        slurm.wait_until(
            lambda: client.read_nodes((NODE,))[NODE].is_draining, what="Slurm drains the node"
        )
        node = client.read_nodes((NODE,))[NODE]
        slurm_user = ownership.parse_slurm_user(client.read_config())
        whose = ownership.get_owner(node, 1, [], slurm_user=slurm_user)
        assert whose is ownership.Owner.SLURM, node
        left = slurm.command("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip()
        assert left == "PENDING"
        assert "the job is stopped: gpu.lost on gn001" in checked.read("prolog.out")
