"""What people do: approve, pause, resume, abort, stop, release, arm; by services and by the
commands."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from incidents import services as incidents
from incidents.polling import poll_pauses
from incidents.vocabulary.lifecycle import State
from runbooks import services
from runbooks.engine import approvals, turn
from runbooks.models import Mode, Run, RunbookMode, RunState, StopSwitch
from runbooks.steps.pause_pollers import get_holder
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def refused(outcome: object, words: str) -> None:
    assert isinstance(outcome, services.ControlRefused), outcome
    assert words in outcome.reason


def test_approved_run_goes_on_and_the_question_is_gone() -> None:
    site = Site(nodes=2, mode=Mode.APPROVAL)
    incident = site.lose_gpu()
    run = site.advance(site.begin(incident))
    outcome = services.approve(
        run.pk, actor="alice", seen=approvals.get_fingerprint(run), note="go", now=site.now
    )
    incident.refresh_from_db()
    assert isinstance(outcome, services.Controlled)
    assert incident.needs_human == ""
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED
    assert run.approved_by == "alice"
    assert f"Run {run.pk} on gn001 is approved by alice. go" in site.story(incident)


def test_run_is_approved_once() -> None:
    site = Site(nodes=2, mode=Mode.APPROVAL)
    run = site.advance(site.begin(site.lose_gpu()))
    services.approve(run.pk, actor="alice", seen=approvals.get_fingerprint(run), now=site.now)
    refused(
        services.approve(run.pk, actor="bob", seen="", now=site.now),
        "is running and cannot be approved",
    )
    refused(services.approve(4711, actor="bob", seen="", now=site.now), "There is no run 4711")


def test_paused_run_stands_still_until_it_is_resumed() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    site.advance(run)
    services.pause(run.pk, actor="alice", now=site.now)
    site.advance(run, times=2)  # what it did last owes nobody anything
    assert services.get_due_runs(site.now + timedelta(days=1)) == []
    assert [act[0] for act in site.slurm.journal] == ["drain"]
    services.resume(run.pk, actor="alice", now=site.now)
    assert site.play(run).state == RunState.SUCCEEDED


def test_a_run_that_is_let_go_on_while_it_is_looked_at_goes_on() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    site.advance(run)
    services.pause(run.pk, actor="alice", now=site.now)
    looked_at = []

    def let_go_on(point: str) -> None:
        looked_at.append(point)
        services.resume(run.pk, actor="alice", now=site.now)

    turn.advance(run.pk, now=site.now, world=site.world, at=let_go_on)
    assert looked_at == ["leased"]
    assert services.get_due_runs(site.now) == [run.pk]
    assert site.play(run).state == RunState.SUCCEEDED


def test_what_is_said_and_asked_is_kept_to_its_last_word() -> None:
    """A command that a person is to say is worth nothing without its end."""
    site = Site(nodes=2)
    incident = site.lose_gpu()
    run = site.advance(site.begin(incident))
    ask = f"Look at the console of gn001{', and at its switch' * 20}: scontrol update NodeName=gn001 State=RESUME"
    incidents.record(incident.pk, kind="run_note", text="It is odd.", now=site.now, needs_human=ask)
    incident.refresh_from_db()
    assert incident.needs_human == ask
    services.abort(run.pk, actor="alice", note=ask, now=site.now)
    run.refresh_from_db()
    assert run.outcome == f"aborted by alice. {ask}"


def test_aborted_run_leaves_the_node_drained_and_says_who_must_look() -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    run = site.begin(incident)
    site.advance(run)
    services.abort(run.pk, actor="alice", note="I do it by hand.", now=site.now)
    incident.refresh_from_db()
    run.refresh_from_db()
    assert run.state == RunState.ABORTED
    assert incident.state == State.OPEN
    assert incident.needs_human == "Resume gn001 when it is well, and resolve the incident."
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_drained
    assert "is aborted by alice. I do it by hand. gn001 stays drained." in site.story(incident)[-1]
    assert site.start() == []


def test_nothing_is_drained_while_the_stop_switch_is_engaged() -> None:
    site = Site(nodes=2)
    services.stop("power works in row 3", actor="alice", now=site.now)
    run = site.advance(site.begin(site.lose_gpu()))
    assert site.slurm.journal == []
    assert (
        "The stop switch is engaged: alice at 2025-01-15 03:00 UTC: power works in row 3"
        in run.waiting_for
    )
    services.release(actor="alice", now=site.now)
    assert services.get_due_runs(site.now) == [run.pk]
    assert site.play(run).state == RunState.SUCCEEDED


def test_drained_node_is_not_rebooted_while_the_stop_switch_is_engaged() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    site.advance(run)
    services.stop("wait", actor="alice", now=site.now)
    site.play(run, limit=timedelta(minutes=5))
    assert [act[0] for act in site.slurm.journal] == ["drain"]


def test_node_in_repair_comes_back_while_the_stop_switch_is_engaged() -> None:
    """The switch stops what disrupts; recovery goes through."""
    site = Site(nodes=2)
    run = site.play(site.begin(site.lose_gpu()), until=lambda run: run.step == 5)
    services.stop("wait", actor="alice", now=site.now)
    assert site.play(run).state == RunState.SUCCEEDED


def test_nothing_is_drained_while_the_stop_file_exists(tmp_path: Path) -> None:
    site = Site(nodes=2, stop_file=tmp_path / "stop")
    (tmp_path / "stop").touch()
    run = site.advance(site.begin(site.lose_gpu()))
    assert site.slurm.journal == []
    assert f"the file {tmp_path / 'stop'} exists" in run.waiting_for
    (tmp_path / "stop").unlink()
    assert site.play(run).state == RunState.SUCCEEDED


def test_switch_needs_a_reason_and_is_released_once() -> None:
    site = Site(nodes=2)
    refused(services.stop(" ", actor="alice", now=site.now), "needs a reason")
    refused(services.release(actor="alice", now=site.now), "is not engaged")


def test_lowered_mode_holds_a_run_that_is_under_way() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    site.set_mode(Mode.SHADOW)
    run = site.advance(run)
    assert "The runbook's mode is now shadow" in run.waiting_for
    assert site.slurm.journal == []


def test_runbook_is_armed_when_preflight_passes() -> None:
    site = Site(nodes=2, mode=Mode.SHADOW)
    outcome = services.set_mode(
        "drain_reboot_verify", "armed", actor="alice", now=site.now, world=site.world
    )
    assert isinstance(outcome, services.Controlled)
    assert services.get_mode("drain_reboot_verify") == Mode.ARMED


def test_runbook_is_not_armed_when_preflight_finds_a_problem() -> None:
    site = Site(nodes=2, mode=Mode.SHADOW, cluster_name="production")
    outcome = services.set_mode(
        "drain_reboot_verify", "armed", actor="alice", now=site.now, world=site.world
    )
    refused(outcome, "KINTSUGI_CLUSTER_NAME is production")
    assert services.get_mode("drain_reboot_verify") == Mode.SHADOW


@pytest.mark.parametrize(
    ("runbook", "mode"), [("format_disks", "armed"), ("drain_and_ask", "reckless")]
)
def test_unknown_runbook_or_mode_is_refused_naming_those_that_exist(
    runbook: str, mode: str
) -> None:
    site = Site(nodes=2)
    refused(
        services.set_mode(runbook, mode, actor="alice", now=site.now, world=site.world),
        "; there are ",
    )


def test_every_runbook_is_in_shadow_when_nobody_set_it() -> None:
    assert {services.get_mode(name) for name in services.get_runbook_titles()} == {Mode.SHADOW}


def test_commands_stop_and_release(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("stop", reason="power works", actor="alice")
    assert StopSwitch.objects.get(released_at=None).reason == "power works"
    call_command("stop", release=True, actor="alice")
    assert not StopSwitch.objects.filter(released_at=None).exists()
    with pytest.raises(CommandError, match="needs a reason"):
        call_command("stop")
    assert "Runs that waited for it go on." in capsys.readouterr().out


def test_command_shows_and_sets_modes(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("mode", "drain_reboot_verify", "approval", actor="alice")
    call_command("mode")
    shown = capsys.readouterr().out
    assert "drain_reboot_verify: approval (Drain, reboot, verify)" in shown
    assert "drain_and_ask: shadow" in shown
    assert RunbookMode.objects.get().set_by == "alice"


def test_command_refuses_to_arm_when_slurm_is_off() -> None:
    with pytest.raises(CommandError, match="is not armed; preflight found"):
        call_command("mode", "drain_reboot_verify", "armed")
    assert not Run.objects.exists()


def test_no_runbook_goes_further_than_the_site() -> None:
    site = Site(nodes=2)
    outcome = services.set_mode("site", "shadow", actor="alice", now=site.now, world=None)
    assert (
        str(getattr(outcome, "text", outcome))
        == "The site is set to shadow: no runbook goes further."
    )
    assert services.get_mode("drain_reboot_verify") == Mode.SHADOW
    run = site.play(site.begin(site.lose_gpu()))
    assert run.state == RunState.SHADOWED
    assert site.slurm.journal == []


def test_a_runbook_goes_no_further_than_its_own_mode_when_the_site_would_let_it() -> None:
    site = Site(nodes=2, mode=Mode.APPROVAL)
    services.set_mode("site", "armed", actor="alice", now=site.now, world=site.world)
    assert services.get_mode("drain_reboot_verify") == Mode.APPROVAL
    assert services.get_mode("a_runbook_that_nobody_set") == Mode.SHADOW


def test_lowered_site_holds_a_run_that_is_under_way() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    services.set_mode("site", "off", actor="alice", now=site.now, world=None)
    run = site.advance(run)
    assert "The runbook's mode is now off" in run.waiting_for
    assert site.slurm.journal == []


def test_command_says_that_the_site_holds_a_runbook_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    call_command("mode", "site", "shadow", actor="alice")
    call_command("mode", "drain_reboot_verify", "approval", actor="alice")
    call_command("mode")
    shown = capsys.readouterr().out
    assert "drain_reboot_verify is set to approval, and the site holds it at shadow." in shown
    assert "site: shadow (no runbook goes further)" in shown
    assert "drain_reboot_verify: shadow" in shown


def test_run_that_a_person_takes_over_ends_and_the_incident_is_theirs() -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    run = site.advance(site.begin(incident))
    outcome = services.take_over(run.pk, actor="alice", note="I am at the rack", now=site.now)
    assert isinstance(outcome, services.Controlled)
    run.refresh_from_db()
    incident.refresh_from_db()
    assert (run.state, incident.state) == (RunState.ABORTED, State.ACKNOWLEDGED)
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_draining
    assert any("taken over by alice. I am at the rack" in line for line in site.story(incident))
    site.now += timedelta(days=1)
    assert site.start() == []


def test_run_that_has_ended_is_not_taken_over() -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    run = site.play(site.begin(incident))
    refused(services.take_over(run.pk, actor="alice", now=site.now), "cannot be taken over")
    incident.refresh_from_db()
    assert incident.state == State.MONITORING


def test_polls_that_an_aborted_run_has_paused_go_on_at_once() -> None:
    site = Site(nodes=2)
    run = site.advance(site.begin(site.lose_gpu()))
    until = site.now + timedelta(minutes=15)
    poll_pauses.pause(
        "gn001", ["gpu"], holder=get_holder(run.pk), why="a test", until=until, now=site.now
    )
    services.abort(run.pk, actor="alice", now=site.now)
    assert poll_pauses.get_paused_detectors("gn001", site.now) == frozenset()
