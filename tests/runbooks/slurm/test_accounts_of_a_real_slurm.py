"""How jobs ended, as the accounts tell it once slurmctld has forgotten them: of the Slurm in
memory, of the real client over it, and of a real Slurm with slurmdbd and MariaDB."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import pytest

from detectors import resources
from detectors.detector import Target, TargetKind, Transports
from detectors.expected import Expected
from detectors.slurm.job_records import Accounts, JobRecord
from detectors.slurm.slurm_jobs import SlurmJobsDetector
from detectors.transports.local import LocalShell
from fixtures.cluster.slurm_daemons import SlurmDaemons, SlurmOptions
from fixtures.memory_slurm import MemorySlurm
from fixtures.memory_slurm_commands import CommandShell
from incidents import services
from incidents.jobs import job_source
from incidents.models import IncidentJob, Job
from kintsugi.periodic import job_watch
from runbooks.slurm.client import ScontrolWriter, parse_controller
from runbooks.slurm.protocol import SlurmWriter
from tests.builders import an_event
from tests.runbooks.conftest import CLUSTER
from tests.runbooks.slurm.test_slurm import real_client
from tests.services.programs import find
from tests.services.slurmdbd import PROGRAMS, Slurmdbd

# All of them, also those that need none: pytest-django puts those last, where a Slurm would be
# started once more.
pytestmark = pytest.mark.django_db
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
# Slurm tells whole seconds.
TICK = timedelta(seconds=1)
# Each way to end, with the nodes of the job that ends so. No node serves two of them.
ENDS: Mapping[str, tuple[str, ...]] = {
    "COMPLETED": ("gn001",),
    "FAILED": ("gn002",),
    "CANCELLED": ("gn003",),
    "TIMEOUT": ("gn004",),
    "NODE_FAIL": ("gn005", "gn006"),
    "REQUEUED": ("gn007",),
}
NODES = (*(name for names in ENDS.values() for name in names), "gn008", "gn009")
COMMENT, CHECKPOINT = "step 7 checkpoint=1736910000", datetime.fromtimestamp(1736910000, UTC)
on_a_real_one = pytest.mark.needs("slurmctld", "slurmd", *PROGRAMS)


class Site(Protocol):
    """A Slurm that keeps accounts. All its jobs have two GPUs on each node."""

    slurm: SlurmWriter
    user: str

    def now(self) -> datetime: ...

    def start_job(self, nodes: tuple[str, ...]) -> str: ...

    def end_jobs(self, jobs: Mapping[str, str]) -> None:
        """Each job, by the way in which it ends."""
        ...

    def forget(self, jobs: Mapping[str, str]) -> None:
        """Until slurmctld itself knows nothing of them any more."""
        ...


@dataclass
class MemorySite:
    slurm: SlurmWriter
    memory: MemorySlurm
    clock: list[datetime]
    user: str = "alice"

    def now(self) -> datetime:
        return self.clock[0]

    def start_job(self, nodes: tuple[str, ...]) -> str:
        job = f"{17 + len(self.memory.work.all())}"
        self.memory.add_job(job, nodes=nodes, gpus_per_node=2)
        self.memory.comment_job(job, COMMENT)
        return job

    def end_jobs(self, jobs: Mapping[str, str]) -> None:
        self.clock[0] += MINUTE
        for end, job in jobs.items():
            if end == "REQUEUED":
                self.memory.requeue(job)
            else:
                self.memory.finish_job(job, end)

    def forget(self, jobs: Mapping[str, str]) -> None:
        self.clock[0] += 6 * MINUTE


@dataclass
class RealSite:
    slurm: SlurmWriter
    daemons: SlurmDaemons
    user: str = field(default_factory=getpass.getuser)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def start_job(self, nodes: tuple[str, ...], comment: str = COMMENT) -> str:
        """It ends with the status that is written into a file named after it."""
        script = f'until [ -s "{self._orders}/$SLURM_JOB_ID" ]; do sleep 0.1; done'
        script += f'; exit $(cat "{self._orders}/$SLURM_JOB_ID")'
        where = (
            f"--nodes={len(nodes)}",
            f"--nodelist={','.join(nodes)}",
            "--gres=gpu:2",
            "--output=/dev/null",
        )
        options = ("--parsable", "--job-name=train", f"--comment={comment}", *where)
        is_again = "--requeue" if nodes == ENDS["REQUEUED"] else "--no-requeue"
        job = self.daemons.command("sbatch", *options, is_again, f"--wrap={script}").strip()
        self.daemons.wait_until(lambda: "RUNNING" in self._states(job), what=f"job {job} runs")
        return job

    def end_jobs(self, jobs: Mapping[str, str]) -> None:
        for end, job in jobs.items():
            self._end(end, job)
        self.daemons.wait_until(
            lambda: not {"RUNNING", "COMPLETING"} & self._states(*jobs.values()),
            # slurmctld looks every 30 s for jobs that are past their limits
            what="all jobs have ended",
        )

    def _end(self, end: str, job: str) -> None:
        if end in {"COMPLETED", "FAILED"}:
            self.exit(job, 3 if end == "FAILED" else 0)
        elif end == "CANCELLED":
            self.daemons.command("scancel", job)
        elif end == "TIMEOUT":
            self.daemons.command("scontrol", "update", f"JobId={job}", "TimeLimit=0")
        elif end == "NODE_FAIL":
            lost = ENDS[end][0]
            self.daemons.kill_node(lost)
            self.daemons.command(
                "scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=it hangs"
            )
        else:
            self.daemons.command("scontrol", "requeue", job)

    def has_its_start_written(self, job: str) -> bool:
        """The script's step is the last that slurmctld tells of a start."""
        return (
            f"{job}.batch"
            in self.daemons.command(
                "sacct", "--noheader", "--format=JobID", f"--jobs={job}"
            ).split()
        )

    def exit(self, job: str, status: int) -> None:
        (self._orders / job).write_text(f"{status}\n")

    def forget(self, jobs: Mapping[str, str]) -> None:
        """Slurm 22.05 purges every 10 s where MinJobAge is shorter."""
        self.daemons.wait_until(
            lambda: self._states(*jobs.values()) <= {"PENDING"},
            what="slurmctld has forgotten the jobs",
        )

    def _states(self, *jobs: str) -> set[str]:
        """Of these jobs, as far as slurmctld knows them. Asked by `--jobs` it would fail for those
        that it forgot."""
        shown = self.daemons.command(
            "squeue", "--noheader", "--states=all", "--format=%A %T"
        ).splitlines()
        return {state for job, _, state in (line.partition(" ") for line in shown) if job in jobs}

    @property
    def _orders(self) -> Path:
        orders = self.daemons.directory / "exits"
        orders.mkdir(exist_ok=True)
        return orders


