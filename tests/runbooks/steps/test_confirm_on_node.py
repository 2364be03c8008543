"""Confirmation gives one of three answers, seen, looked and well, could not look, over all that its
incident holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from django.db import transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import Output, Target
from fixtures.cluster.gpu import Presence
from incidents import services as incidents
from incidents.models import Fault, Incident
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.models import Mode, Run, RunbookMode, RunState
from runbooks.step import ActiveFault, Done, Wait
from runbooks.steps.confirm_on_node import ConfirmOnNode
from tests.runbooks.site import Site, Unplugged, a_context

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


class CutShort(Unplugged):
    """Nodes on which one program's output ends after a third."""

    program = "nvidia-smi"
    status: int | None = None

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        output = super().run(target, argv, timeout)
        if self.program not in " ".join(argv):
            return output
        status = output.status if self.status is None else self.status
        return replace(output, stdout=output.stdout[: len(output.stdout) // 3], status=status)


def cut(site: Site, program: str = "nvidia-smi", *, status: int | None = None) -> None:
    shell = CutShort(site.nodes)
    shell.program, shell.status = program, status
    site.shell = shell
    site.world = replace(site.world, shell=shell)


def lose(site: Site, index: int, *, presence: Presence = Presence.NO_HANDLE) -> str:
    site.nodes.nodes["gn001"].gpus[index].presence = presence
    return site.gpu("gn001", index)


def find(site: Site, index: int) -> None:
    site.nodes.nodes["gn001"].gpus[index].presence = Presence.PRESENT


def confirming(site: Site) -> Run:
    """A run that waits: GPU 0 was lost by a line, and answers."""
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=2))
    assert run.plan[run.step]["step"] == "confirm_on_node"
    return run


def a_member(site: Site, index: int, fault_type: str = "gpu.lost") -> ActiveFault:
    row = catalog.load()[fault_type]
    return ActiveFault(fault_type, site.gpu("gn001", index), site.now, row.action)


def test_the_run_goes_on_for_another_fault_of_its_incident_when_its_own_part_answers_again() -> (
    None
):
    site = Site()
    run = confirming(site)
    lost = lose(site, 2)
    site.poll()
    assert Fault.objects.get(resource=lost).membership.incident_id == run.incident_id
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert (run.fault_type, run.facts["resource"]) == ("gpu.lost", lost)
    assert any(
        f"The run goes on for gpu.lost on {lost}, of the same incident" in line
        for line in site.story(run.incident)
    )
    assert list(run.cures.values_list("resource", "fault_type")) == [(lost, "gpu.lost")]
    assert site.slurm.reboots("gn001") == 1


def test_what_looked_and_found_nothing_says_of_which_parts() -> None:
    site = Site(nodes=1)
    result = ConfirmOnNode().run(a_context(site, find_members=lambda: [a_member(site, 2)]))
    assert isinstance(result, Wait)
    for index in (0, 2):
        assert f"its gpu check finds nothing wrong with {site.gpu('gn001', index)}" in result.text
    assert "false alarm" in result.ask


def test_a_detector_whose_output_is_cut_off_never_says_that_nothing_is_wrong() -> None:
    site = Site(nodes=1)
    cut(site)
    result = ConfirmOnNode().run(a_context(site))
    assert isinstance(result, Wait)
    assert (
        "can neither be confirmed nor ruled out on gn001: its gpu check gives no answer"
        in result.text
    )
    assert "nothing wrong" not in result.text
    assert "false alarm" not in result.ask
    assert "is not known" in result.ask


def test_a_kernel_log_that_cannot_be_read_never_says_that_it_does_not_hold_the_fault() -> None:
    site = Site(nodes=1)
    cut(site, "journalctl", status=1)
    result = ConfirmOnNode().run(a_context(site, fault_type="gpu.xid.119"))
    assert isinstance(result, Wait)
    assert "its own kernel log cannot be read" in result.text
    assert "false alarm" not in result.ask


