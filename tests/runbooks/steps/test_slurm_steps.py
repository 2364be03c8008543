"""The steps that act through Slurm, in each state that Slurm shows, and beside what people do
meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from incidents.models import Node
from incidents.services import act
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.library import library
from runbooks.models import Run, RunState
from runbooks.people import controls
from runbooks.step import Done, Failed, NotCured, Wait
from runbooks.steps.drain import AdoptDrain
from runbooks.steps.reboot import Reboot
from runbooks.steps.requeue_dead_jobs import RequeueDeadJobs
from runbooks.steps.resume import Resume
from runbooks.steps.wait_for_boot import WaitForBoot
from runbooks.steps.wait_for_jobs import WaitForJobs
from tests.runbooks.site import BOOT, Site
from tests.runbooks.steps.test_steps import a_context

pytestmark = pytest.mark.django_db
STEPS = (
    "drain",
    "requeue_dead_jobs",
    "wait_for_jobs",
    "confirm_on_node",
    "reboot",
    "wait_for_boot",
    "verify",
    "resume",
)
HELD_STEPS = STEPS[1:]


def at_step(name: str) -> Callable[[Run], bool]:
    """The run's next turn is this step's."""
    return lambda run: run.plan[run.step]["step"] == name


def acts(site: Site) -> list[str]:
    return [deed[0] for deed in site.slurm.journal]


# wait_for_jobs


def test_job_that_cannot_be_ended_is_waited_for_no_longer_and_calls_for_power() -> None:
    site = Site()
    site.slurm.add_job("17", nodes=["gn001"])
    run = site.begin(site.lose_gpu())
    run = site.play(run, until=at_step("wait_for_jobs"))
    site.slurm.hang_job("17")
    run = site.play(run, limit=timedelta(minutes=5))
    assert run.waiting_for == "gn001 is finishing its last job (17 of alice)."
    run = site.play(run)
    assert run.state == RunState.NOT_CURED
    assert "cannot end the processes of jobs that are over" in run.outcome
    assert acts(site) == ["drain"]
    step = run.steps.get(name="wait_for_jobs")
    assert "past UnkillableStepTimeout" in step.text
    assert "17 alice COMPLETING" in step.evidence["jobs left"]
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_draining


def test_job_that_still_computes_is_waited_for_beside_one_that_cannot_be_ended() -> None:
    site = Site(nodes=1)
    site.slurm.add_job("17", nodes=["gn001"])
    site.slurm.add_job("18", nodes=["gn001"])
    site.slurm.hang_job("17")
    context = a_context(site, now=site.now + timedelta(days=1))
    assert WaitForJobs().find_done(context) is None
    waiting = WaitForJobs().find_obstacle(context)
    assert waiting is not None
    assert "1 job is still on gn001 (18 of alice)" in waiting.text


def test_job_is_requeued_when_its_owner_has_agreed_and_its_checkpoint_is_told() -> None:
    site = Site()
    site.slurm.add_job("17", nodes=["gn001"])
    incident = site.lose_gpu()
    run = site.play(
        site.begin(incident), until=lambda run: "1 job is still on gn001" in run.waiting_for
    )
    wrote_at = site.now - timedelta(minutes=12)
    site.slurm.comment_job("17", f"checkpoint={wrote_at.timestamp():.0f} kintsugi=requeue")
    run = site.play(run, until=at_step("confirm_on_node"))
    assert ("requeue", "17") in site.slurm.journal
    told = "Job 17 of alice was requeued, as its owner has agreed to (last checkpoint"
    assert any(told in text for text in site.story(incident)), site.story(incident)


def test_a_requeued_job_keeps_away_from_the_node_until_that_is_given_back() -> None:
    site = Site(nodes=1)
    site.slurm.add_job("17", nodes=["gn001"])
    site.slurm.comment_job("17", "kintsugi=requeue")
    site.slurm.work.excluded["17"] = ("gn009",)
    incident = site.lose_gpu()
    run = site.play(site.begin(incident), until=lambda run: "excluded_jobs" in run.facts)
    assert site.slurm.work.excluded["17"] == ("gn009", "gn001")
    site.play(run)
    assert any("Job 17 keeps away from gn001 until" in line for line in site.story(incident))
    assert site.slurm.work.excluded["17"] == ("gn009",)
    assert "excluded_jobs" not in Run.objects.get(pk=run.pk).facts


def test_job_is_not_requeued_while_the_stop_switch_is_thrown() -> None:
    site = Site()
    site.slurm.add_job("17", nodes=["gn001"])
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: "1 job is still" in run.waiting_for
    )
    controls.stop("power works", actor="ann", now=site.now)
    site.slurm.comment_job("17", "kintsugi=requeue")
    run = site.play(run, limit=timedelta(minutes=3))
    assert "The stop switch is engaged" in run.waiting_for
    assert acts(site) == ["drain"]


def test_agreed_job_is_waited_for_when_slurm_may_not_start_it_anew() -> None:
    site = Site(nodes=1)
    site.slurm.add_job("17", nodes=["gn001"], is_requeueable=False)
    site.slurm.comment_job("17", "kintsugi=requeue")
    waiting = WaitForJobs().find_obstacle(a_context(site))
    assert isinstance(waiting, Wait)


@pytest.mark.parametrize(
    ("is_requeueable", "words"),
    [
        (True, "Comment=kintsugi=requeue lets Kintsugi"),
        (False, "it cannot be started anew (Requeue=0)"),
    ],
)
def test_owner_is_to_be_asked_once_the_wait_has_taken_too_long(
    is_requeueable: bool, words: str
) -> None:
    site = Site(nodes=1)
    site.slurm.add_job("17", nodes=["gn001"], is_requeueable=is_requeueable)
    planned = library.plan_step("wait_for_jobs", {"longest": "12h"})
    for hours, is_asked in ((11, False), (12, True)):
        context = a_context(site, now=site.now + timedelta(hours=hours), params=planned.params)
        waiting = WaitForJobs().find_obstacle(context)
        assert isinstance(waiting, Wait)
        assert (words in waiting.ask) == is_asked
        assert "no checkpoint known" in waiting.ask or not is_asked


def test_long_wait_is_a_time_to_wake_and_no_step_that_lasts() -> None:
    site = Site()
    site.slurm.add_job("17", nodes=["gn001"])
    run = site.play(site.begin(site.lose_gpu()), limit=timedelta(hours=6))
    assert run.wake_at is not None
    assert run.wake_at - site.now <= timedelta(minutes=5)
    site.slurm.finish_job("17")
    assert site.play(run).state == RunState.SUCCEEDED


@pytest.mark.parametrize("longest", ["", "soon", 7, "0s", None])
def test_limit_of_a_wait_that_is_no_duration_is_refused(longest: object) -> None:
    with pytest.raises(
        library.LibraryError,
        match=r"wait_for_jobs: longest is .*; expected a number and s, m, h or d",
    ):
        library.plan_step("wait_for_jobs", {"longest": longest})


# requeue_dead_jobs


def test_dead_job_is_waited_for_when_slurm_may_not_start_it_anew() -> None:
    site = Site(nodes=1, requeue_dead_jobs=True)
    site.nodes.inject("gpu_lost", "gn001/gpu/0")
    site.slurm.add_job("17", nodes=["gn001"], is_requeueable=False)
    done = RequeueDeadJobs().find_done(a_context(site))
    assert done is not None
    assert "may not start it anew (Requeue=0)" in done.text
    assert "requeue" not in acts(site)


# adopt_drain


def test_drain_that_slurm_wrote_is_taken_over_and_its_reason_kept() -> None:
    site = Site(nodes=1)
    site.slurm.slurm_drain("gn001", "Kill task failed")
    context = a_context(site)
    assert AdoptDrain().find_obstacle(context) is None
    result = AdoptDrain().run(context)
    assert isinstance(result, Done)
    assert result.evidence["reason before"].startswith(
        "Kill task failed [slurm, 2025-01-15 03:00:00"
    )
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.startswith("kintsugi:7 gpu.xid.79")


def test_node_in_service_is_not_taken_out_by_adopting() -> None:
    site = Site(nodes=1)
    context = a_context(site)
    site.slurm.human_resume("gn001")
    context = replace(context, state=site.slurm.read_nodes(("gn001",))["gn001"])
    before = list(site.slurm.journal)
    assert isinstance(AdoptDrain().find_obstacle(context), Failed)
    assert site.slurm.journal == before


def test_persons_drain_is_not_adopted() -> None:
    site = Site(nodes=1)
    site.slurm.human_drain("gn001", "Kill task failed", user="bob")
    blocked = AdoptDrain().find_obstacle(a_context(site))
    assert isinstance(blocked, Wait)
    assert "is taken out by bob" in blocked.text


def test_node_is_left_as_slurm_had_it_when_the_incident_was_a_false_alarm() -> None:
    site = Site()
    site.slurm.slurm_drain("gn001", "Kill task failed")
    site.slurm.add_job("17", nodes=["gn001"])
    incident = site.lose_gpu()
    run = site.play(site.begin(incident), until=at_step("wait_for_jobs"))
    act(incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="ann", note="looked at it", now=site.now)
    run = site.play(run)
    state = site.slurm.read_nodes(("gn001",))["gn001"]
    assert run.state == RunState.WITHDRAWN
    assert (state.is_draining, state.reason) == (True, "Kill task failed")


# reboot


@pytest.mark.parametrize("flag", ["POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN", "POWERING_UP"])
def test_node_that_slurm_has_switched_off_is_not_rebooted_until_it_is_up(flag: str) -> None:
    site = Site(nodes=1)
    site.slurm.save_power("gn001", flag)
    waiting = Reboot().find_obstacle(a_context(site))
    assert isinstance(waiting, Wait)
    assert "State=POWER_UP" in waiting.ask
    site.slurm.save_power("gn001")
    assert Reboot().find_obstacle(a_context(site)) is None


def test_node_whose_slurmd_is_gone_has_the_time_of_a_boot_before_power_is_called_for() -> None:
    site = Site(nodes=1)
    site.slurm.set_down("gn001")
    boot_time = site.world.policy.boot_time
    assert isinstance(Reboot().find_obstacle(a_context(site, now=site.now + boot_time)), Wait)
    later = a_context(site, now=site.now + boot_time + timedelta(seconds=1))
    assert isinstance(Reboot().find_obstacle(later), NotCured)


# wait_for_boot, ReturnToService and ResumeTimeout


def _not_rebooted(site: Site) -> Run:
    """`reboot^` past KINTSUGI_BOOT_TIME: RebootProgram did nothing, and Slurm cancels no reboot
    that it has sent."""
    site.slurm.break_reboot_program()
    run = site.play(site.begin(site.lose_gpu()))
    assert run.state == RunState.NOT_CURED
    assert "RebootProgram did nothing" in run.outcome
    return run


def _time_passes(site: Site, lasts: timedelta) -> None:
    """As the sweep does: every few seconds, whatever is due."""
    ends_at = site.now + lasts
    while site.now < ends_at:
        site.now += timedelta(seconds=10)
        for run_id in services.get_due_runs(site.now):
            services.advance(run_id, now=site.now, world=site.world)


def test_node_stays_drained_when_slurm_gives_up_on_a_reboot_that_did_nothing() -> None:
    site = Site(slurm={"ResumeTimeout": "1800 sec"})
    run = _not_rebooted(site)
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_rebooting
    _time_passes(site, timedelta(minutes=30))
    state = site.slurm.read_nodes(("gn001",))["gn001"]
    assert (state.is_draining, state.is_rebooting, state.reason) == (
        True,
        False,
        run.facts["reason"],
    )
    assert acts(site) == ["drain", "reboot", "drain"]
    told = "Slurm dropped the drain of gn001, and has waited for its boot in vain. Kintsugi drained it again."
    assert site.story(run.incident).count(told) == 1
    assert services.get_due_runs(site.now + timedelta(days=1)) == []


def test_node_that_a_person_resumes_meanwhile_stays_theirs() -> None:
    site = Site(slurm={"ResumeTimeout": "1800 sec"})
    _not_rebooted(site)
    site.slurm.resume("gn001")
    _time_passes(site, timedelta(minutes=30))
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_out
    assert services.get_due_runs(site.now + timedelta(days=1)) == []


@pytest.mark.parametrize("returns", ["0", "1", "2"])
def test_node_is_repaired_when_slurm_gives_up_before_it_has_booted(returns: str) -> None:
    """Past ResumeTimeout Slurm drops the drain; with ReturnToService 0 and 1 the node stays DOWN
    after its boot."""
    site = Site(slurm={"ReturnToService": returns, "ResumeTimeout": "15 sec"})
    incident = site.lose_gpu()
    run = site.play(site.begin(incident))
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert acts(site) == ["drain", "reboot", "drain", "resume"]
    assert any("Kintsugi drained it again at once" in text for text in site.story(incident))
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_out


def test_node_that_slurm_took_back_unverified_is_drained_again() -> None:
    """ReturnToService=2, and no worker looked between ResumeTimeout and the end of the boot."""
    site = Site(slurm={"ReturnToService": "2", "ResumeTimeout": "15 sec"})
    incident = site.lose_gpu()
    run = site.play(site.begin(incident), until=at_step("wait_for_boot"))
    site.now += BOOT + timedelta(seconds=30)
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_out
    run = site.advance(run)
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_drained
    assert any(
        "took it back unverified (ReturnToService=2)" in text for text in site.story(incident)
    )
    assert site.play(run).state == RunState.SUCCEEDED


def test_node_that_slurm_took_back_under_a_paused_run_is_drained_again_when_it_goes_on() -> None:
    """A look in between does not take that for a person's resume."""
    site = Site(slurm={"ReturnToService": "2", "ResumeTimeout": "15 sec"})
    run = site.play(site.begin(site.lose_gpu()), until=at_step("wait_for_boot"))
    site.now += BOOT + timedelta(seconds=30)
    services.pause(run.pk, actor="bob", now=site.now)
    run = site.advance(run)
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_out
    services.resume(run.pk, actor="bob", now=site.now)
    site.advance(run)
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_drained


