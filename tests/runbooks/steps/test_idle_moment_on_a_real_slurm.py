"""A minor repair on a real Slurm: its node takes further jobs until the last one ends within the
hour, by Slurm's own words of each job's limit, or none runs there; and no job that could run past
the reservation begins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from detectors import resources
from fixtures.cluster.slurm_daemons import SlurmDaemons
from kintsugi.periodic.reserving import follow_reservations
from runbooks import services
from runbooks.models import Mode, Run
from tests.runbooks.real_site import RealSite
from tests.runbooks.site import Site

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("database_on_disk"),
]
PCI = "0000:19:00.0"


def submit(daemons: SlurmDaemons, node: str, *words: str) -> str:
    """A job of one processor that runs there by now."""
    argv = ("sbatch", "--parsable", f"--nodelist={node}", "--ntasks=1", "--output=/dev/null")
    job = daemons.command(*argv, *words, "--wrap=sleep 600").strip()
    daemons.wait_until(
        lambda: (
            "RUNNING" in daemons.command("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        ),
        what="the job runs",
    )
    return job


def begin(daemons: SlurmDaemons, node: str) -> tuple[RealSite, Run]:
    site = RealSite(daemons.conf, daemons.directory / "boots", [node])
    tables = Site(nodes=0)
    tables.now = site.now()
    tables.add_node(node)
    tables.set_mode(Mode.ARMED, "gpu_reset")
    incident = tables.raise_fault(
        node, fault_type="gpu.ecc.row_remap_pending", resource=resources.gpu(node, PCI)
    )
    services.start_due([incident.pk], now=site.now(), world=site.world)
    run = Run.objects.get(incident=incident)
    site.advance(run.pk)
    return site, Run.objects.get(pk=run.pk)


def is_drained(site: RealSite, node: str) -> bool:
    return site.world.slurm.read_nodes((node,))[node].is_draining


@pytest.fixture
def node(slurm_daemons: SlurmDaemons, take_node: Callable[[], str]) -> Iterator[str]:
    """Back in service, empty and free afterwards: the cap of the partition is the whole session's,
    and each test's database numbers its runs anew."""
    name = take_node()
    yield name
    slurm_daemons.command("scancel", f"--nodelist={name}")
    shown = slurm_daemons.command("scontrol", "--oneliner", "show", "reservation")
    for own in re.findall(r"ReservationName=(kintsugi_\S+-drain)", shown):
        slurm_daemons.command("scontrol", "delete", f"ReservationName={own}")
    if "DRAIN" in slurm_daemons.command("scontrol", "show", "node", name):
        slurm_daemons.command("scontrol", "update", f"NodeName={name}", "State=RESUME")


@pytest.mark.parametrize("limit", ["--time=3-00:00:00", "--time=UNLIMITED"])
def test_long_jobs_are_waited_for_while_the_node_takes_others(
    slurm_daemons: SlurmDaemons, node: str, limit: str
) -> None:
    first = submit(slurm_daemons, node, limit)
    site, run = begin(slurm_daemons, node)
    assert not is_drained(site, node)
    assert f"{node} goes on taking jobs" in run.waiting_for
    second = submit(slurm_daemons, node, "--time=1-00:00:00")
    slurm_daemons.command("scancel", first)
    site.advance(run.pk)
    assert not is_drained(site, node)
    slurm_daemons.command("scancel", second)
    slurm_daemons.wait_until(lambda: not site.world.slurm.list_jobs(node), what="the jobs are gone")
    site.advance(run.pk)
    assert is_drained(site, node)


def test_a_job_that_ends_within_the_hour_has_the_node_drained(
    slurm_daemons: SlurmDaemons, node: str
) -> None:
    submit(slurm_daemons, node, "--time=30")
    site, run = begin(slurm_daemons, node)
    assert is_drained(site, node), run.waiting_for


def test_a_job_that_could_run_past_the_last_ones_limit_does_not_begin(
    slurm_daemons: SlurmDaemons, node: str
) -> None:
    first = submit(slurm_daemons, node, "--time=3-00:00:00")
    site, run = begin(slurm_daemons, node)
    own = f"kintsugi_{run.pk}-0-drain"
    (reservation,) = [one for one in site.world.slurm.list_reservations() if one.name == own]
    (job,) = site.world.slurm.list_jobs(node)
    assert reservation.starts_at == job.ends_at
    argv = ("sbatch", "--parsable", f"--nodelist={node}", "--ntasks=1", "--output=/dev/null")
    longer = slurm_daemons.command(*argv, "--time=4-00:00:00", "--wrap=sleep 600").strip()
    submit(slurm_daemons, node, "--time=1-00:00:00")
    state = slurm_daemons.command("squeue", "--noheader", f"--jobs={longer}", "--format=%T").strip()
    assert state == "PENDING"
    assert not is_drained(site, node)
    slurm_daemons.command("scancel", f"--nodelist={node}", first)
    slurm_daemons.command("scancel", longer)
    slurm_daemons.command("scancel", f"--nodelist={node}")
    slurm_daemons.wait_until(lambda: not site.world.slurm.list_jobs(node), what="the jobs are gone")
    site.advance(run.pk)
    assert is_drained(site, node)
    follow_reservations(site.now(), site.world)
    assert own not in [one.name for one in site.world.slurm.list_reservations()]
