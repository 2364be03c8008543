"""Runs from fault to quiet period, on a site in memory: what goes well, what people do meanwhile,
what fails."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from detectors import resources
from detectors.faults import Action
from incidents import services as incidents
from incidents.vocabulary.lifecycle import State, Trigger
from runbooks import services
from runbooks.models import Mode, Run, RunState, StepRun
from tests.builders import a_fault
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db

OURS = r"kintsugi:{}/[0-9a-f]{{8}}-[0-9a-f]{{6}} gpu\.xid\.79: GPU has fallen off the bus"


def acts(site: Site) -> list[str]:
    return [act[0] for act in site.slurm.journal]


def at_step(name: str) -> object:
    def is_there(run: Run) -> bool:
        return run.steps.filter(name=name).exclude(outcome=StepRun.Outcome.DONE).exists()

    return is_there


def waiting_for(words: str) -> object:
    return lambda run: words in run.waiting_for


def has_booted(run: Run) -> bool:
    return run.steps.filter(name="wait_for_boot", outcome=StepRun.Outcome.DONE).exists()


def say(site: Site, run: Run, trigger: Trigger, **changes: object) -> None:
    acted = incidents.act(
        run.incident_id, trigger, actor="alice", note="looked at it", now=site.now, **changes
    )
    assert isinstance(acted, incidents.Acted), acted


def test_node_is_drained_rebooted_verified_and_resumed_when_its_gpu_is_lost() -> None:
    site = Site()
    incident = site.lose_gpu()
    run = site.play(site.begin(incident))
    incident.refresh_from_db()
    assert run.state == RunState.SUCCEEDED
    assert acts(site) == ["drain", "reboot", "resume"]
    assert site.slurm.journal[0][:2] == ("drain", "gn001")
    assert re.fullmatch(OURS.format(incident.pk), site.slurm.journal[0][2])
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_out
    assert incident.state == State.MONITORING
    assert incident.recovery == "node_restart"
    assert incident.out_of_service_at is not None
    assert incident.restored_at == site.now
    assert [step.outcome for step in run.steps.all()] == [
        *("done", "already_done", "already_done"),
        *["done"] * 5,
    ]


def test_jobs_are_waited_for_without_limit_when_they_still_run() -> None:
    site = Site()
    site.slurm.add_job("17", nodes=["gn001"])
    run = site.play(site.begin(site.lose_gpu()), limit=timedelta(minutes=4))
    assert run.state == RunState.RUNNING
    assert run.waiting_for == "1 job is still on gn001 (17 of alice). Kintsugi waits for the end."
    assert sum("still on gn001" in line for line in site.story(run.incident)) == 1
    site.slurm.finish_job("17")
    assert site.play(run).state == RunState.SUCCEEDED


def test_dead_job_is_requeued_when_the_policy_allows_it() -> None:
    site = Site(requeue_dead_jobs=True)
    site.slurm.add_job("17", nodes=["gn001"], gpus_per_node=8)
    run = site.play(site.begin(site.lose_gpu()))
    assert run.state == RunState.SUCCEEDED
    assert acts(site) == ["drain", "requeue", "reboot", "resume"]


@pytest.mark.parametrize("gpus", [1, 0])
def test_job_is_left_alone_when_it_may_use_another_gpu(gpus: int) -> None:
    site = Site(requeue_dead_jobs=True)
    site.slurm.add_job("17", nodes=["gn001"], gpus_per_node=gpus)
    site.play(site.begin(site.lose_gpu()))
    assert acts(site) == ["drain"]


def test_job_is_left_alone_when_no_gpu_is_lost_on_the_node_itself() -> None:
    site = Site(requeue_dead_jobs=True)
    site.slurm.add_job("17", nodes=["gn001"], gpus_per_node=8)
    site.play(site.begin(site.raise_fault()))
    assert acts(site) == ["drain", "resume"]


def test_false_alarm_hands_the_node_back_without_waiting_for_the_next_look() -> None:
    site = Site(nodes=2)
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=4))
    say(site, run, Trigger.MARK_FALSE_POSITIVE)
    assert run.wake_at is not None
    assert run.wake_at > site.now
    assert services.get_due_runs(site.now) == [run.pk]


def test_log_line_alone_drains_and_asks_but_never_reboots() -> None:
    site = Site()
    incident = site.raise_fault()
    run = site.play(site.begin(incident), limit=timedelta(minutes=4))
    incident.refresh_from_db()
    assert acts(site) == ["drain"]
    assert run.state == RunState.RUNNING
    assert "is not confirmed on gn001: its gpu check finds nothing wrong" in run.waiting_for
    assert incident.needs_human.startswith("Look at gn001.")
    assert sum("not confirmed" in line for line in site.story(incident)) == 1


def test_node_is_handed_back_when_the_incident_is_a_false_alarm_before_the_reboot() -> None:
    site = Site()
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=2))
    say(site, run, Trigger.MARK_FALSE_POSITIVE)
    run = site.play(run)
    assert run.state == RunState.WITHDRAWN
    assert acts(site) == ["drain", "resume"]
    assert "gn001 is handed back: it takes jobs again." in site.story(run.incident)[-1]


def test_reboot_that_a_person_asked_for_is_not_cancelled_by_handing_the_node_back() -> None:
    """Seed 00910117 of the plays: Slurm takes back a reboot that waits when its node is resumed."""
    site = Site()
    site.slurm.add_job("17", nodes=["gn001"], gpus_per_node=1)
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=2))
    site.slurm.human_reboot("gn001")
    say(site, run, Trigger.MARK_FALSE_POSITIVE)
    run = site.play(run, limit=timedelta(minutes=2))
    assert run.state == RunState.WITHDRAWN
    assert acts(site) == ["drain"]
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_rebooting
    run.incident.refresh_from_db()
    assert "Resume gn001 after its reboot" in run.incident.needs_human


def test_run_goes_on_when_the_fault_is_confirmed_later() -> None:
    site = Site()
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=2))
    site.nodes.inject("gpu_lost", "gn001/gpu/0")
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED
    run.incident.refresh_from_db()
    assert run.incident.needs_human == ""


def test_node_stays_drained_when_its_incident_ends_after_the_reboot() -> None:
    site = Site()
    run = site.play(site.begin(site.lose_gpu()), until=at_step("wait_for_boot"))
    say(site, run, Trigger.MARK_FALSE_POSITIVE)
    run = site.play(run)
    assert run.state == RunState.WITHDRAWN
    assert acts(site) == ["drain", "reboot"]
    assert "gn001 stays drained; resume it when it is well" in site.story(run.incident)[-1]


def test_node_is_left_as_it_is_when_a_person_calls_the_vendor() -> None:
    site = Site()
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=2))
    say(site, run, Trigger.HANDED_TO_VENDOR)
    run = site.play(run)
    assert run.state == RunState.WITHDRAWN
    assert acts(site) == ["drain"]


def test_node_stays_drained_for_the_other_incident_when_one_is_a_false_alarm() -> None:
    site = Site()
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=2))
    site.now += timedelta(hours=2)
    other = site.raise_fault(fault_type="gpu.xid.119", resource=site.gpu("gn001", 5))
    assert other.pk != run.incident_id
    say(site, run, Trigger.MARK_FALSE_POSITIVE)
    run = site.play(run)
    assert acts(site) == ["drain"]
    second = site.begin(other)
    site.advance(second)
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason.startswith(f"kintsugi:{other.pk}/")


def test_persons_drain_is_never_overwritten_nor_undone() -> None:
    site = Site()
    site.slurm.human_drain("gn001", "swapping tray | 3=x", user="bob")
    incident = site.lose_gpu()
    run = site.play(site.begin(incident), limit=timedelta(minutes=4))
    incident.refresh_from_db()
    assert site.slurm.journal == []
    assert 'gn001 is taken out by bob: "swapping tray | 3=x"' in run.waiting_for
    assert "which bob has taken out" in incident.needs_human
    site.slurm.human_resume("gn001")
    run = site.play(run)
    assert run.state == RunState.FAILED
    assert site.slurm.journal == []


def test_drain_that_slurm_wrote_is_adopted_and_told() -> None:
    site = Site()
    site.slurm.slurm_drain("gn001", "Kill task failed")
    run = site.play(site.begin(site.lose_gpu()))
    assert run.state == RunState.SUCCEEDED
    assert acts(site) == ["drain", "reboot", "resume"]
    assert any('with the reason "Kill task failed"' in line for line in site.story(run.incident))


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5"])
@pytest.mark.parametrize("step", ["wait_for_jobs", "confirm_on_node", "wait_for_boot"])
def test_run_stops_and_says_so_when_a_person_resumes_the_node(step: str, version: str) -> None:
    site = Site(slurm={"SLURM_VERSION": version})
    site.slurm.keeps_accounts = False
    if step == "wait_for_jobs":
        site.slurm.add_job("17", nodes=["gn001"])
    incident = site.raise_fault() if step == "confirm_on_node" else site.lose_gpu()
    run = site.play(site.begin(incident), until=at_step(step))
    before = acts(site)
    site.slurm.human_resume("gn001")
    run = site.play(run)
    incident.refresh_from_db()
    assert run.state == RunState.ABORTED
    assert acts(site) == before
    assert "gn001 was resumed by someone else. Kintsugi respects that" in run.outcome
    assert incident.state == State.OPEN
    assert incident.needs_human
    assert site.start() == []


@pytest.mark.parametrize("accounts", [True, False])
@pytest.mark.parametrize("version", ["22.05.8", "24.11.5", "26.05.5"])
@pytest.mark.parametrize("happens", ["reboot", "crash"])
def test_a_node_that_a_person_resumed_is_left_to_them_whatever_becomes_of_it(
    happens: str, version: str, accounts: bool
) -> None:
    site = Site(slurm={"SLURM_VERSION": version})
    site.slurm.keeps_accounts = accounts
    site.slurm.add_job("17", nodes=["gn001"])
    run = site.play(site.begin(site.lose_gpu()), until=at_step("wait_for_jobs"))
    site.slurm.human_resume("gn001")
    site.slurm.finish_job("17")
    if happens == "reboot":
        site.slurm.human_reboot("gn001")
    else:
        site.slurm.switch_off("gn001")
    assert site.slurm.read_nodes(("gn001",))["gn001"].base == "DOWN"
    run = site.play(run)
    assert run.state == RunState.ABORTED
    assert acts(site) == ["drain"]
    assert "gn001 was resumed by someone else. Kintsugi respects that" in run.outcome


def test_run_stops_when_a_person_writes_another_reason_on_the_node() -> None:
    site = Site()
    run = site.play(site.begin(site.lose_gpu()), until=at_step("wait_for_boot"))
    site.slurm.human_drain("gn001", "bob keeps this one", user="bob")
    run = site.play(run)
    assert run.state == RunState.ABORTED
    assert site.slurm.read_nodes(("gn001",))["gn001"].reason == "bob keeps this one"
    assert acts(site) == ["drain", "reboot"]


def test_node_is_drained_again_before_anything_else_when_slurm_drops_the_drain() -> None:
    site = Site()
    run = site.play(site.begin(site.lose_gpu()), until=at_step("wait_for_boot"))
    site.slurm.drop_drain("gn001")
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED
    assert acts(site) == ["drain", "reboot", "drain", "resume"]
    assert any("drained it again at once" in line for line in site.story(run.incident))


def test_node_stays_drained_and_a_person_is_asked_when_the_gpu_stays_away() -> None:
    site = Site()
    incident = site.lose_gpu(is_dead=True)
    run = site.play(site.begin(incident))
    incident.refresh_from_db()
    assert run.state == RunState.NOT_CURED
    assert acts(site) == ["drain", "reboot"]
    assert incident.state == State.OPEN
    assert run.outcome.startswith("The reboot has not cured gpu.xid.79 on node/gn001/gpu/")
    assert incident.needs_human.startswith("Examine gn001: a reboot did not cure gpu.xid.79")
    site.start()
    assert list(Run.objects.order_by("pk").values_list("runbook", flat=True)) == [
        "drain_reboot_verify",
        "drain_and_ask",
    ]


def test_node_stays_drained_when_the_verify_command_fails() -> None:
    site = Site(verify_command=("false-check",))
    run = site.play(site.begin(site.lose_gpu()))
    assert run.state == RunState.FAILED
    assert "`false-check` ended with status 127" in run.outcome
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_drained


def test_person_resumes_and_the_run_notices_when_no_verify_command_is_configured() -> None:
    site = Site(verify_command=())
    incident = site.lose_gpu()
    run = site.play(site.begin(incident), limit=timedelta(minutes=4))
    incident.refresh_from_db()
    assert acts(site) == ["drain", "reboot"]
    assert (
        incident.needs_human
        == "Test gn001 and resume it: scontrol update NodeName=gn001 State=RESUME"
    )
    site.slurm.human_resume("gn001")
    run = site.play(run)
    incident.refresh_from_db()
    assert run.state == RunState.SUCCEEDED
    assert incident.state == State.MONITORING
    assert incident.recovery == "node_restart"
    assert incident.needs_human == ""


def test_person_is_asked_when_the_node_does_not_come_back_in_time() -> None:
    site = Site()
    site.slurm.hung.add("gn001")
    run = site.begin(site.lose_gpu())
    run = site.play(run)
    assert run.state == RunState.FAILED
    assert "Slurm has not got it back within" in run.outcome


def test_person_is_asked_when_the_node_gives_no_new_boot_id_in_time() -> None:
    site = Site()
    run = site.play(site.begin(site.lose_gpu()), until=at_step("wait_for_boot"))
    site.shell.silent.add("gn001")
    run = site.play(run)
    assert run.state == RunState.FAILED
    assert (
        "has booted, as Slurm says, but Kintsugi has no new boot id of it after 3 min"
        in run.outcome
    )


def test_node_that_answers_neither_us_nor_slurm_calls_for_power_since_slurm_cannot_reboot_it() -> (
    None
):
    site = Site()
    incident = site.lose_gpu()
    site.shell.silent.add("gn001")
    site.slurm.set_down("gn001")
    run = site.play(site.begin(incident))
    assert acts(site) == ["drain"]
    assert run.state == RunState.NOT_CURED
    assert "slurmd answers no more, and Slurm reboots through it" in run.outcome


def test_node_that_boots_by_itself_is_not_rebooted_once_more() -> None:
    site = Site()
    incident = site.lose_gpu()
    site.shell.silent.add("gn001")
    site.slurm.switch_off("gn001")
    run = site.play(site.begin(incident), until=at_step("reboot"))
    site.nodes.reboot("gn001")
    site.slurm.switch_on("gn001")
    site.shell.silent.clear()
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert acts(site) == ["drain", "resume"]


def test_node_that_slurm_still_reaches_is_not_rebooted_when_we_cannot() -> None:
    site = Site()
    incident = site.lose_gpu()
    site.shell.silent.add("gn001")
    run = site.play(site.begin(incident), limit=timedelta(minutes=4))
    assert acts(site) == ["drain"]
    assert "Kintsugi cannot reach it" in run.waiting_for


def test_same_fault_within_24_hours_is_not_rebooted_for_again_and_a_person_is_asked() -> None:
    site = Site()
    first = site.lose_gpu()
    site.play(site.begin(first))
    incidents.act(first.pk, Trigger.RESOLVE, actor="alice", now=site.now)
    site.now += timedelta(hours=20)
    second = site.lose_gpu()
    run = site.play(site.begin(second))
    second.refresh_from_db()
    assert second.pk != first.pk
    assert run.runbook == "drain_and_ask"
    assert run.facts["why"] == "no further rung of the ladder is left or allowed"
    assert site.slurm.reboots("gn001") == 1
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_drained
    assert second.needs_human


def test_node_is_rebooted_again_when_the_fault_returns_after_24_hours() -> None:
    site = Site()
    first = site.lose_gpu()
    site.play(site.begin(first))
    incidents.act(first.pk, Trigger.RESOLVE, actor="alice", now=site.now)
    site.now += timedelta(hours=25)
    assert site.play(site.begin(site.lose_gpu())).state == RunState.SUCCEEDED
    assert site.slurm.reboots("gn001") == 2


def test_node_is_drained_and_a_person_is_asked_when_a_reboot_would_not_help() -> None:
    site = Site()
    incident = site.raise_fault(fault_type="gpu.xid.64", action=Action.VENDOR)
    run = site.play(site.begin(incident))
    incident.refresh_from_db()
    assert run.runbook == "drain_and_ask"
    assert run.state == RunState.SUCCEEDED
    assert acts(site) == ["drain"]
    assert incident.state == State.OPEN
    assert incident.needs_human.startswith("Power-cycle gn001 or call the vendor")
    assert site.start() == []


def test_nothing_is_touched_and_the_plan_is_told_when_in_shadow() -> None:
    site = Site(mode=Mode.SHADOW)
    incident = site.lose_gpu()
    run = site.play(site.begin(incident))
    incident.refresh_from_db()
    assert run.state == RunState.SHADOWED
    assert site.slurm.journal == []
    assert incident.state == State.OPEN
    assert site.story(incident)[-1].startswith("Shadow mode: Kintsugi would drain gn001, ")
    assert "and resume it. Confirmed on gn001: gpu.lost on" in site.story(incident)[-1]
    assert {step.outcome for step in run.steps.all()} == {StepRun.Outcome.WOULD_RUN}
    assert site.start() == []


def test_shadow_says_what_the_guards_would_refuse() -> None:
    site = Site(mode=Mode.SHADOW)
    site.slurm.human_drain("gn002", "bob")
    run = site.play(site.begin(site.stall_gpu()))
    assert (
        "The guards would refuse that now: 1 of 20 nodes of partition gpu are out (gn002)"
        in site.story(run.incident)[-1]
    )


def test_run_waits_for_a_person_when_in_approval_mode() -> None:
    site = Site(mode=Mode.APPROVAL)
    incident = site.lose_gpu()
    run = site.advance(site.begin(incident))
    incident.refresh_from_db()
    assert run.state == RunState.AWAITING_APPROVAL
    assert (
        incident.needs_human == f"Approve or abort run {run.pk}: drain, reboot, verify, on gn001."
    )
    site.advance(run)
    assert site.slurm.journal == []


def test_nothing_starts_when_the_runbook_is_off() -> None:
    site = Site(mode=Mode.OFF)
    site.lose_gpu()
    assert site.start() == []
    assert not Run.objects.exists()


def test_slurm_that_does_not_answer_is_asked_again_until_it_does() -> None:
    site = Site()
    incident = site.lose_gpu()
    site.slurm.is_answering = False
    run = site.play(site.begin(incident), limit=timedelta(minutes=10))
    assert run.state == RunState.RUNNING
    assert "Unable to contact slurm controller" in run.waiting_for
    assert sum("Unable to contact" in line for line in site.story(incident)) == 1
    site.slurm.is_answering = True
    assert site.play(run).state == RunState.SUCCEEDED


def test_run_fails_and_asks_when_slurm_does_not_know_the_node() -> None:
    site = Site()
    incident = site.lose_gpu()
    site.slurm.forget("gn001")
    run = site.play(site.begin(incident))
    assert run.state == RunState.FAILED
    assert "Slurm knows no such node" in run.outcome


def test_fault_logged_after_the_boot_fails_the_verification_when_the_clock_of_the_node_is_behind() -> (
    None
):
    site = Site()
    run = site.play(site.begin(site.lose_gpu()), until=has_booted)
    site.now += timedelta(seconds=1)
    behind = site.now - timedelta(hours=1)
    a_fault("gpu.xid.95", resources.gpu("gn001", "0000:3b:00.0"), at=behind, observed_at=site.now)
    run = site.play(run)
    assert run.state == RunState.FAILED
    assert "gpu.xid.95" in run.outcome
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_drained


def test_a_node_that_waits_a_day_for_its_reboot_is_looked_at_meanwhile() -> None:
    """A person resumes it: the incident says so within minutes, not a day later."""
    site = Site(nodes=2)
    assert site.play(site.begin(site.lose_gpu())).state == RunState.SUCCEEDED
    site.now += timedelta(hours=1)
    site.nodes.inject("gsp_timeout", "gn001/gpu/3")
    second = site.raise_fault(fault_type="gpu.xid.119", resource=site.gpu("gn001", 3))
    run = site.play(site.begin(second), until=lambda run: "refused" in run.facts)
    assert "a node is rebooted once in 24 h" in run.waiting_for
    site.slurm.human_resume("gn001")
    run = site.play(run, limit=timedelta(minutes=6))
    assert run.state == RunState.ABORTED
    assert "was resumed by someone else" in run.outcome
