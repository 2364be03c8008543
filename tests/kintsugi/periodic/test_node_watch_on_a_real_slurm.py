"""What the look at all nodes keeps of a real Slurm: who kept a node out, its GPUs, and that a Slurm
which has gone away changes nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fixtures.cluster.slurm_daemons import SlurmDaemons, clears_reason_on_resume, get_version
from incidents.inventory import node_states
from incidents.models import NodeInterval
from kintsugi.periodic import node_watch
from tests.runbooks.engine.test_persons_on_a_real_slurm import update
from tests.runbooks.site import Site
from tests.runbooks.slurm.test_gpu_counts_of_a_real_slurm import (
    FEWER,
    NODE,
    a_slurm_that_counts,
    lose_gpu,
)
from tests.runbooks.slurm.test_real_slurm_states import SOON_SAID_DEAD, look
from tests.runbooks.slurm.test_slurm import real_client

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("database_on_disk"),
]


def see(slurm: SlurmDaemons) -> None:
    world = replace(Site(nodes=0).world, slurm=real_client(slurm))
    node_watch.look_at_nodes(datetime.now(UTC), world)


def test_a_real_slurm_is_kept_as_it_was_and_its_silence_changes_nothing(tmp_path: Path) -> None:
    with a_slurm_that_counts(tmp_path, **SOON_SAID_DEAD) as slurm:
        see(slurm)
        update(slurm, "State=DRAIN", "Reason=bob: tray")
        see(slurm)
        update(slurm, "State=RESUME")
        slurm.wait_until(lambda: look(slurm).is_serving, what="its slurmd answers")
        see(slurm)
        slurm.command(
            *("scontrol", "create", "reservation", "ReservationName=work", f"Nodes={NODE}"),
            *("StartTime=now", "Duration=60", "Users=root", "Flags=MAINT,IGNORE_JOBS"),
        )
        slurm.wait_until(lambda: "MAINTENANCE" in look(slurm).flags, what="the maintenance begins")
        see(slurm)
        slurm.command("scontrol", "delete", "ReservationName=work")
        slurm.wait_until(lambda: "MAINTENANCE" not in look(slurm).flags, what="it ends")
        see(slurm)
        lose_gpu(slurm)
        see(slurm)
        rows = list(node_states.get_history(NODE))
        # A Slurm that leaves bob's words on the node that he resumed drains it under them, and
        # counts the GPUs as they are configured.
        clears_reason = clears_reason_on_resume(get_version())
        assert [(row.holder, row.gpus) for row in reversed(rows)] == [
            ("", 2),
            ("root", 2),
            ("", 2),
            ("a maintenance reservation", 2),
            ("", 2),
            ("Slurm itself", 1) if clears_reason else ("root", 2),
        ]
        assert "DRAIN" in rows[0].state
        assert rows[0].reason == (FEWER if clears_reason else "bob: tray")
        assert (rows[4].reason, rows[4].reason_set_by) == ("bob: tray", "root")
        is_close = timedelta(seconds=30)
        assert rows[4].reason_set_at is not None
        assert abs(rows[4].reason_set_at - rows[4].since) < is_close
        assert rows[0].slurmd_started_at is not None
        assert rows[0].boot_time is not None
        assert rows[0].boot_time <= rows[0].slurmd_started_at
        before = set(NodeInterval.objects.values_list())
        slurm.kill_controller()
        see(slurm)
        assert set(NodeInterval.objects.values_list()) == before
        freshness = node_states.get_freshness()
        assert freshness.silent_since is not None
        assert "slurmctld" in freshness.complaint