def test_a_fault_that_no_detector_on_the_node_looks_for_is_not_ruled_out_by_silence() -> None:
    site = Site(nodes=1)
    site.world = replace(
        site.world, detectors=[one for one in site.world.detectors if one.name != "gpu"]
    )
    result = ConfirmOnNode().run(a_context(site))
    assert isinstance(result, Wait)
    assert "its gpu check gives no answer (it does not look at gn001)" in result.text
    assert "false alarm" not in result.ask


def test_a_node_that_answers_slurm_and_not_us_is_not_ruled_out() -> None:
    site = Site(nodes=1)
    site.shell.silent.add("gn001")
    result = ConfirmOnNode().run(a_context(site))
    assert isinstance(result, Wait)
    assert (
        "can neither be confirmed nor ruled out on gn001: Kintsugi cannot reach it" in result.text
    )
    assert "false alarm" not in result.ask


def test_nobody_is_told_that_nothing_is_wrong_when_a_part_outside_the_incident_is_ill() -> None:
    site = Site(nodes=1)
    lost = lose(site, 5, presence=Presence.MISSING)
    result = ConfirmOnNode().run(a_context(site))
    assert isinstance(result, Wait)
    assert lost in result.text
    assert lost in result.ask
    assert "nothing wrong" not in result.text
    assert "false alarm" not in result.ask


def test_one_member_that_could_not_be_looked_at_keeps_the_others_from_passing_for_well() -> None:
    site = Site(nodes=1)
    cut(site, "journalctl", status=1)
    result = ConfirmOnNode().run(
        a_context(site, find_members=lambda: [a_member(site, 2, "gpu.xid.119")])
    )
    assert isinstance(result, Wait)
    assert (
        f"gpu.xid.119 on {site.gpu('gn001', 2)} can neither be confirmed nor ruled out"
        in result.text
    )
    assert "false alarm" not in result.ask


def test_a_member_that_calls_for_less_than_a_repair_confirms_nothing() -> None:
    site = Site(nodes=1)
    lost = lose(site, 2)
    warning = ActiveFault("gpu.lost", lost, site.now)
    assert isinstance(ConfirmOnNode().run(a_context(site, find_members=lambda: [warning])), Wait)
    assert isinstance(
        ConfirmOnNode().run(a_context(site, find_members=lambda: [a_member(site, 2)])), Done
    )


def test_a_verified_node_that_a_poll_shows_ill_again_is_not_given_back() -> None:
    site = Site()
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "resume"
    )
    site.now += timedelta(seconds=1)
    lost = lose(site, 2)
    site.poll()
    run = site.advance(run)
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_draining
    assert run.state == RunState.FAILED
    assert f"gpu.lost on {lost} since it was verified" in run.outcome


def test_a_node_is_not_handed_back_while_a_poll_sees_a_fault_of_it() -> None:
    """The cause moves to a switch; the GPU that is lost too stays lost."""
    site = Site()
    run = confirming(site)
    lost = lose(site, 2)
    site.poll()
    Incident.objects.filter(pk=run.incident_id).update(node=None)
    run = site.advance(run)
    assert run.state == RunState.WITHDRAWN
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_draining
    assert f"gn001 stays drained: gpu.lost on {lost} was last polled as active" in run.outcome
    assert lost in Incident.objects.get(pk=run.incident_id).needs_human


