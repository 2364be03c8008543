"""Hot spares on a real Slurm: a job for the spare waits while it is kept free, and runs while it
stands in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions
from incidents.models import Spare
from incidents.reserve import spares
from runbooks import services, spare_swaps
from runbooks.lease.lease import LEASE
from runbooks.library import library
from runbooks.models import Run, RunState
from runbooks.slurm.client import ScontrolWriter
from tests.runbooks.conftest import CLUSTER
from tests.runbooks.real_site import RealSite
from tests.runbooks.site import Site

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("database_on_disk"),
]
NODE, SPARE, OTHER = "gn001", "gn002", "gn003"


class Killed(BaseException):
    """The worker died."""


class Dying(ScontrolWriter):
    """Its worker dies once at one act of it: before it is asked for, or after it was done."""

    act = ""
    is_done_before = False

    def with_check(self, check: Callable[[], None]) -> Dying:
        """No copy: it dies once, whoever holds it."""
        self._check_before_act = check
        return self

    def set_partitions(self, *arguments: Any) -> None:
        self._die("set_partitions", *arguments)

    def unreserve(self, *arguments: Any) -> None:
        self._die("unreserve", *arguments)

    def reserve(self, *arguments: Any, **named: Any) -> None:
        self._die("reserve", *arguments, **named)

    def _die(self, act: str, *arguments: Any, **named: Any) -> None:
        dies = self.act == act
        if not dies or self.is_done_before:
            getattr(super(), act)(*arguments, **named)
        if dies:
            self.act = ""
            raise Killed


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmDaemons]:
    with SlurmDaemons(
        tmp_path_factory.mktemp("slurm"),
        nodes=[NODE, SPARE, OTHER],
        cluster_name=CLUSTER,
        options=SlurmOptions(gpus_per_node=2),
    ) as running:
        yield running


class Pool:
    """One spare, kept free in a real Slurm, and a run that drains gn001, swaps in and out, and asks
    a person."""

    def __init__(self, daemons: SlurmDaemons, *, is_reserved: bool) -> None:
        self.daemons = daemons
        self.site = RealSite(daemons.conf, daemons.directory / "boots", [NODE, SPARE])
        self.site.world.slurm.__class__ = Dying  # type: ignore[assignment]
        tables = Site(nodes=0)
        tables.now = self.site.now()
        for name in daemons.nodes:
            tables.add_node(name)
        spare = spares.add(SPARE, partitions=["gpu"], is_reserved=is_reserved, now=self.site.now())
        assert isinstance(spare, Spare)
        self.spare = spare
        spare_swaps.keep_free(spare, self.slurm, self.site.now())
        incident = tables.raise_fault(NODE, resource=f"node/{NODE}/gpu/0000:19:00.0")
        services.start_due([incident.pk], now=self.site.now(), world=self.site.world)
        self.run = Run.objects.get(incident=incident)
        steps = [
            ("drain", {}),
            *(("swap_hot_spare", {"way": way}) for way in ("in", "out")),
            ("wait_for_jobs", {}),
        ]
        self.run.plan = [library.plan_step(name, given).as_row() for name, given in steps]
        self.run.save()

    @property
    def slurm(self) -> Dying:
        assert isinstance(self.site.world.slurm, Dying)
        return self.site.world.slurm

    def until_step(self, index: int) -> None:
        self.site.play_until(self.run.pk, lambda run: run.step == index)

    def until_killed(self, act: str, *, is_done_before: bool) -> None:
        """The worker dies at the act; the next one comes when its lease has run out."""
        self.slurm.act, self.slurm.is_done_before = act, is_done_before
        with pytest.raises(Killed):
            self.until_step(3)
        self.site.ahead += LEASE + timedelta(seconds=1)

    def state(self) -> str:
        return str(Spare.objects.get().state)

    def job(self) -> str:
        """A job that only the spare can run."""
        words = (
            f"--nodelist={SPARE}",
            "--partition=gpu",
            "--output=/dev/null",
            "--chdir=/",
            "--time=1",
            "--wrap=true",
        )
        return self.daemons.command("sbatch", "--parsable", *words).strip()

    def runs(self, job: str) -> bool:
        told = self.daemons.command(
            "squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"
        ).strip()
        return told in ("RUNNING", "COMPLETING", "COMPLETED")

    def serves(self) -> bool:
        kept = any(SPARE in one.nodes for one in self.slurm.list_reservations())
        return SPARE in self.slurm.read_partitions()["gpu"] and not kept


@pytest.fixture
def pools(daemons: SlurmDaemons) -> Iterator[Any]:
    made: list[Pool] = []

    def make(*, is_reserved: bool) -> Pool:
        made.append(Pool(daemons, is_reserved=is_reserved))
        return made[-1]

    yield make
    for pool in made:
        pool.slurm.act = ""
        pool.slurm.set_partitions(SPARE, ("gpu",))
        pool.slurm.unreserve(f"spare-{SPARE}")
        if pool.slurm.read_nodes((NODE,))[NODE].is_draining:
            pool.slurm.resume(NODE)


@pytest.mark.parametrize("is_reserved", [False, True])
def test_a_spare_takes_jobs_while_it_stands_in_and_none_before_and_after(
    pools: Any, *, is_reserved: bool
) -> None:
    pool = pools(is_reserved=is_reserved)
    assert not pool.serves()
    pool.until_step(2)
    assert (pool.serves(), pool.state()) == (True, Spare.State.SERVING)
    job = pool.job()
    pool.daemons.wait_until(lambda: pool.runs(job), what="the job runs on the spare")
    assert pool.site.play(pool.run.pk).state == RunState.SUCCEEDED
    assert (pool.serves(), pool.state()) == (False, Spare.State.READY)
    others = set(pool.slurm.read_partitions()["gpu"])
    assert others - {SPARE} == {NODE, OTHER}


@pytest.mark.parametrize("is_done_before", [False, True])
@pytest.mark.parametrize(("act", "is_reserved"), [("set_partitions", False), ("unreserve", True)])
def test_a_worker_that_dies_on_the_way_in_leaves_the_spare_in(
    pools: Any, act: str, *, is_reserved: bool, is_done_before: bool
) -> None:
    pool = pools(is_reserved=is_reserved)
    pool.until_step(1)
    pool.until_killed(act, is_done_before=is_done_before)
    assert (pool.serves(), pool.state()) == (is_done_before, Spare.State.ENTERING)
    pool.until_step(2)
    assert (pool.serves(), pool.state()) == (True, Spare.State.SERVING)


@pytest.mark.parametrize("is_done_before", [False, True])
@pytest.mark.parametrize(("act", "is_reserved"), [("set_partitions", False), ("reserve", True)])
def test_a_worker_that_dies_on_the_way_out_leaves_the_spare_free(
    pools: Any, act: str, *, is_reserved: bool, is_done_before: bool
) -> None:
    pool = pools(is_reserved=is_reserved)
    pool.until_step(2)
    pool.until_killed(act, is_done_before=is_done_before)
    assert (pool.serves(), pool.state()) == (not is_done_before, Spare.State.LEAVING)
    assert pool.site.play(pool.run.pk).state == RunState.SUCCEEDED
    assert (pool.serves(), pool.state()) == (False, Spare.State.READY)


def test_a_job_that_only_a_spare_could_run_waits_while_it_is_kept_free_by_its_reservation(
    pools: Any,
) -> None:
    pool = pools(is_reserved=True)
    job = pool.job()
    pool.until_step(1)
    assert not pool.runs(job)
    pool.until_step(2)
    pool.daemons.wait_until(lambda: pool.runs(job), what="the job that waited runs")
