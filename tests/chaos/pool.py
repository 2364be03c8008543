"""A pool of workers that are killed all the time: forked from one warm process, each acts for
whatever run is due.

`python -m tests.chaos.pool CONF BOOTS HOME KILLS NODE...`, with the database in the environment:
after so many kills the workers are left alone, so that the play comes to its end. HOME holds `ahead` (seconds by which the clock runs ahead of the wall's; tests turn it too) and gets
`kills`, a line for each worker killed in a turn. The pool turns the clock by itself only once
`may_turn` is there: until slurmctld has been killed, its clock and ours agree, as they must where
what it was told is compared with when it began.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import django

django.setup()

from django.core.management import call_command  # noqa: E402 - after Django
from django.db import DatabaseError, connection  # noqa: E402
from django.db.models import Q  # noqa: E402

from runbooks import services  # noqa: E402
from runbooks.engine import turn as running  # noqa: E402
from runbooks.guards.verdicts import Bounds  # noqa: E402
from runbooks.lease.lease import LEASE  # noqa: E402
from runbooks.models import Mode, Run  # noqa: E402
from tests.runbooks.real_site import RealSite  # noqa: E402
from tests.runbooks.site import Site, a_policy  # noqa: E402

SEED = 5
WORKERS = 4
# Of the passes of a point between two lines of `advance` so many end in SIGKILL: enough for the
# wanted kills by these alone, since those from outside are few on a quick machine.
SHARE = 0.16
# One worker in so many is killed from outside, wherever it is: in a database call, or while
# scontrol runs.
FROM_OUTSIDE = 0.3
# A worker that dies leaves its lease, and perhaps a scontrol: the clock is turned only when all has
# been still so long.
STILL_FOR_S = 1.0
_LONGEST_LEAP = timedelta(hours=1)


class Pool:
    """The parent: keeps workers alive, kills some, and turns the clock when nothing is due."""

    def __init__(self, conf: Path, boots: Path, home: Path, enough: int, nodes: list[str]) -> None:
        self.home = home
        self.enough = enough
        self.rng = random.Random(SEED)
        self.site = TurnedSite(conf, boots, nodes, lost=[f"{node}/gpu/0" for node in nodes])
        self.site.home = home
        self.nodes = nodes
        self.children: dict[int, float] = {}
        self.started = 0

    def open(self) -> None:
        """Tables, inventory, one incident and one run for each node."""
        call_command("migrate", verbosity=0)
        tables = Site(nodes=0, mode=Mode.ARMED)
        for node in self.nodes:
            tables.now = self.site.now()
            tables.add_node(node)
            tables.raise_fault(node, resource=f"node/{node}/gpu/0000:19:00.0")
        services.start_due(None, now=self.site.now(), world=self.site.world)

    def play(self) -> None:
        still_since = time.monotonic()
        while True:
            try:
                # An ended run looks once more, later, whether Slurm has kept that its node was
                # given back.
                unfinished = Run.objects.filter(
                    Q(finished_at=None) | Q(wake_at__isnull=False)
                ).exists()
                is_due = bool(services.get_due_runs(self.site.now()))
            except DatabaseError:
                connection.close()
                unfinished = is_due = True
            if not unfinished:
                break
            if is_due:
                still_since = time.monotonic()
            elif self._may_turn() and time.monotonic() - still_since > STILL_FOR_S:
                self.site.turn(self._get_leap())
                still_since = time.monotonic()
            self._tend()
            time.sleep(0.02)
        for child in self.children:
            os.kill(child, signal.SIGKILL)

    def _get_leap(self) -> timedelta:
        """Past every lease, and to the moment for which the next run waits; an hour at most."""
        shortest = LEASE + timedelta(seconds=1)
        waking = Run.objects.filter(wake_at__isnull=False).order_by("wake_at")
        next_at = waking.values_list("wake_at", flat=True).first()
        if next_at is None:
            return shortest
        return min(max(shortest, next_at - self.site.now()), _LONGEST_LEAP)

    def _may_turn(self) -> bool:
        return (self.home / "may_turn").exists()

    def _tend(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            self.children.pop(pid, None)
            busy = self.home / f"busy.{pid}"
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and busy.exists():
                with (self.home / "kills").open("a") as kills:
                    kills.write(f"{busy.read_text()}\n")
            busy.unlink(missing_ok=True)
        for pid, dies_at in list(self.children.items()):
            if dies_at < time.monotonic():
                os.kill(pid, signal.SIGKILL)
                self.children[pid] = float("inf")
        while len(self.children) < WORKERS:
            self._fork()

    def kills(self) -> int:
        path = self.home / "kills"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def _fork(self) -> None:
        self.started += 1
        seed = self.rng.random()
        is_doomed = self.rng.random() < FROM_OUTSIDE and self.kills() < self.enough
        lives = self.rng.uniform(0.1, 2.0) if is_doomed else float("inf")
        connection.close()
        pid = os.fork()
        if pid:
            self.children[pid] = time.monotonic() + lives
            return
        status = 1
        try:
            Worker(self.site, random.Random(seed), is_mortal=self.kills() < self.enough).work()
            status = 0
        finally:
            os._exit(status)


class TurnedSite(RealSite):
    """A site whose clock stands in a file: all processes read the same one."""

    home: Path

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._ahead())

    def turn(self, by: timedelta) -> None:
        new = self.home / f"ahead.{os.getpid()}"
        new.write_text(str(self._ahead() + by.total_seconds()))
        new.rename(self.home / "ahead")

    def _ahead(self) -> float:
        path = getattr(self, "home", Path("/nonexistent")) / "ahead"
        return float(path.read_text()) if path.exists() else 0.0


class Worker:
    """As a Celery worker: takes turns of runs that are due, until it is killed or its database goes
    away."""

    def __init__(self, site: TurnedSite, rng: random.Random, *, is_mortal: bool) -> None:
        self.site = site
        self.is_mortal = is_mortal
        self.rng = rng
        self.busy = site.home / f"busy.{os.getpid()}"

    def work(self) -> None:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            due = services.get_due_runs(self.site.now())
            if not due:
                time.sleep(0.05)
                continue
            self.busy.write_text("somewhere")
            running.advance(
                self.rng.choice(due), now=self.site.now(), world=self.site.world, at=self._die
            )
            self.busy.unlink()

    def _die(self, point: str) -> None:
        if self.is_mortal and self.rng.random() < SHARE:
            self.busy.write_text(point)
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    conf, boots, home, kills, *nodes = sys.argv[1:]
    pool = Pool(Path(conf), Path(boots), Path(home), int(kills), nodes)
    # All nodes are repaired at once, and the clock runs: what is tested is the kills, not the
    # limits.
    wide = Bounds(
        cap_nodes=1000,
        cap_share=1.0,
        pod_floor=0.0,
        per_hour=1000,
        breaker_share=1.0,
        approval_above=1000,
    )
    patient = a_policy(boot_time=timedelta(days=30), verify_timeout=timedelta(days=30), bounds=wide)
    pool.site.world = replace(pool.site.world, policy=patient)
    pool.open()
    (Path(home) / "opened").touch()
    pool.play()


if __name__ == "__main__":
    main()