moments = st.integers(0, 12)
losses = st.tuples(moments, st.one_of(st.none(), moments))


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    first=losses,
    second=losses,
    job_ends=moments,
    says_false_alarm=st.one_of(st.none(), moments),
    is_dead=st.booleans(),
)
@example(first=(0, 4), second=(2, None), job_ends=8, says_false_alarm=None, is_dead=False)
@example(first=(0, 4), second=(6, None), job_ends=0, says_false_alarm=12, is_dead=False)
@example(first=(2, None), second=(0, 1), job_ends=1, says_false_alarm=1, is_dead=False)
def test_of_two_faults_on_one_node_none_is_passed_over_whichever_passes_when(
    first: tuple[int, int | None],
    second: tuple[int, int | None],
    job_ends: int,
    says_false_alarm: int | None,
    is_dead: bool,
) -> None:
    """Each GPU is lost at its half minute, and may answer again at another. A person may say false
    alarm at any.

    Nobody is told that nothing is wrong with a GPU that is lost; the node is never resumed while
    polls see one lost.
    """
    with transaction.atomic():
        play = Play(Site(nodes=2), {0: first, 3: second}, is_dead=is_dead)
        play.site.slurm.add_job("77", nodes=["gn001"])
        for half_minute in range(28):
            play.tick(half_minute)
            if half_minute == job_ends:
                play.site.slurm.finish_job("77")
            if half_minute == says_false_alarm:
                play.say_false_alarm()
            play.turn()
        assert play.site.slurm.read_nodes(("gn001",))["gn001"].is_draining or not play.lost()
        transaction.set_rollback(True)


@dataclass
class Play:
    """gn001 with two GPUs that are lost and found, polled each minute. `losses`: when, and when it
    answers again."""

    site: Site
    losses: dict[int, tuple[int, int | None]]
    is_dead: bool

    def tick(self, half_minute: int) -> None:
        self.site.now += MINUTE / 2
        for index, (lost_at, found_at) in self.losses.items():
            if half_minute == lost_at:
                fault = "gpu_dead" if self.is_dead and index else "gpu_lost"
                self.site.nodes.inject(fault, f"gn001/gpu/{index}")
                self.site.raise_fault(resource=self.site.gpu("gn001", index))
            if found_at is not None and half_minute == found_at > lost_at:
                find(self.site, index)
        if half_minute % 2 and self.site.nodes.nodes["gn001"].is_up:
            self.site.poll()
        incidents.sweep(now=self.site.now)

    def say_false_alarm(self) -> None:
        for incident in Incident.objects.all():
            incidents.act(
                incident.pk,
                Trigger.MARK_FALSE_POSITIVE,
                actor="ann",
                note="looks well",
                now=self.site.now,
            )

    def lost(self) -> set[str]:
        gpus = self.site.nodes.nodes["gn001"].gpus
        return {
            self.site.gpu("gn001", gpu.index)
            for gpu in gpus
            if gpu.presence is not Presence.PRESENT
        }

    def turn(self) -> None:
        """A runbook that a false alarm has taken a rung from is armed again."""
        for row in RunbookMode.objects.exclude(stepped_back_at=None):
            self.site.set_mode(Mode.ARMED, row.runbook)
        for _ in range(6):
            self.site.start()
            due = services.get_due_runs(self.site.now)
            for run_id in due:
                resumed = self.site.slurm.journal.count(("resume", "gn001"))
                services.advance(run_id, now=self.site.now, world=self.site.world)
                self.check(Run.objects.get(pk=run_id))
                if self.site.slurm.journal.count(("resume", "gn001")) > resumed:
                    assert self.polled_as_lost() == []
            if not due:
                return

    def check(self, run: Run) -> None:
        for lost in self.lost():
            assert f"nothing wrong with {lost}" not in run.waiting_for
        if "is not confirmed" in run.waiting_for and self.lost():
            assert "false alarm" not in run.incident.needs_human

    def polled_as_lost(self) -> list[Fault]:
        """What polls have seen of the boot that the node runs, and not seen end."""
        booted_at = self.site.nodes.nodes["gn001"].booted_at
        standing = {
            fault.pk: fault for fault in Fault.objects.filter(fault_type="gpu.lost", is_active=True)
        }
        return [
            standing[pk]
            for pk, at in incidents.get_last_polls(list(standing)).items()
            if at >= booted_at
        ]
