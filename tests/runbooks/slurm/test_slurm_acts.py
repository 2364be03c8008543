"""What every Slurm promises of reservations, jobs of ours, partitions and cancelled reboots: in
memory, through the stand-in's programs, and real."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from detectors.detector import Output, Target
from fixtures.cluster.slurm_daemons import SlurmDaemons
from fixtures.cluster.slurm_supervisor import descendants_named
from fixtures.memory_slurm_commands import CommandShell
from runbooks.slurm.client import ScontrolWriter, parse_controller
from runbooks.slurm.protocol import SlurmError, SlurmJob, SlurmRefusal
from tests.runbooks.conftest import CLUSTER, numbered
from tests.runbooks.slurm.test_slurm import (
    MemorySite,
    RealSite,
    Site,
    _memory,
    look,
    real_client,
    site,
    wait_for,
)
from tests.services.patience import deadline_in

__all__ = ["site"]
HOUR = timedelta(hours=1)
_keys = numbered("7-2-test-")


@pytest.fixture
def key() -> str:
    return next(_keys)


def until(condition: Callable[[], bool], *, within_s: float = 20) -> None:
    deadline = deadline_in(within_s)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def submit(site: Site, key: str, *argv: str, reservation: str = "") -> str:
    return site.slurm.submit(
        key,
        argv,
        nodes=(site.node,),
        gpus=2,
        time_limit=timedelta(minutes=5),
        reservation=reservation,
    )


def ended(site: Site, key: str) -> SlurmJob:
    until(lambda: (job := site.slurm.find_job(key)) is not None and job.has_ended)
    job = site.slurm.find_job(key)
    assert job is not None
    return job


def test_reservation_of_ours_is_made_once_and_taken_away(site: Site, key: str) -> None:
    site.slurm.reserve(key, (site.node,), duration=HOUR)
    site.slurm.reserve(key, (site.node,), duration=HOUR)
    found = [one for one in site.slurm.list_reservations() if one.name == f"kintsugi_{key}"]
    assert [(one.nodes, one.is_maintenance) for one in found] == [((site.node,), True)]
    assert found[0].ends_at - found[0].starts_at == HOUR
    site.slurm.unreserve(key)
    site.slurm.unreserve(key)
    assert site.slurm.list_reservations() == []


def test_reservation_begins_at_its_time_when_one_is_given(site: Site, key: str) -> None:
    begins = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=3)
    site.slurm.reserve(key, (site.node,), duration=HOUR, starts_at=begins)
    found = site.slurm.list_reservations()
    site.slurm.unreserve(key)
    assert [one.starts_at for one in found] == [begins]


def test_reservation_is_refused_when_one_of_that_name_has_other_nodes(site: Site, key: str) -> None:
    other = next(name for name in site.slurm.read_nodes() if name != site.node)
    site.slurm.reserve(key, (site.node,), duration=HOUR)
    with pytest.raises(SlurmRefusal, match="is there with other nodes"):
        site.slurm.reserve(key, (other,), duration=HOUR)
    site.slurm.unreserve(key)


def test_reservation_is_refused_when_another_holds_the_node_unless_one_of_them_is_maintenance(
    site: Site, key: str
) -> None:
    site.reserve("theirs", "IGNORE_JOBS")
    with pytest.raises(SlurmError):
        site.slurm.reserve(key, (site.node,), duration=HOUR, flags=("IGNORE_JOBS",))
    assert [one.name for one in site.slurm.list_reservations()] == ["theirs"]
    site.slurm.reserve(key, (site.node,), duration=HOUR)
    site.unreserve("theirs")
    site.slurm.unreserve(key)
    site.reserve("works", "MAINT")
    site.slurm.reserve(key, (site.node,), duration=HOUR, flags=("IGNORE_JOBS",))
    site.slurm.unreserve(key)
    site.unreserve("works")


def test_job_of_ours_runs_once_and_its_end_is_told(site: Site, key: str, tmp_path: Path) -> None:
    first = submit(site, key, "sh", "-c", f"echo \"it's $0\" >> '{tmp_path}/out'", "a b")
    assert ended(site, key).exit_status == 0
    assert submit(site, key, "sh", "-c", f"echo again >> '{tmp_path}/out'") == first
    if isinstance(site, RealSite):
        assert (tmp_path / "out").read_text() == "it's a b\n"


@pytest.mark.needs("slurmctld", "slurmd")
def test_job_of_ours_gets_neither_our_secrets_nor_the_environment_of_a_login(
    slurm_daemons: SlurmDaemons,
    take_node: Callable[[], str],
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """slurmd would run the login files of the account first, and wait for them as long as they
    hang."""
    monkeypatch.setenv("KINTSUGI_SLACK_BOT_TOKEN", "xoxb-secret")
    site = RealSite(real_client(slurm_daemons), slurm_daemons, take_node())
    submit(site, key, "sh", "-c", f"env > '{tmp_path}/env'")
    assert ended(site, key).exit_status == 0
    lines = (tmp_path / "env").read_text().splitlines()
    names = {line.partition("=")[0] for line in lines}
    of_a_login = {"SHELL", "MAIL", "TERM", "SLURM_GET_USER_ENV"}
    assert {"PATH", "SLURM_JOB_ID"} <= names
    assert not names & {"KINTSUGI_SLACK_BOT_TOKEN", *of_a_login}


def test_job_of_ours_tells_the_status_that_it_ended_with(site: Site, key: str) -> None:
    if isinstance(site, MemorySite):
        site.memory.work.outcome = lambda asked: (timedelta(seconds=0.1), 7)
    submit(site, key, "sh", "-c", "exit 7")
    job = ended(site, key)
    assert (job.state, job.exit_status, job.nodes) == ("FAILED", 7, (site.node,))


def test_job_waits_while_its_node_is_drained_and_runs_in_our_reservation_when_it_is_not(
    site: Site, key: str
) -> None:
    """Slurm gives a drained node no job, in its reservation neither (SERVICES: seen in 22.05)."""
    site.slurm.drain(site.node, "kintsugi:7 gpu.xid.79: lost")
    site.slurm.reserve(key, (site.node,), duration=HOUR)
    submit(site, key, "true", reservation=key)
    waiting = site.slurm.find_job(key)
    assert waiting is not None
    assert (waiting.state, waiting.started_at, waiting.exit_status) == ("PENDING", None, None)
    site.slurm.resume(site.node)
    assert ended(site, key).exit_status == 0
    site.slurm.unreserve(key)


def test_reservation_stays_while_a_job_of_ours_is_in_it_and_goes_once_that_is_cancelled(
    site: Site, key: str
) -> None:
    if isinstance(site, MemorySite):
        site.memory.work.outcome = lambda asked: (HOUR, 0)
    site.slurm.reserve(key, (site.node,), duration=HOUR)
    job_id = submit(site, key, "sleep", "600", reservation=key)
    until(lambda: (job := site.slurm.find_job(key)) is not None and job.state == "RUNNING")
    with pytest.raises(SlurmError):
        site.slurm.unreserve(key)
    site.slurm.cancel(job_id)
    assert ended(site, key).state == "CANCELLED"
    site.slurm.cancel(job_id)
    site.slurm.unreserve(key)


def test_no_job_is_told_when_none_of_that_key_was_submitted(site: Site) -> None:
    assert site.slurm.find_job("9-9-never") is None


def test_requeue_is_refused_when_the_job_may_not_be_started_anew(site: Site, key: str) -> None:
    if isinstance(site, MemorySite):
        site.memory.work.outcome = lambda asked: (HOUR, 0)
    job_id = submit(site, key, "sleep", "600")  # ours are submitted with Requeue=0
    until(lambda: (job := site.slurm.find_job(key)) is not None and job.state == "RUNNING")
    with pytest.raises(SlurmRefusal, match="may not be started anew"):
        site.slurm.requeue(job_id)
    site.slurm.cancel(job_id)


def test_requeue_is_refused_when_slurm_knows_no_such_job(site: Site) -> None:
    with pytest.raises(SlurmRefusal, match="4711999: Slurm knows no such job"):
        site.slurm.requeue("4711999")


def test_job_that_has_ended_and_hangs_is_told_as_completing_since_when(site: Site) -> None:
    job = site.start_job()
    release = _hang(site, job)
    until(lambda: [one.state for one in site.slurm.list_jobs(site.node)] == ["COMPLETING"])
    found = site.slurm.list_jobs(site.node)[0]
    state = look(site)
    release()
    assert found.is_completing
    assert not found.has_ended
    assert found.ended_at is not None
    assert abs(datetime.now(UTC) - found.ended_at) < timedelta(minutes=1)
    assert (state.base, "COMPLETING" in state.flags) == ("IDLE", True)


def _hang(site: Site, job: str) -> Callable[[], None]:
    """Its end is asked for, and what runs it cannot end: the state that a process in D state
    leaves."""
    if isinstance(site, MemorySite):
        memory = site.memory
        memory.hang_job(job)
        return lambda: memory.finish_job(job, "CANCELLED")
    until(lambda: bool(descendants_named(os.getpid(), f"slurmstepd: [{job}.")))
    stepd = descendants_named(os.getpid(), f"slurmstepd: [{job}.")
    for pid in stepd:
        os.kill(pid, signal.SIGSTOP)
    site.cancel_job(job)

    def release() -> None:
        for pid in stepd:
            os.kill(pid, signal.SIGCONT)

    return release


def test_cancelled_reboot_leaves_the_node_drained_with_our_reason(site: Site) -> None:
    job = site.start_job()
    site.slurm.drain(site.node, "kintsugi:7 gpu.xid.79: lost")
    site.slurm.reboot(site.node)
    assert look(site).is_rebooting
    site.slurm.cancel_reboot(site.node, "kintsugi:7 gpu.xid.79: lost")
    site.slurm.cancel_reboot(site.node, "kintsugi:7 gpu.xid.79: lost")
    state = look(site)
    assert state.is_draining
    assert not state.is_rebooting
    assert state.reason == "kintsugi:7 gpu.xid.79: lost"
    site.cancel_job(job)
    wait_for(site, lambda state: state.is_drained)
    assert site.reboots() == 1  # asked for, and never done


def test_node_moves_between_partitions_and_the_others_stay(site: Site) -> None:
    before = site.slurm.read_partitions()
    home = look(site).partitions
    site.slurm.set_partitions(site.node, ())
    gone = site.slurm.read_partitions()
    site.slurm.set_partitions(site.node, home)
    assert site.node not in {name for members in gone.values() for name in members}
    assert {name: set(members) for name, members in site.slurm.read_partitions().items()} == {
        name: set(members) for name, members in before.items()
    }


def test_partition_that_slurm_does_not_know_is_refused(site: Site) -> None:
    with pytest.raises(SlurmRefusal, match="no such partition"):
        site.slurm.set_partitions(site.node, ("nowhere",))


_ACTS: dict[str, Callable[[ScontrolWriter], object]] = {
    "cancel_reboot": lambda slurm: slurm.cancel_reboot("gn001", "reason"),
    "requeue": lambda slurm: slurm.requeue("17"),
    "reserve": lambda slurm: slurm.reserve("1-1-x", ("gn001",), duration=HOUR),
    "unreserve": lambda slurm: slurm.unreserve("1-1-old"),
    "submit": lambda slurm: slurm.submit(
        "1-1-x", ("true",), nodes=("gn001",), gpus=1, time_limit=HOUR
    ),
    "cancel": lambda slurm: slurm.cancel("17"),
    "set_partitions": lambda slurm: slurm.set_partitions("gn001", ("debug",)),
}


@pytest.mark.parametrize("act", _ACTS)
def test_nothing_new_is_done_when_the_cluster_has_another_name(act: str) -> None:
    memory = _memory()
    memory.add_job("17", nodes=["gn001"])
    memory.drain("gn001", "reason")
    memory.reboot("gn001")
    memory.reserve("1-1-old", ("gn002",), duration=HOUR)
    before = list(memory.journal)
    with pytest.raises(SlurmRefusal, match="KINTSUGI_CLUSTER_NAME is production"):
        _ACTS[act](
            ScontrolWriter(
                CommandShell(memory), parse_controller("local"), cluster_name="production"
            )
        )
    assert memory.journal == before


@pytest.mark.parametrize("key", ["", "a b", "x,Nodes=ALL", "-h", "a" * 100])
def test_key_that_slurm_would_read_as_something_else_is_refused(key: str) -> None:
    memory = _memory()
    slurm = ScontrolWriter(CommandShell(memory), parse_controller("local"), cluster_name=CLUSTER)
    with pytest.raises(SlurmRefusal, match="cannot name a reservation or a job"):
        slurm.reserve(key, ("gn001",), duration=HOUR)
    assert memory.journal == []


def test_job_is_found_in_the_accounts_when_slurmctld_has_forgotten_it() -> None:
    memory = _memory()

    class Forgetful(CommandShell):
        def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
            return (
                Output(0, b"", b"", timeout)
                if "squeue" in argv
                else super().run(target, argv, timeout)
            )

    first = ScontrolWriter(CommandShell(memory), parse_controller("local"), cluster_name=CLUSTER)
    job_id = first.submit("1-1-x", ("true",), nodes=("gn001",), gpus=1, time_limit=HOUR)
    later = ScontrolWriter(Forgetful(memory), parse_controller("local"), cluster_name=CLUSTER)
    found = later.find_job("1-1-x")
    assert found is not None
    assert found.job_id == job_id
    assert later.submit("1-1-x", ("true",), nodes=("gn001",), gpus=1, time_limit=HOUR) == job_id
