"""Two hundred seeded kills in one play, on a real Slurm and PostgreSQL: the end is that of an
undisturbed one.

The plain tier of the tests plays a quarter of it. A person does what Kintsugi asks for where Slurm itself has lost what it knew, and what Slurm was
told in the seconds before its own death may be told to it again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
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
POINTS = {"leased", "allowed", "attempted", "acted", "stored", "somewhere"}
# Its state is on disk by then: SAVE_MAX_WAIT of slurmctld is 5 s.
KEPT_WITHIN = timedelta(seconds=10)

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged", "postgres", "initdb"),
    pytest.mark.timeout(1200),
]


@dataclass(frozen=True)
class Length:
    """Each node's repair is killed about ten times."""

    nodes: tuple[str, ...]
    kills: int


FULL = Length(tuple(f"gn{number:03d}" for number in range(1, 25)), kills=200)
QUARTER = Length(FULL.nodes[:6], kills=30)


class Play:
    """Slurm, PostgreSQL and the pool of workers, each of which a test may kill."""

    def __init__(
        self, home: Path, daemons: SlurmDaemons, postgres: Postgres, length: Length
    ) -> None:
        self.home, self.daemons, self.postgres = home, daemons, postgres
        self.length = length
        self.helped: set[object] = set()
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
            str(length.kills * 6 // 5),
        ]
        with (home / "log").open("wb") as log:
            self.pool = spawn(
                [*argv, *length.nodes],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
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

    def wait_for_kills(self, wanted: int) -> None:
        self.wait(lambda: self.kills >= wanted, within_s=180, what=f"{wanted} kills")

    def wait_for_end(self) -> None:
        """Fails with what each run that has not ended waits for."""
        try:
            self.wait(self.has_ended, within_s=600, what="every run has ended")
        except AssertionError as error:
            standing = self.rows(
                "SELECT id, state, step, wake_at, leased_until, waiting_for FROM runbooks_run"
                " WHERE finished_at IS NULL OR wake_at IS NOT NULL"
            )
            raise AssertionError(f"{error}; not ended: {standing}") from error

    def help(self) -> None:
        """Does what people are asked to, once a run: slurmctld died before it had kept that the
        node was back."""
        late = "SELECT id FROM runbooks_run WHERE waiting_for LIKE '%still waits for its boot%' AND finished_at IS NULL"
        if asking := {run for (run,) in self.rows(late)} - self.helped:
            self.helped |= asking
            self.daemons.command("scontrol", "reconfigure")

    def has_ended(self) -> bool:
        self.help()
        return self.pool.poll() == 0

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.postgres.url) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture
def play(tmp_path: Path, is_full_length: bool) -> Iterator[Play]:
    length = FULL if is_full_length else QUARTER
    directory = tmp_path / "slurm"
    directory.mkdir()
    hook = directory / "hook"
    hook.write_text(f'#!/bin/sh\necho "$1" >> "{directory}/boots"\n')
    hook.chmod(0o755)
    options = SlurmOptions(gpus_per_node=2, reboot_hook=(str(hook),))
    postgres = Postgres(is_durable=True).start()
    try:
        with SlurmDaemons(
            directory, nodes=length.nodes, cluster_name=CLUSTER, options=options
        ) as daemons:
            started = Play(tmp_path, daemons, postgres, length)
            yield started
            stop(started.pool, how=SIGKILL)
    finally:
        postgres.remove()


def told_at_its_death(log: str, what: str) -> set[str]:
    """Nodes of which slurmctld was told that in the seconds before it was killed.

    The next one sends again what was sent and not noted, or does not know of it: Slurm's own doing,
    once each.
    """
    lines = [
        (datetime.fromisoformat(line[1:24]), line)
        for line in log.splitlines()
        if line.startswith("[2")
    ]
    deaths = [at for at, line in lines if "slurmctld version" in line][1:]
    named = [(at, re.search(rf"{what} (gn\d+)", line)) for at, line in lines]
    asked = [(at, found[1]) for at, found in named if found]
    return {node for at, node in asked for death in deaths if death - KEPT_WITHIN < at <= death}


def test_two_hundred_kills_end_as_an_undisturbed_play(play: Play) -> None:
    length = play.length
    play.wait_for_kills(length.kills // 5)
    play.daemons.kill_controller()
    play.daemons.start_controller()
    (play.home / "may_turn").touch()
    play.wait_for_kills(2 * length.kills // 5)
    play.postgres.stop(SIGKILL)
    play.postgres.start()
    play.wait_for_kills(3 * length.kills // 5)
    play.jump(timedelta(hours=1))
    play.wait_for_end()

    ended = Counter(state for (state,) in play.rows("SELECT state FROM runbooks_run"))
    outcomes = play.rows("SELECT outcome FROM runbooks_run WHERE state <> 'succeeded'")
    assert ended == {"succeeded": len(length.nodes)}, json.dumps(outcomes, default=str)
    assert {state for (state,) in play.rows("SELECT state FROM incidents_incident")} == {
        "monitoring"
    }
    log = play.daemons.log.read_text()
    lost = told_at_its_death(log, "reboot request queued for nodes")
    for node in length.nodes:
        often = {1, 2} if node in lost else {1}
        assert boots(play.daemons, node) in often, node
        assert reboots_asked(play.daemons, node) in often, node
    shown = play.daemons.command("sinfo", "--noheader", "--Node", "--format=%N %T")
    assert {line.split()[1] for line in shown.splitlines()} == {"idle"}
    assert play.rows("SELECT 1 FROM runbooks_steprun WHERE outcome = 'attempted'") == []
    doubled = "SELECT node FROM runbooks_auditentry WHERE phase = 'done' GROUP BY node, run, act HAVING count(*) > 1"
    assert {node for (node,) in play.rows(doubled)} <= lost | told_at_its_death(
        log, "update_node: node"
    )
    assert play.kills >= length.kills
    killed_at = Counter((play.home / "kills").read_text().split())
    assert killed_at.keys() <= POINTS
    # Chance may leave a point out of a short play.
    assert length != FULL or killed_at.keys() == POINTS