def test_node_that_a_person_resumed_is_left_to_them_where_slurm_takes_nothing_back() -> None:
    site = Site(slurm={"ReturnToService": "1", "ResumeTimeout": "15 sec"})
    run = site.play(site.begin(site.lose_gpu()), until=at_step("wait_for_boot"))
    site.now += BOOT + timedelta(seconds=30)
    site.slurm.human_resume("gn001")
    run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_draining


@pytest.mark.parametrize("helped", [True, False])
def test_person_is_asked_to_restart_slurmd_when_slurm_does_not_know_of_the_boot(
    helped: bool,
) -> None:
    """slurmctld died before it had kept that the node is back, and cancels no such reboot."""
    site = Site()
    run = site.play(site.begin(site.lose_gpu()), until=at_step("wait_for_boot"))
    site.slurm.lose_boot("gn001")
    run = site.play(run, until=lambda run: "Slurm still waits for its boot" in run.waiting_for)
    assert "systemctl restart slurmd" in run.facts["asked"]
    if helped:
        site.slurm.restart_slurmd("gn001")
    run = site.play(run)
    assert run.state == (RunState.SUCCEEDED if helped else RunState.FAILED), run.outcome
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_draining == (not helped)
    assert site.slurm.reboots("gn001") == 1


def test_boot_is_over_when_slurm_shows_the_node_down_and_its_slurmd_answers() -> None:
    site = Site(nodes=1)
    context = a_context(site)
    context.facts.update(
        reboot_at=site.now.isoformat(), boot_id_before=site.nodes.nodes["gn001"].boot_id
    )
    site.nodes.reboot("gn001")
    site.now += timedelta(minutes=2)
    down = replace(context.state, base="DOWN", boot_time=site.now)
    assert isinstance(WaitForBoot().run(replace(context, state=down, now=site.now)), Done)
    stale = replace(down, boot_time=context.now - timedelta(days=1))
    assert isinstance(WaitForBoot().run(replace(context, state=stale, now=site.now)), Wait)


