"""What every Slurm promises: the one in memory, the real client over it (also through the
stand-in's programs), and the real client over a real Slurm."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import pytest

from detectors.detector import DetectorError, OneByOne, Output, Target
from detectors.slurm.job_records import Accounts, JobRecord
from detectors.transports.ssh import LocalShell
from fixtures.cluster.slurm_daemons import (
    SHORTEST_BOOT,
    SlurmDaemons,
    clears_reason_on_resume,
)
from fixtures.memory_slurm import MemorySlurm
from fixtures.memory_slurm_commands import CommandShell
from runbooks.slurm.client import ScontrolReader, ScontrolWriter, parse_controller
from runbooks.slurm.protocol import (
    Demand,
    NodeState,
    Reservation,
    SlurmError,
    SlurmRefusal,
    SlurmWriter,
    do_nothing,
)
from tests.runbooks.conftest import CLUSTER, boots, reboots_asked
from tests.services.patience import deadline_in, patient

_HOST = parse_controller("local")


class Site(Protocol):
    """A Slurm and what a site does to it."""

    slurm: SlurmWriter
    node: str

    def start_job(self) -> str: ...

    def cancel_job(self, job: str) -> None: ...

    def human_drain(self, reason: str) -> None: ...

    def reserve(self, name: str, flags: str) -> None:
        """Its node, for an hour from now."""
        ...

    def unreserve(self, name: str) -> None: ...

    def reboots(self) -> int: ...


@dataclass
class MemorySite:
    slurm: SlurmWriter
    memory: MemorySlurm
    node: str = "gn001"

    def start_job(self) -> str:
        self.memory.add_job("17", nodes=[self.node], name="a|b=c")
        return "17"

    def cancel_job(self, job: str) -> None:
        self.memory.finish_job(job, "CANCELLED")

    def human_drain(self, reason: str) -> None:
        self.memory.human_drain(self.node, reason)

    def reserve(self, name: str, flags: str) -> None:
        now = datetime.now(UTC).replace(microsecond=0)
        named = frozenset(flags.split(","))
        self.memory.add_reservation(
            Reservation(name, (self.node,), named, now, now + timedelta(hours=1))
        )

    def unreserve(self, name: str) -> None:
        self.memory.end_reservation(name)

    def reboots(self) -> int:
        return self.memory.reboots(self.node)


@dataclass
class RealSite:
    slurm: SlurmWriter
    daemons: SlurmDaemons
    node: str

    def start_job(self) -> str:
        argv = (
            "sbatch",
            "--parsable",
            f"--nodelist={self.node}",
            "--job-name=a|b=c",
            "--output=/dev/null",
        )
        job = self.daemons.command(*argv, "--wrap=sleep 600").strip()
        self.daemons.wait_until(
            lambda: (
                "RUNNING"
                in self.daemons.command("squeue", "--noheader", f"--jobs={job}", "--format=%T")
            ),
            what="the job runs",
        )
        return job

    def cancel_job(self, job: str) -> None:
        self.daemons.command("scancel", job)

    def human_drain(self, reason: str) -> None:
        self.daemons.command(
            "scontrol", "update", f"NodeName={self.node}", "State=DRAIN", f"Reason={reason}"
        )

    def reserve(self, name: str, flags: str) -> None:
        words = (
            f"ReservationName={name}",
            "StartTime=now",
            "Duration=60",
            f"Nodes={self.node}",
            "Users=root",
        )
        self.daemons.command("scontrol", "create", "reservation", *words, f"Flags={flags}")

    def unreserve(self, name: str) -> None:
        self.daemons.command("scontrol", "delete", f"ReservationName={name}")

    def reboots(self) -> int:
        assert boots(self.daemons, self.node) <= reboots_asked(self.daemons, self.node)
        return reboots_asked(self.daemons, self.node)


def _memory() -> MemorySlurm:
    # Boots as fast as the real one under test.
    return MemorySlurm(
        {"gn001": ["gpu"], "gn002": ["gpu", "debug"]},
        cluster_name=CLUSTER,
        now=lambda: datetime.now(UTC),
        boot_takes=SHORTEST_BOOT,
    )


@pytest.fixture(
    params=[
        "memory",
        "commands",
        "programs",
        pytest.param("real", marks=pytest.mark.needs("slurmctld", "slurmd")),
    ]
)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    if request.param == "real":
        daemons: SlurmDaemons = request.getfixturevalue("slurm_daemons")
        take_node: Callable[[], str] = request.getfixturevalue("take_node")
        yield RealSite(real_client(daemons), daemons, take_node())
        return
    memory = _memory()
    client: SlurmWriter = memory
    if request.param == "programs":
        serve: Callable[[MemorySlurm, str], Path] = request.getfixturevalue("stand_in_programs")
        conf = serve(memory, CLUSTER)
        client = ScontrolWriter(LocalShell(), _HOST, cluster_name=CLUSTER, conf=str(conf))
    if request.param == "commands":
        client = ScontrolWriter(CommandShell(memory), _HOST, cluster_name=CLUSTER)
    yield MemorySite(client, memory)


def real_client(daemons: SlurmDaemons, cluster_name: str = CLUSTER) -> ScontrolWriter:
    return ScontrolWriter(LocalShell(), _HOST, cluster_name=cluster_name, conf=str(daemons.conf))


def look(site: Site) -> NodeState:
    return site.slurm.read_nodes((site.node,))[site.node]


def wait_for(site: Site, condition: Callable[[NodeState], bool]) -> NodeState:
    deadline = deadline_in(20)
    while not condition(state := look(site)):
        assert time.monotonic() < deadline, state
        time.sleep(0.05)
    return state


class LeaseLost(Exception):
    pass


def lose_lease() -> None:
    raise LeaseLost


def test_what_a_check_raises_keeps_the_act_from_the_node(site: Site) -> None:
    before = look(site)
    with pytest.raises(LeaseLost):
        site.slurm.with_check(lose_lease).drain(site.node, "kintsugi:1 x: y", as_seen=before)
    assert look(site) == before


def test_what_a_check_raises_keeps_the_act_from_jobs_reservations_and_partitions(
    site: Site,
) -> None:
    job = site.start_job()
    late = site.slurm.with_check(lose_lease)
    nodes, hour = [site.node], timedelta(hours=1)
    acts: list[Callable[[], object]] = [
        lambda: late.requeue(job),
        lambda: late.notify_job(job, "your node is repaired"),
        lambda: late.signal_job(job, "USR1", is_batch=True),
        lambda: late.cancel(job),
        lambda: late.reserve("late", nodes, duration=hour),
        lambda: late.submit("late", ["true"], nodes=nodes, gpus=0, time_limit=hour),
        lambda: late.set_partitions(site.node, []),
    ]
    for act in acts:
        with pytest.raises(LeaseLost):
            act()
    running = site.slurm.list_jobs(site.node)
    assert [found.state for found in running] == ["RUNNING"]
    assert not [row for row in site.slurm.list_reservations() if row.name.endswith("late")]
    assert site.slurm.find_job("late") is None
    assert any(site.node in members for members in site.slurm.read_partitions().values())
    site.cancel_job(job)


def test_reservations_are_told_with_nodes_flags_and_times_in_utc(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "TZ", "America/New_York"
    )  # of the process: nothing that is read may depend on it
    site.reserve("maint_1", "MAINT,IGNORE_JOBS")
    site.reserve("course", "OVERLAP")
    found = {one.name: one for one in site.slurm.list_reservations()}
    site.unreserve("maint_1")
    left = [one.name for one in site.slurm.list_reservations()]
    site.unreserve("course")
    one = found["maint_1"]
    assert (one.nodes, one.is_maintenance, found["course"].is_maintenance) == (
        (site.node,),
        True,
        False,
    )
    assert abs(one.starts_at - datetime.now(UTC)) < timedelta(seconds=30)
    assert one.ends_at - one.starts_at == timedelta(hours=1)
    assert left == ["course"]


def test_no_reservation_is_told_when_there_is_none(site: Site) -> None:
    assert site.slurm.list_reservations() == []


def test_node_is_drained_with_our_reason_when_idle(site: Site) -> None:
    site.slurm.drain(site.node, 'kintsugi:7 gpu.xid.79: GPU lost | "a=b"')
    state = look(site)
    assert state.is_drained
    assert state.reason.startswith("kintsugi:7 gpu.xid.79: GPU lost | ")
    assert state.reason_set_by
    assert state.partitions


def test_node_is_draining_and_not_drained_when_a_job_runs(site: Site) -> None:
    job = site.start_job()
    site.slurm.drain(site.node, "kintsugi:7 gpu.xid.79: lost")
    assert look(site).is_draining
    assert not look(site).is_drained
    assert [
        (found.job_id, found.name, found.nodes) for found in site.slurm.list_jobs(site.node)
    ] == [(job, "a|b=c", (site.node,))]
    site.slurm.requeue(job)
    wait_for(site, lambda state: state.is_drained)


def test_a_job_is_told_with_its_times_while_it_runs_and_after_it_was_cancelled(site: Site) -> None:
    job = site.start_job()
    running = of_job(site, job)
    assert (running.state, running.nodes, running.ended_at) == ("RUNNING", (site.node,), None)
    assert abs(running.started_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert running.user
    site.cancel_job(job)
    deadline = deadline_in(20)
    while (ended := of_job(site, job)).ended_at is None:
        assert time.monotonic() < deadline, ended
        time.sleep(0.05)
    assert (ended.state, ended.started_at) == ("CANCELLED", running.started_at)
    assert ended.ended_at is not None
    assert ended.ended_at >= ended.started_at


def of_job(site: Site, job: str) -> JobRecord:
    return next(
        one for one in site.slurm.read_recent_jobs(timedelta(hours=1)).records if one.job_id == job
    )


def test_a_job_is_told_with_the_nodes_that_it_needs_while_it_runs(site: Site) -> None:
    job = site.start_job()
    needed = next(demand for demand in site.slurm.list_demands() if demand.job_id == job)
    assert needed == Demand(job, 1, ("gpu",), is_running=True)
    site.cancel_job(job)
    wait_for(
        site, lambda state: not any(demand.job_id == job for demand in site.slurm.list_demands())
    )


def test_no_accounts_are_told_and_jobs_all_the_same_when_a_site_keeps_none(
    site: Site,
) -> None:
    if isinstance(site, MemorySite):
        site.memory.keeps_accounts = False
    job = site.start_job()
    told = site.slurm.read_recent_jobs(timedelta(hours=1))
    assert (told.accounts, told.complaint) == (Accounts.NONE_KEPT, "")
    assert job in {one.job_id for one in told.records}


def test_drained_node_comes_back_drained_when_rebooted(site: Site) -> None:
    site.slurm.drain(site.node, "kintsugi:7 gpu.xid.79: lost")
    before = look(site)
    site.slurm.reboot(site.node)
    state = wait_for(
        site, lambda state: not state.is_rebooting and state.boot_time != before.boot_time
    )
    assert state.is_drained
    assert state.reason.startswith("kintsugi:7 gpu.xid.79: lost : reboot issued")
    assert state.boot_time is not None
    assert before.boot_time is not None
    assert state.boot_time > before.boot_time
    assert site.reboots() == 1


def test_node_takes_jobs_again_when_resumed_and_some_slurms_keep_the_reason(site: Site) -> None:
    reason = "kintsugi:7 gpu.xid.79: lost"
    site.slurm.drain(site.node, reason)
    site.slurm.resume(site.node)
    state = wait_for(site, lambda state: not state.is_out)
    version = [int(part) for part in site.slurm.read_config()["SLURM_VERSION"].split(".")[:2]]
    assert state.reason == ("" if clears_reason_on_resume(version) else reason)


def test_reason_of_a_person_is_seen_when_they_drain(site: Site) -> None:
    site.human_drain("bob: swapping | tray=3")
    assert look(site).is_draining
    assert look(site).reason == "bob: swapping | tray=3"


def test_unknown_node_is_refused_when_named(site: Site) -> None:
    with pytest.raises(SlurmRefusal, match="nowhere: Slurm knows no such node"):
        site.slurm.read_nodes(("nowhere",))


def test_all_nodes_are_listed_when_none_is_named(site: Site) -> None:
    assert site.node in site.slurm.read_nodes()
    assert len(site.slurm.read_nodes()) >= 2


def test_configuration_names_the_cluster(site: Site) -> None:
    assert site.slurm.read_config()["ClusterName"] == CLUSTER
    assert site.slurm.read_config()["ReturnToService"] == "0"
    assert site.slurm.read_config()["RebootProgram"]


def test_access_is_that_of_an_operator_when_root(site: Site) -> None:
    assert site.slurm.read_access().is_operator


@pytest.mark.parametrize("act", ["drain", "resume", "reboot"])
def test_nothing_is_done_when_the_cluster_has_another_name(act: str) -> None:
    memory = _memory()
    slurm = ScontrolWriter(CommandShell(memory), _HOST, cluster_name="production")
    arguments = ("gn001", "reason") if act == "drain" else ("gn001",)
    with pytest.raises(
        SlurmRefusal, match=f"this is cluster {CLUSTER}.*KINTSUGI_CLUSTER_NAME is production"
    ):
        getattr(slurm, act)(*arguments)
    assert memory.journal == []


def test_nothing_is_done_when_no_cluster_name_is_configured() -> None:
    memory = _memory()
    with pytest.raises(SlurmRefusal, match="is unset"):
        ScontrolWriter(CommandShell(memory), _HOST, cluster_name="").reboot("gn001")
    assert memory.journal == []


@pytest.mark.parametrize(
    "name", ["ALL", "gn[001-100]", "gn001,gn002", "", "-h", "gn001 State=DOWN"]
)
def test_name_of_more_than_one_node_is_refused_when_acting(name: str) -> None:
    memory = _memory()
    with pytest.raises(SlurmRefusal, match="is no node name"):
        ScontrolWriter(CommandShell(memory), _HOST, cluster_name=CLUSTER).drain(name, "reason")
    assert memory.journal == []


def test_error_says_what_to_do_when_slurmctld_is_down() -> None:
    memory = _memory()
    memory.is_answering = False
    with pytest.raises(SlurmError, match="slurmctld is down or cannot be reached"):
        ScontrolWriter(CommandShell(memory), _HOST, cluster_name=CLUSTER).read_nodes()


class _Saying(OneByOne):
    """A shell whose commands all end so."""

    def __init__(self, output: Output | DetectorError) -> None:
        self._output = output

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        if isinstance(self._output, DetectorError):
            raise self._output
        return self._output


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (Output(None, b"", b"", timedelta(seconds=30)), "gave no answer within 30 s"),
        (Output(1, b"", b"", timedelta(0)), "it said nothing"),
        (
            Output(1, b"", b"slurm_update error: Access denied", timedelta(0)),
            "admin level Operator",
        ),
        (
            DetectorError("ssh to ctl: refused"),
            "could not be run on localhost: ssh to ctl: refused",
        ),
    ],
)
def test_error_names_what_went_wrong_when_a_command_fails(
    output: Output | DetectorError, words: str
) -> None:
    slurm = ScontrolWriter(_Saying(output), _HOST, cluster_name=CLUSTER)
    with pytest.raises(SlurmError, match=words):
        slurm.read_config()


def test_state_is_believed_and_not_the_status_when_a_drain_did_not_take() -> None:
    """scontrol says it succeeded; the node still takes jobs."""
    memory = _memory()

    class Deaf(CommandShell):
        def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
            return (
                Output(0, b"", b"", timeout)
                if "update" in argv
                else super().run(target, argv, timeout)
            )

    with pytest.raises(
        SlurmError, match="gn001 is IDLE after a drain was asked for; scontrol ended with status 0"
    ):
        ScontrolWriter(Deaf(memory), _HOST, cluster_name=CLUSTER).drain("gn001", "kintsugi:1 x: y")


def test_the_caller_goes_on_while_slurm_is_asked() -> None:
    """Nodes, jobs and the caller meet: where one came after another's end, none would come."""
    meeting = threading.Barrier(3)

    def meet() -> None:
        meeting.wait(patient(10))

    class Meeting(CommandShell):
        def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
            meet()
            return super().run(target, argv, timeout)

    slurm = ScontrolReader(Meeting(_memory()), _HOST)
    nodes, demands = slurm.read_nodes_and_demands(meet)
    assert (set(nodes), demands) == ({"gn001", "gn002"}, [])


