"""Two hundred seeded kills in one play, on a real Slurm and PostgreSQL: the end is that of an undisturbed one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from signal import SIGKILL

import psycopg
import pytest

from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions
from tests.runbooks.conftest import boots, reboots_asked
from tests.runbooks.site import CLUSTER
from tests.services.ports import wait_until
from tests.services.postgres import Postgres
from tests.services.programs import spawn, stop

ROOT = Path(__file__).resolve().parent.parent.parent
NODES = tuple(f"gn{number:03d}" for number in range(1, 25))
KILLS = 200
# Its state is on disk by then: SAVE_MAX_WAIT of slurmctld is 5 s.
KEPT_WITHIN = timedelta(seconds=10)

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged", "postgres", "initdb"),
    pytest.mark.timeout(1200),
]


class Play:
    """Slurm, PostgreSQL and the pool of workers, each of which a test may kill."""

    def __init__(self, home: Path, daemons: SlurmDaemons, postgres: Postgres) -> None:
        self.home, self.daemons, self.postgres = home, daemons, postgres
        environment = os.environ | {
            "DATABASE_URL": postgres.url,
            "KINTSUGI_DATA_DIR": str(home / "data"),
        }
        argv = [
            sys.executable,
            "-m",
            "tests.chaos.pool",
            str(daemons.conf),
            str(daemons.directory / "boots"),
            str(home),
        ]
        with (home / "log").open("wb") as log:
            self.pool = spawn([*argv, *NODES], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.wait(lambda: (home / "opened").exists(), within_s=180, what="the runs are made")

    @property
    def kills(self) -> int:
        path = self.home / "kills"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def jump(self, by: timedelta) -> None:
        """The clock of all workers, from one moment to the next."""
        ahead = self.home / "ahead"
        so_far = float(ahead.read_text()) if ahead.exists() else 0.0
        ahead.write_text(str(so_far + by.total_seconds()))

    def wait(self, condition: object, *, within_s: float, what: str) -> None:
        def holds() -> bool:
            if self.pool.poll() not in (None, 0):
                raise AssertionError(f"the pool ended: {(self.home / 'log').read_text()[-3000:]}")
            return bool(condition())  # type: ignore[operator]

        wait_until(holds, within_s=within_s, what=what)

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.postgres.url) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    directory = tmp_path / "slurm"
    directory.mkdir()
    hook = directory / "hook"
    hook.write_text(f'#!/bin/sh\necho "$1" >> "{directory}/boots"\n')
    hook.chmod(0o755)
    options = SlurmOptions(gpus_per_node=2, boot_takes=timedelta(seconds=0.3), reboot_hook=(str(hook),))
    postgres = Postgres(is_durable=True).start()
    try:
        with SlurmDaemons(directory, nodes=NODES, cluster_name=CLUSTER, options=options) as daemons:
            started = Play(tmp_path, daemons, postgres)
            yield started
            stop(started.pool, how=SIGKILL)
    finally:
        postgres.remove()


def told_at_its_death(log: str) -> set[str]:
    """Nodes whose reboot slurmctld was told of in the seconds before it was killed.

    The next one sends again what was sent and not noted, or does not know of it: Slurm's own doing, once each.
    """
    lines = [(datetime.fromisoformat(line[1:24]), line) for line in log.splitlines() if line.startswith("[2")]
    deaths = [at for at, line in lines if "slurmctld version" in line][1:]
    asked = [(at, line.rsplit(" ", 1)[-1]) for at, line in lines if "reboot request queued for nodes" in line]
    return {node for at, node in asked for death in deaths if death - KEPT_WITHIN < at <= death}


def test_two_hundred_kills_end_as_an_undisturbed_play(play: Play) -> None:
    play.wait(lambda: play.kills >= 40, within_s=180, what="forty kills")
    play.daemons.kill_controller()
    play.daemons.start_controller()
    play.wait(lambda: play.kills >= 80, within_s=180, what="eighty kills")
    play.postgres.stop(SIGKILL)
    play.postgres.start()
    play.wait(lambda: play.kills >= 120, within_s=180, what="a hundred and twenty kills")
    play.jump(timedelta(hours=1))
    play.wait(lambda: play.pool.poll() == 0, within_s=600, what="every run has ended")

    ended = Counter(state for (state,) in play.rows("SELECT state FROM runbooks_run"))
    outcomes = play.rows("SELECT outcome FROM runbooks_run WHERE state <> 'succeeded'")
    assert ended == {"succeeded": len(NODES)}, json.dumps(outcomes, default=str)
    assert {state for (state,) in play.rows("SELECT state FROM incidents_incident")} == {"monitoring"}
    lost = told_at_its_death(play.daemons.log.read_text())
    for node in NODES:
        often = {1, 2} if node in lost else {1}
        assert boots(play.daemons, node) in often, node
        assert reboots_asked(play.daemons, node) in often, node
    shown = play.daemons.command("sinfo", "--noheader", "--Node", "--format=%N %T")
    assert {line.split()[1] for line in shown.splitlines()} == {"idle"}
    assert play.rows("SELECT 1 FROM runbooks_steprun WHERE outcome = 'attempted'") == []
    doubled = "SELECT run_id, act FROM (SELECT run AS run_id, act, count(*) AS n FROM runbooks_auditentry"
    assert play.rows(f"{doubled} WHERE phase = 'done' GROUP BY 1, 2) AS lines WHERE n > 1") == []
    assert play.kills >= KILLS
    killed_at = Counter((play.home / "kills").read_text().split())
    assert set(killed_at) == {"leased", "allowed", "attempted", "acted", "stored", "somewhere"}