# resume


@pytest.mark.parametrize("trouble", ["silent", "switched off", "unkillable"])
def test_node_that_could_take_no_job_is_not_resumed(trouble: str) -> None:
    site = Site(nodes=1)
    context = a_context(site)
    if trouble == "silent":
        site.slurm.set_down("gn001")
    elif trouble == "switched off":
        site.slurm.save_power("gn001", "POWERED_DOWN")
    else:
        site.slurm.add_job("17", nodes=["gn001"])
        site.slurm.hang_job("17")
        context.facts["unkillable_jobs"] = ["17"]
    state = site.slurm.read_nodes(("gn001",))["gn001"]
    blocked = Resume().find_obstacle(replace(context, state=state))
    assert isinstance(blocked, Failed if trouble == "unkillable" else Wait)


# What a human did meanwhile by hand, before each step


@pytest.mark.parametrize("step", HELD_STEPS)
def test_run_stops_and_touches_nothing_when_a_person_has_resumed_the_node(step: str) -> None:
    site = Site()
    incident = site.lose_gpu()
    run = site.play(site.begin(incident), until=at_step(step))
    before = list(site.slurm.journal)
    site.slurm.human_resume("gn001")
    site.now += timedelta(minutes=1)
    run = _ended(site, run)
    assert run.state == RunState.ABORTED
    assert "was resumed by someone else" in run.outcome
    assert site.slurm.journal == before
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_draining