class Counting(CommandShell):
    """Keeps the words of each command, and may wait for others before it runs one."""

    def __init__(self, slurm: MemorySlurm, wait: Callable[[], None] = do_nothing) -> None:
        super().__init__(slurm)
        self.asked: list[str] = []
        self._wait = wait

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        self.asked.append(" ".join(argv))
        self._wait()
        return super().run(target, argv, timeout)


def test_the_cluster_is_asked_for_meanwhile_by_who_may_act() -> None:
    """Nodes, jobs, the cluster and the caller meet."""
    meeting = threading.Barrier(4)

    def meet() -> None:
        meeting.wait(patient(10))

    shell = Counting(_memory(), meet)
    slurm = ScontrolWriter(shell, _HOST, cluster_name=CLUSTER)
    slurm.read_nodes_and_demands(meet)
    assert sorted(words.endswith("show config") for words in shell.asked) == [False, False, True]


def test_a_drain_within_a_minute_of_that_asks_for_the_cluster_no_more() -> None:
    shell = Counting(_memory())
    slurm = ScontrolWriter(shell, _HOST, cluster_name=CLUSTER)
    slurm.read_nodes_and_demands()
    before = len(shell.asked)
    slurm.drain("gn001", "kintsugi:1 x: y")
    programs = [words.split(" scontrol ")[-1].split(" Reason")[0] for words in shell.asked[before:]]
    look, act = "--all show node gn001", "update NodeName=gn001 State=DRAIN"
    assert programs == [look, act, look]


def test_another_cluster_is_looked_at_and_not_acted_upon() -> None:
    memory = _memory()
    slurm = ScontrolWriter(CommandShell(memory), _HOST, cluster_name="production")
    nodes, _ = slurm.read_nodes_and_demands()
    assert "gn001" in nodes
    with pytest.raises(SlurmRefusal, match=f"this is cluster {CLUSTER}"):
        slurm.drain("gn001", "kintsugi:1 x: y")
    assert memory.journal == []


def test_controller_is_a_host_over_ssh_when_the_setting_says_so() -> None:
    assert parse_controller("ssh:ops@ctl.example:2222") == Target(
        "ctl.example", "ctl.example", 2222, "ops"
    )
    assert parse_controller("local").address == "localhost"
