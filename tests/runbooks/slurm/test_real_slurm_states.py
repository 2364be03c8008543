"""Runs on a real Slurm in states that are seldom seen: ReturnToService 0, 1 and 2, ResumeTimeout
passed, a dead slurmd, jobs that cannot be ended, a controller that hangs or is gone, a node that is
gone from slurm.conf."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from fixtures.cluster.slurm_daemons import (
    LAST_THAT_FORGETS,
    SlurmDaemons,
    SlurmOptions,
    clears_reason_on_resume,
    get_version,
)
from fixtures.cluster.slurm_supervisor import CONTROLLER, descendants_named
from incidents.models import Incident
from runbooks import services
from runbooks.models import Run, RunState
from runbooks.slurm.protocol import NodeState, SlurmError, SlurmRefusal
from runbooks.steps import wait_for_jobs
from tests.runbooks.conftest import CLUSTER, boots, reboots_asked
from tests.runbooks.real_site import RealSite
from tests.runbooks.site import Site
from tests.runbooks.slurm.test_slurm import real_client
from tests.services.patience import deadline_in

pytestmark = [
    pytest.mark.needs("slurmctld", "slurmd", "munged"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("database_on_disk"),
]
# Where slurmctld is to be dead: scontrol asks for so long before it says so, for 20 s otherwise.
SOON_SAID_DEAD = {"MessageTimeout": "6"}
# slurmctld looks for ResumeTimeout every half minute or so: measured 28 s with a limit of 3 s.


def a_slurm(
    directory: Path,
    *,
    node: str = "gn001",
    boot_takes: float = 2,
    resume_s: int = 1800,
    cpus: int = 16,
    **settings: str,
) -> SlurmDaemons:
    """The node and another, and a line in `boots` for each boot."""
    hook = directory / "hook"
    hook.write_text(f'#!/bin/sh\necho "$1" >> "{directory}/boots"\n')
    hook.chmod(0o755)
    options = SlurmOptions(
        gpus_per_node=2,
        cpus_per_node=cpus,
        boot_takes=timedelta(seconds=boot_takes),
        resume_timeout=timedelta(seconds=resume_s),
        reboot_hook=(str(hook),),
        settings=settings,
    )
    return SlurmDaemons(directory, nodes=(node, "gn002"), cluster_name=CLUSTER, options=options)


def look(daemons: SlurmDaemons) -> NodeState:
    node = daemons.nodes[0]
    return real_client(daemons).read_nodes((node,))[node]


def a_run(daemons: SlurmDaemons) -> tuple[RealSite, Run, Incident]:
    """For a GPU that the first node of that Slurm has lost."""
    node = daemons.nodes[0]
    site = RealSite(daemons.conf, daemons.directory / "boots", (node,), lost=(f"{node}/gpu/0",))
    tables = Site(nodes=0)
    tables.now = site.now()
    tables.add_node(node)
    incident = tables.raise_fault(node, resource=f"node/{node}/gpu/0000:19:00.0")
    services.start_due([incident.pk], now=site.now(), world=site.world)
    return site, Run.objects.get(incident=incident), incident


def test_node_is_verified_before_it_takes_jobs_when_slurm_gives_up_on_its_boot(
    tmp_path: Path,
) -> None:
    """ReturnToService 0, 1 and 2 side by side, and 2 once more with no worker there until Slurm has
    the node back, or, where it keeps the drain, until the node has booted."""
    drops = get_version() <= LAST_THAT_FORGETS
    returns = {"gn001": "0", "gn011": "1", "gn021": "2", "gn031": "2"}
    away = "gn031"
    with ExitStack() as running:
        slurms = {}
        for node, value in returns.items():
            (tmp_path / node).mkdir()
            slurm = a_slurm(
                tmp_path / node, node=node, boot_takes=45, resume_s=3, ReturnToService=value
            )
            slurms[node] = running.enter_context(slurm)
        runs = {node: a_run(daemons) for node, daemons in slurms.items()}
        for site, run, _ in runs.values():
            site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "wait_for_boot")
        attended = {node: pair for node, pair in runs.items() if node != away}
        play_all([(site, run) for site, run, _ in attended.values()])
        slurms[away].wait_until(
            lambda: not look(slurms[away]).is_out if drops else boots(slurms[away], away) == 1,
            what="Slurm takes it back",
        )
        runs[away][0].advance(runs[away][1].pk)
        assert look(slurms[away]).is_draining
        play_all([runs[away][:2]])
        for node, (_, run, incident) in runs.items():
            story = list(incident.timeline.values_list("text", flat=True))
            assert Run.objects.get(pk=run.pk).state == RunState.SUCCEEDED, (node, story)
            assert (boots(slurms[node], node), reboots_asked(slurms[node], node)) == (1, 1)
            why = (
                "took it back unverified (ReturnToService=2)"
                if node == away
                else f"dropped the drain of {node}"
            )
            drained_again = [f"{why}; Kintsugi drained it again at once" in text for text in story]
            assert any(drained_again) == drops, story
            slurms[node].wait_until(
                lambda at=node: not look(slurms[at]).is_out, what=f"{node} is back in service"
            )


def play_all(runs: Sequence[tuple[RealSite, Run]]) -> None:
    """All at once, as the pipeline does."""
    deadline = deadline_in(150)
    while unfinished := [
        (site, run) for site, run in runs if Run.objects.get(pk=run.pk).finished_at is None
    ]:
        assert time.monotonic() < deadline, [
            Run.objects.get(pk=run.pk).waiting_for for _, run in unfinished
        ]
        for site, run in unfinished:
            if services.is_due(run.pk, now=site.now()):
                services.advance(run.pk, now=site.now(), world=site.world)
        time.sleep(0.05)


def test_reboot_that_never_comes_calls_for_power_and_the_drain_outlasts_slurms_waiting(
    tmp_path: Path,
) -> None:
    """slurmctld cancels no reboot that it has sent, and past ResumeTimeout 22.05 takes the drain
    away; 24.11 goes on waiting."""
    with a_slurm(tmp_path, resume_s=20, RebootProgram="/bin/true") as daemons:
        site, run, incident = a_run(daemons)
        site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "wait_for_boot")
        daemons.wait_until(lambda: "REBOOT_ISSUED" in look(daemons).flags, what="reboot^")
        site.ahead = site.world.policy.boot_time + timedelta(seconds=1)
        ended = site.play(run.pk)
        state = look(daemons)
        assert ended.state == RunState.NOT_CURED
        assert "RebootProgram did nothing" in ended.outcome
        assert (state.is_draining, state.is_rebooting) == (True, True)
        assert boots(daemons, "gn001") == 0
        if get_version() > LAST_THAT_FORGETS:
            return
        daemons.wait_until(lambda: not look(daemons).is_draining, what="Slurm drops the drain")
        site.advance(run.pk)
        state = look(daemons)
        assert (state.is_draining, state.is_rebooting, state.reason) == (
            True,
            False,
            ended.facts["reason"],
        )
        assert any(
            "Kintsugi drained it again" in text
            for text in incident.timeline.values_list("text", flat=True)
        )


def test_node_whose_slurmd_is_dead_is_not_rebooted_through_it(tmp_path: Path) -> None:
    with a_slurm(tmp_path, SlurmdTimeout="5") as daemons:
        site, run, _ = a_run(daemons)
        site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "reboot")
        daemons.kill_node("gn001")
        daemons.wait_until(lambda: look(daemons).base == "DOWN", what="DOWN*")
        site.ahead = site.world.policy.boot_time + timedelta(minutes=1)
        ended = site.play(run.pk)
        assert ended.state == RunState.NOT_CURED
        assert "slurmd answers no more" in ended.outcome
        assert reboots_asked(daemons, "gn001") == 0
        assert look(daemons).is_draining


def test_job_whose_processes_cannot_be_ended_calls_for_power(tmp_path: Path) -> None:
    with a_slurm(tmp_path) as daemons:
        job = daemons.command(
            "sbatch", "--parsable", "--nodelist=gn001", "--output=/dev/null", "--wrap=sleep 600"
        )
        site, run, _ = a_run(daemons)
        daemons.wait_until(
            lambda: bool(site.world.slurm.list_jobs("gn001")), what="the job is on the node"
        )
        site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "wait_for_jobs")
        stepd = descendants_named(os.getpid(), f"slurmstepd: [{job.strip()}.")
        for pid in stepd:
            os.kill(pid, signal.SIGSTOP)
        daemons.command("scancel", job.strip())
        daemons.wait_until(lambda: "COMPLETING" in look(daemons).flags, what="it is completing")
        site.play_until(run.pk, lambda run: "is finishing its last job" in run.waiting_for)
        site.ahead = timedelta(minutes=7)  # UnkillableStepTimeout is 60 s, and an epilog has 5 min
        ended = site.play(run.pk)
        for pid in stepd:
            os.kill(pid, signal.SIGKILL)
        assert ended.state == RunState.NOT_CURED
        assert "cannot end the processes of jobs that are over" in ended.outcome
        assert reboots_asked(daemons, "gn001") == 0


def test_job_moves_elsewhere_when_its_owner_agrees(tmp_path: Path) -> None:
    with a_slurm(tmp_path) as daemons:
        words = ("--parsable", "--nodelist=gn001", "--output=/dev/null", "--wrap=sleep 600")
        job = daemons.command("sbatch", *words).strip()
        site, run, _ = a_run(daemons)
        daemons.wait_until(
            lambda: bool(site.world.slurm.list_jobs("gn001")), what="the job is on the node"
        )
        site.play_until(run.pk, lambda run: "1 job is still on gn001" in run.waiting_for)
        daemons.command("scontrol", "update", f"JobId={job}", "Comment=kintsugi=requeue")
        ended = site.play(run.pk)
        assert ended.state == RunState.SUCCEEDED, ended.outcome
        assert (
            f"Job {job} of root was requeued"
            in ended.steps.get(name=wait_for_jobs.WaitForJobs.name).text
        )


def test_run_goes_on_when_slurmctld_comes_back_from_hanging_and_from_its_death(
    tmp_path: Path,
) -> None:
    with a_slurm(tmp_path, MessageTimeout="2") as daemons:
        site, run, _ = a_run(daemons)
        site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "reboot")
        (controller,) = descendants_named(os.getpid(), "/usr/sbin/slurmctld")
        os.kill(controller, signal.SIGSTOP)
        with pytest.raises(SlurmError):
            site.world.slurm.read_nodes(("gn001",))
        site.advance(run.pk)
        assert "Kintsugi looks again" in Run.objects.get(pk=run.pk).waiting_for
        os.kill(controller, signal.SIGCONT)
        daemons.kill_controller()
        site.ahead = timedelta(minutes=1)
        site.advance(run.pk)
        assert "Kintsugi looks again" in Run.objects.get(pk=run.pk).waiting_for
        daemons.start_controller()
        daemons.wait_until(lambda: look(daemons).is_drained, what="slurmctld knows the drain")
        site.ahead = timedelta(minutes=2)
        ended = site.play(run.pk)
        assert ended.state == RunState.SUCCEEDED, ended.outcome
        assert reboots_asked(daemons, "gn001") == 1


def test_run_goes_on_by_a_restarted_slurmd_when_slurmctld_died_before_it_kept_the_boot(
    tmp_path: Path,
) -> None:
    with a_slurm(tmp_path, boot_takes=8, **SOON_SAID_DEAD) as daemons:
        site, run, _ = a_run(daemons)
        site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "wait_for_boot")
        kept = daemons.directory / "state" / "node_state"
        daemons.wait_until(
            lambda: b"reboot issued" in kept.read_bytes(), what="slurmctld has kept the reboot"
        )
        of_before = kept.read_bytes()
        daemons.wait_until(lambda: not look(daemons).is_rebooting, what="it is back")
        daemons.kill_controller()
        daemons.wait_until(lambda: not _answers(daemons), what="slurmctld is dead")
        kept.write_bytes(of_before)
        daemons.start_controller()
        daemons.wait_until(lambda: _answers(daemons), what="slurmctld is back")
        site.ahead = timedelta(seconds=70)
        site.play_until(run.pk, lambda run: "Slurm still waits for its boot" in run.waiting_for)
        with pytest.raises(SlurmRefusal, match="Invalid node state"):
            site.world.slurm.cancel_reboot("gn001", look(daemons).reason)
        daemons.switch("gn001", is_on=False)
        daemons.switch("gn001", is_on=True)
        ended = site.play(run.pk)
        assert ended.state == RunState.SUCCEEDED, ended.outcome
        assert reboots_asked(daemons, "gn001") == 1


def test_a_resume_that_slurmctld_did_not_keep_is_made_again(tmp_path: Path) -> None:
    """Slurm shows the node exactly as it stood before: reason and time of the reason."""
    with a_slurm(tmp_path, **SOON_SAID_DEAD) as daemons:
        site, run, incident = a_run(daemons)
        site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "resume")
        kept, before = daemons.directory / "state" / "node_state", look(daemons)
        daemons.command("scontrol", "update", "NodeName=gn002", "Comment=kept-before-the-resume")
        daemons.wait_until(
            lambda: b"kept-before-the-resume" in kept.read_bytes(),
            what="slurmctld has kept the drain",
        )
        of_before = kept.read_bytes()
        assert site.play(run.pk).state == RunState.SUCCEEDED
        assert not look(daemons).is_draining
        daemons.kill_controller()
        daemons.wait_until(lambda: not _answers(daemons), what="slurmctld is dead")
        kept.write_bytes(of_before)
        site.ahead = timedelta(seconds=31)
        assert services.get_due_runs(site.now()) == [run.pk]
        services.advance(run.pk, now=site.now(), world=site.world)  # nobody answers
        daemons.start_controller()
        daemons.wait_until(lambda: _answers(daemons), what="slurmctld is back")
        daemons.wait_until(
            lambda: look(daemons).is_drained,
            what="the drain is back, and its slurmd has registered",
        )
        after = look(daemons)
        assert (after.reason, after.reason_changed_at) == (before.reason, before.reason_changed_at)
        site.ahead = timedelta(seconds=62)
        services.advance(run.pk, now=site.now(), world=site.world)
        assert not look(daemons).is_draining
        site.ahead = timedelta(seconds=95)
        services.advance(run.pk, now=site.now(), world=site.world)
        assert services.get_due_runs(site.now() + timedelta(days=1)) == []
        assert reboots_asked(daemons, "gn001") == 1
        story = list(incident.timeline.values_list("text", flat=True))
        assert sum(text.endswith("Kintsugi resumed it again.") for text in story) == 1, story


def test_a_reboot_after_a_resume_shows_as_one_that_outlasts_its_drain_where_reasons_are_kept(
    tmp_path: Path,
) -> None:
    """From 23.11 to 25.11 without accounts; elsewhere the request after the resume brings a reason
    of its own. The job keeps both requests queued."""
    resumed, undrained = "gn001", "gn002"
    with SlurmDaemons(tmp_path, nodes=[resumed, undrained], cluster_name=CLUSTER) as daemons:
        options = ("--exclusive", "--nodes=2", "--output=/dev/null")
        daemons.command("sbatch", *options, "--wrap=sleep 600")
        client = real_client(daemons)
        daemons.wait_until(
            lambda: {node.base for node in client.read_nodes().values()} == {"ALLOCATED"},
            what="a job on both nodes",
        )
        for name in (resumed, undrained):
            daemons.command("scontrol", "update", f"NodeName={name}", "State=DRAIN", "Reason=ours")
            daemons.command("scontrol", "reboot", name)
        before = client.read_nodes()
        daemons.command("scontrol", "update", f"NodeName={resumed}", "State=RESUME")
        daemons.command("scontrol", "update", f"NodeName={undrained}", "State=UNDRAIN")
        daemons.command("scontrol", "reboot", resumed)
        after = client.read_nodes()
        theirs, ours = (_get_shown(before[name], after[name]) for name in (resumed, undrained))
        assert theirs.flags == ours.flags == {"REBOOT_REQUESTED"}
        assert (theirs == ours) is not clears_reason_on_resume(get_version())


def _get_shown(before: NodeState, after: NodeState) -> NodeState:
    """What does not differ between two nodes by itself, and whether the reason's time is another."""
    is_unchanged = after.reason_changed_at == before.reason_changed_at
    return NodeState(
        name="",
        base=after.base,
        flags=after.flags - {"NOT_RESPONDING"},
        reason=after.reason,
        reason_set_by=after.reason_set_by,
        reason_changed_at=None if is_unchanged else after.reason_changed_at,
        boot_time=None,
        partitions=after.partitions,
        comment=after.comment,
    )