@pytest.mark.parametrize("step", HELD_STEPS)
def test_run_stops_and_keeps_the_reason_when_a_person_has_drained_the_node_anew(step: str) -> None:
    site = Site()
    run = site.play(site.begin(site.lose_gpu()), until=at_step(step))
    before = list(site.slurm.journal)
    site.slurm.human_drain("gn001", "bob: memory test", user="bob")
    site.now += timedelta(minutes=1)
    run = _ended(site, run)
    assert run.state == RunState.ABORTED
    assert 'now has another reason, by bob: "bob: memory test"' in run.outcome
    assert site.slurm.journal == before
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason == "bob: memory test"


@pytest.mark.parametrize("step", ["wait_for_jobs", "confirm_on_node", "reboot"])
def test_node_that_a_person_has_rebooted_is_not_rebooted_once_more(step: str) -> None:
    site = Site()
    run = site.play(site.begin(site.lose_gpu()), until=at_step("reboot"))
    if step != "reboot":
        run.step = [row["step"] for row in run.plan].index(step)
        run.save()
    site.slurm.switch_off("gn001")
    site.nodes.reboot("gn001")
    site.slurm.switch_on("gn001")
    site.now += BOOT + timedelta(seconds=20)
    run = _ended(site, run)
    assert "reboot" not in acts(site)
    assert run.state in (RunState.SUCCEEDED, RunState.RUNNING)


