"""A node registers with fewer GPUs than slurm.conf says, on a real Slurm that believes the node: it
drains the node itself, and from 23.02 on it writes over a reason that stands there."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fixtures.cluster.slurm_daemons import LAST_THAT_FORGETS, SlurmDaemons, get_version
from runbooks.models import Run, RunState
from runbooks.shadow import shadow_log
from runbooks.slurm.ownership import Owner, get_owner, get_written
from tests.runbooks.engine.test_persons_on_a_real_slurm import THEIRS, until_left_alone, update
from tests.runbooks.slurm.test_real_slurm_states import a_run, a_slurm, look
from tests.runbooks.slurm.test_slurm import real_client

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("database_on_disk"),
]
NODE = "gn001"
FEWER = "gres/gpu count reported lower than configured (1 < 2)"


def a_slurm_that_counts(directory: Path, **settings: str) -> SlurmDaemons:
    """Without `config_overrides`: what a node registers with is held against slurm.conf."""
    cpus = os.cpu_count() or 1
    return a_slurm(directory, cpus=cpus, SlurmdParameters="l3cache_as_socket", **settings)


def lose_gpu(slurm: SlurmDaemons) -> None:
    """The node comes back with one GPU of its two."""
    (slurm.directory / "gres.conf").write_text(f"Name=gpu File={slurm.directory}/gpus/nvidia0\n")
    slurm.kill_node(NODE)
    slurm.start_node(NODE)
    slurm.wait_until(lambda: "INVALID_REG" in look(slurm).flags, what="it registers with one GPU")


def see(slurm: SlurmDaemons) -> None:
    """What the minute's look at Slurm keeps."""
    shadow_log.record_external_acts(real_client(slurm).read_nodes(), datetime.now(UTC))


def test_a_node_in_service_is_drained_by_slurm_itself(tmp_path: Path) -> None:
    with a_slurm_that_counts(tmp_path) as slurm:
        lose_gpu(slurm)
        state = look(slurm)
        assert (state.is_draining, state.reason) == (True, FEWER)
        assert get_owner(state, 7, []) is Owner.SLURM


def test_our_drain_stays_ours_when_the_node_comes_back_with_fewer_gpus(tmp_path: Path) -> None:
    with a_slurm_that_counts(tmp_path) as slurm:
        site, run, _ = a_run(slurm)
        site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "reboot")
        written = get_written(look(slurm))
        lose_gpu(slurm)
        is_kept = get_version() <= LAST_THAT_FORGETS
        assert look(slurm).reason == (written.reason if is_kept else FEWER)
        site.advance(run.pk)
        run = Run.objects.get(pk=run.pk)
        assert run.state not in (RunState.ABORTED, RunState.FAILED), run.outcome
        assert look(slurm).is_draining


def test_a_persons_drain_stays_theirs_when_the_node_comes_back_with_fewer_gpus(
    tmp_path: Path,
) -> None:
    with a_slurm_that_counts(tmp_path) as slurm:
        site, run, incident = a_run(slurm)
        see(slurm)
        update(slurm, "State=DRAIN", f"Reason={THEIRS}")
        see(slurm)
        lose_gpu(slurm)
        see(slurm)
        until_left_alone(site, run)
        assert look(slurm).reason in (THEIRS, FEWER)
        assert any(THEIRS in line for line in incident.timeline.values_list("text", flat=True))