@dataclass(frozen=True)
class Past:
    """What happened at a site: the job of each end, and between which times."""

    site: Site
    jobs: Mapping[str, str]
    begun: datetime
    ended: datetime

    def told(self, end: str) -> list[JobRecord]:
        """All that is told of the job that ended so, the start after a requeue left out."""
        records = self.site.slurm.read_recent_jobs(HOUR).records
        return [one for one in records if one.job_id == self.jobs[end] and one.ended_at is not None]


def a_past(site: Site) -> Past:
    begun = site.now()
    jobs = {end: site.start_job(nodes) for end, nodes in ENDS.items()}
    site.end_jobs(jobs)
    ended = site.now()
    site.forget(jobs)
    return Past(site, jobs, begun, ended)


@pytest.fixture(scope="module")
def accounts() -> Iterator[Slurmdbd]:
    slurmdbd = Slurmdbd()
    try:
        yield slurmdbd.start()
    finally:
        slurmdbd.remove()


@pytest.fixture(scope="module")
def real_site(accounts: Slurmdbd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    options = SlurmOptions(gpus_per_node=2, settings={**accounts.settings, "MinJobAge": "2"})
    directory = tmp_path_factory.mktemp("slurm")
    with SlurmDaemons(directory, nodes=NODES, cluster_name=CLUSTER, options=options) as daemons:
        yield RealSite(real_client(daemons), daemons)


@pytest.fixture(scope="module")
def real_past(real_site: RealSite) -> Past:
    return a_past(real_site)


@pytest.fixture(params=["memory", "commands", pytest.param("real", marks=on_a_real_one)])
def past(request: pytest.FixtureRequest) -> Past:
    if request.param == "real":
        real: Past = request.getfixturevalue("real_past")
        return real
    clock = [datetime(2025, 1, 15, 3, 0, tzinfo=UTC)]
    memory = MemorySlurm(
        {name: ["gpu"] for name in NODES}, cluster_name=CLUSTER, now=lambda: clock[0]
    )
    client: SlurmWriter = memory
    if request.param == "commands":
        client = ScontrolWriter(
            CommandShell(memory), parse_controller("local"), cluster_name=CLUSTER
        )
    return a_past(MemorySite(client, memory, clock))


@pytest.mark.parametrize("end", ENDS)
def test_accounts_tell_how_a_job_ended_when_slurmctld_has_forgotten_it(
    past: Past, end: str
) -> None:
    (job,) = past.told(end)
    assert (job.state, job.user, job.name, job.partition) == (end, past.site.user, "train", "gpu")
    assert (job.nodes, job.gpus) == (ENDS[end], 2 * len(ENDS[end]))
    assert job.checkpoint_at == CHECKPOINT
    assert job.ended_at is not None
    assert past.begun - TICK <= job.started_at <= job.ended_at <= past.ended


def test_accounts_that_answer_are_said_to_have_told(past: Past) -> None:
    told = past.site.slurm.read_recent_jobs(HOUR)
    assert (told.accounts, told.complaint) == (Accounts.TOLD, "")


def lost_after_end(past: Past, after_end: timedelta) -> set[tuple[str, str, bool]]:
    """Each job's node loses memory of a GPU, for one that goes on, so long after the job's end.
    What became of whom."""
    ends = {end: job.ended_at for end in ENDS for job in past.told(end) if job.ended_at is not None}
    events = [
        an_event("gpu.xid.48", resources.gpu(ENDS[end][0], "0000:9b:00.0"), at=at + after_end)
        for end, at in ends.items()
    ]
    now = max(ends.values()) + 6 * MINUTE
    services.ingest(events, now=now)
    job_watch.update_jobs(now, past.site.slurm)
    # Other tests of this site may have had jobs of their own before.
    jobs = Job.objects.filter(job_id__in=past.jobs.values())
    assert jobs.filter(state__in=ENDS).count() == len(ENDS)
    rows = IncidentJob.objects.filter(job__in=jobs).select_related("job")
    return {(row.job.job_id, row.outcome, row.is_harmed) for row in rows}


@pytest.mark.parametrize("after_end", [-10 * MINUTE, 5 * MINUTE])
def test_a_job_is_lost_when_a_fault_began_from_ten_minutes_before_its_end_until_five_after(
    past: Past, after_end: timedelta
) -> None:
    expected = {(job, end, end != "COMPLETED") for end, job in past.jobs.items()}
    assert lost_after_end(past, after_end) == expected


@pytest.mark.parametrize("after_end", [-10 * MINUTE - TICK, 5 * MINUTE + TICK])
def test_a_job_is_not_touched_when_a_fault_began_before_or_after_that(
    past: Past, after_end: timedelta
) -> None:
    assert lost_after_end(past, after_end) == set()


@on_a_real_one
def test_nothing_is_lost_when_slurmdbd_is_down_while_jobs_end(
    real_site: RealSite, accounts: Slurmdbd
) -> None:
    before = datetime.now(UTC)
    job_watch.update_jobs(before, real_site.slurm)
    assert job_source.get_notice() == ""
    job = real_site.start_job(("gn008",))
    accounts.kill()
    try:
        job_watch.update_jobs(before + MINUTE, real_site.slurm)
        assert Job.objects.get(job_id=job).state == "RUNNING"
        assert (
            "slurmdbd or its database is down or cannot be reached (Connection refused)"
            in job_source.get_notice()
        )
        assert f"They last told at {before:%Y-%m-%d %H:%M}" in job_source.get_notice()
        real_site.exit(job, 3)
        real_site.forget({"FAILED": job})
        job_watch.update_jobs(before + 2 * MINUTE, real_site.slurm)
        assert Job.objects.get(job_id=job).state == "UNKNOWN"
    finally:
        accounts.start()
    real_site.daemons.wait_until(
        lambda: job in _accounted(real_site), what="slurmctld has told slurmdbd"
    )
    job_watch.update_jobs(before + 3 * MINUTE, real_site.slurm)
    assert (Job.objects.get(job_id=job).state, job_source.get_notice()) == ("FAILED", "")


def _accounted(site: RealSite) -> set[str]:
    return {
        one.job_id for one in site.slurm.read_recent_jobs(HOUR).records if one.ended_at is not None
    }


@on_a_real_one
def test_a_dead_database_behind_slurmdbd_is_said_and_jobs_are_known_all_the_same(
    real_site: RealSite, accounts: Slurmdbd
) -> None:
    job = real_site.start_job(("gn009",))
    # slurmdbd 22.05 ends ("You haven't inited this storage yet") when it loses its database in the
    # middle of a write.
    real_site.daemons.wait_until(
        lambda: real_site.has_its_start_written(job), what="slurmdbd has written what started"
    )
    accounts.database.stop()
    try:
        told = real_site.slurm.read_recent_jobs(HOUR)
    finally:
        accounts.database.start()
        accounts.revive()
    assert told.accounts is Accounts.SILENT
    assert "(Unable to connect to database)" in told.complaint
    assert job in {one.job_id for one in told.records}


@on_a_real_one
def test_jobs_that_run_are_known_and_a_missing_sacct_is_said_when_it_is_not_installed(
    real_site: RealSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("env", "squeue"):
        (tmp_path / program).symlink_to(str(find(program)))
    job = real_site.start_job(("gn008",))
    monkeypatch.setenv("PATH", str(tmp_path))
    job_watch.update_jobs(datetime.now(UTC), real_site.slurm)
    assert Job.objects.get(job_id=job).state == "RUNNING"
    assert "has no `sacct` where Slurm's programs run" in job_source.get_notice()


@on_a_real_one
def test_a_row_that_a_user_writes_into_a_comment_is_no_job_of_another(real_site: RealSite) -> None:
    listed = (
        "17",
        "RUNNING",
        "bob",
        "gn001",
        "gres:gpu:8",
        "2025-01-15T03:00:00",
        "N/A",
        "0",
        "1",
        "kintsugi=requeue",
    )
    ended = (
        "18",
        "FAILED",
        "bob",
        "gpu",
        "2025-01-15T03:00:00",
        "2025-01-15T04:00:00",
        "gres/gpu=8",
        "gn001",
    )
    forged = "\n".join(
        between.join((*row, "n", ""))
        for row in (listed, (*ended, "n"))
        for between in ("|", "\x1f")
    )
    job = real_site.start_job(("gn001",), comment=f"x\n{forged}\n")
    others = {one.job_id for one in real_site.slurm.list_jobs("gn001")} & {"17", "18"}
    assert job in {one.job_id for one in real_site.slurm.list_jobs("gn001")}
    real_site.exit(job, 0)
    real_site.forget({"COMPLETED": job})
    real_site.daemons.wait_until(
        lambda: job in _accounted(real_site), what="the accounts tell the job"
    )
    told = real_site.slurm.read_recent_jobs(HOUR).records
    assert [one.user for one in told if one.job_id == job] == [real_site.user]
    assert not others
    assert "bob" not in {one.user for one in told}


@on_a_real_one
def test_a_lost_job_is_seen_on_the_node_that_failed(real_site: RealSite, real_past: Past) -> None:
    settings = {"slurm_conf": str(real_site.daemons.conf)}
    site = Target("slurm", "127.0.0.1", kind=TargetKind.SITE, expected=Expected(settings=settings))
    detector = SlurmJobsDetector()
    seen = list(
        detector.parse(detector.collect(site, Transports(shell=LocalShell()), datetime.now(UTC)))
    )
    assert [
        one.resource for one in seen if one.metric == "job.node_fail" and one.value is True
    ] == [resources.node(ENDS["NODE_FAIL"][0])]