def _ended(site: Site, run: Run) -> Run:
    run.refresh_from_db()
    Run.objects.filter(pk=run.pk).update(wake_at=site.now)
    return site.play(run, limit=timedelta(minutes=8))


# Bad input


@pytest.mark.parametrize("step", STEPS)
def test_run_stops_and_asks_when_slurm_knows_the_node_no_more(step: str) -> None:
    """Renamed, FUTURE or gone from slurm.conf: all three are no node to Slurm."""
    site = Site()
    run = site.play(site.begin(site.lose_gpu()), until=at_step(step))
    before = list(site.slurm.journal)
    site.slurm.forget("gn001")
    run = _ended(site, run)
    assert run.state == RunState.FAILED
    assert "Slurm knows no such node" in run.outcome
    assert site.slurm.journal == before


def test_no_run_starts_when_the_node_is_not_in_the_inventory() -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    Node.objects.filter(name="gn001").update(is_provisional=True)
    assert site.start() == []
    assert not Run.objects.filter(incident=incident).exists()


def test_run_stops_before_anything_is_touched_when_its_node_leaves_the_inventory() -> None:
    site = Site()
    run = site.begin(site.lose_gpu())
    Node.objects.filter(name="gn001").update(is_provisional=True)
    run = site.play(run)
    assert run.state == RunState.FAILED
    assert "not in the inventory" in run.outcome
    assert site.slurm.journal == []


@pytest.mark.parametrize("full", ["gpu", "debug"])
def test_node_of_two_partitions_is_not_drained_when_either_is_full(full: str) -> None:
    site = Site(partitions={"gn001": ["gpu", "debug"], "gn002": ["debug"]})
    site.slurm.human_drain("gn002" if full == "debug" else "gn003", "bob", user="bob")
    run = site.play(site.begin(site.stall_gpu()), limit=timedelta(minutes=2))
    assert f"nodes of partition {full} are out" in run.waiting_for
    assert site.slurm.journal == []