def test_run_stops_and_asks_when_its_node_is_gone_from_slurm_conf(tmp_path: Path) -> None:
    with a_slurm(tmp_path) as daemons:
        site, run, _ = a_run(daemons)
        site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "wait_for_jobs")
        daemons.kill_controller()
        text = daemons.conf.read_text()
        lines = [line for line in text.splitlines() if not line.startswith("NodeName=gn001 ")]
        daemons.conf.write_text("\n".join(lines).replace("Nodes=gn001,gn002", "Nodes=gn002") + "\n")
        daemons.start_controller()
        daemons.wait_until(lambda: _answers(daemons), what="slurmctld is back")
        site.ahead = timedelta(minutes=1)
        ended = site.play(run.pk)
        assert ended.state == RunState.FAILED
        assert "Slurm knows no such node" in ended.outcome


def _answers(daemons: SlurmDaemons) -> bool:
    try:
        return "gn002" in real_client(daemons).read_nodes()
    except SlurmError:
        return False


class WithBackup(SlurmDaemons):
    """A primary controller and its backup, each with a host name and an address of its own."""

    def _slurm_conf(self, munge_socket: Path) -> str:
        (self.directory / "hosts").write_text("127.0.0.1 localhost ctl1\n127.0.0.2 ctl2\n")
        hosts = "SlurmctldHost=ctl1(127.0.0.1)\nSlurmctldHost=ctl2(127.0.0.2)"
        text = re.sub(r"SlurmctldHost=.*", hosts, super()._slurm_conf(munge_socket))
        return text.replace("NoAddrCache", "NoAddrCache,NoCtldInAddrAny")

    def _write_spec(self, munge_socket: Path) -> None:
        super()._write_spec(munge_socket)
        path = self.directory / "supervisor.json"
        spec = json.loads(path.read_text())
        controller = spec["daemons"][CONTROLLER]
        spec["daemons"][CONTROLLER] = self._on_host("ctl1", controller)
        spec["daemons"]["backup"] = self._on_host("ctl2", controller)
        path.write_text(json.dumps(spec))

    def _on_host(self, host: str, argv: list[str]) -> list[str]:
        # The backup begins once `ready` is there, finds no primary, and takes its state over.
        wait = (
            f"until [ -e '{self.directory}/ready' ]; do sleep 0.1; done; " if host == "ctl2" else ""
        )
        script = (
            f"mount --bind '{self.directory}/hosts' /etc/hosts; hostname {host}; {wait}exec \"$@\""
        )
        return ["unshare", "--uts", "--mount", "sh", "-c", script, "sh", *argv]


@pytest.mark.needs("unshare", "mount")
@pytest.mark.skipif(os.geteuid() != 0, reason="host names of their own need root")
def test_run_goes_on_when_the_backup_controller_takes_over(tmp_path: Path) -> None:
    # scontrol asks the controllers in turn for as long as MessageTimeout.
    settings = {"SlurmctldTimeout": "5", "MessageTimeout": "3"}
    options = SlurmOptions(gpus_per_node=2, settings=settings)
    with WithBackup(
        tmp_path, nodes=("gn001", "gn002"), cluster_name=CLUSTER, options=options
    ) as daemons:
        site, run, _ = a_run(daemons)
        site.play_until(run.pk, lambda run: run.plan[run.step]["step"] == "reboot")
        daemons.kill_controller()
        daemons.wait_until(lambda: not _answers(daemons), what="the primary is gone")
        site.advance(run.pk)
        assert "Kintsugi looks again" in Run.objects.get(pk=run.pk).waiting_for
        (tmp_path / "ready").touch()
        daemons.wait_until(lambda: _answers(daemons), what="the backup takes over")
        site.ahead = timedelta(minutes=1)
        site.advance(run.pk)
        assert reboots_asked(daemons, "gn001") == 1
        assert (
            Run.objects.get(pk=run.pk).plan[Run.objects.get(pk=run.pk).step]["step"]
            == "wait_for_boot"
        )
        daemons.wait_until(lambda: not look(daemons).is_rebooting, what="it is back")
        assert look(daemons).is_drained
