"""A person's leave: for one step, tied to the state that was shown, expiring, asked anew when that
has moved."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from incidents.inventory import node_states
from incidents.models import Incident
from runbooks import services
from runbooks.engine import approval_snapshot, approvals
from runbooks.engine.approval_snapshot import ApprovalSnapshot
from runbooks.guards.table import Bounds
from runbooks.guards.verdicts import Act
from runbooks.models import Mode, Run, RunState
from tests.kintsugi.people import People, people
from tests.runbooks.guards.test_guards import a_node
from tests.runbooks.site import Site

__all__ = ["people"]

SEEN = ApprovalSnapshot(
    "gn001",
    "drained",
    "kintsugi:1 gpu.lost",
    ("17 of alice",),
    ("gpu.lost on node/gn001",),
    "on",
    2,
)


@pytest.mark.parametrize(
    ("act", "change", "told"),
    [
        (Act.POWER_CYCLE, {}, []),
        (Act.POWER_CYCLE, {"service": "in service"}, ["gn001 was drained and is in service"]),
        (Act.REBOOT, {"jobs": ("17 of alice", "18 of bob")}, ["job 18 of bob came to run there"]),
        (Act.DRAIN, {"jobs": ("18 of bob",)}, []),
        (Act.REBOOT, {"jobs": ()}, []),
        (Act.REBOOT, {"faults": ()}, ["gpu.lost on node/gn001 is gone"]),
        (Act.POWER_CYCLE, {"power": "off"}, ["its power was on and is off"]),
        (Act.DRAIN, {"nodes_out": 3}, ["2 nodes were out and 3 are"]),
        (Act.DRAIN, {"nodes_out": 0}, []),
        (Act.DRAIN, {"reason": "bob"}, ['its reason was "kintsugi:1 gpu.lost" and is "bob"']),
    ],
)
def test_what_has_moved_is_told_and_less_harm_moves_nothing(
    act: Act, change: dict[str, Any], told: list[str]
) -> None:
    assert approval_snapshot.list_changes(SEEN, replace(SEEN, **change), act) == told


def test_jobs_that_come_and_go_do_not_change_whether_a_node_serves() -> None:
    assert {
        approval_snapshot.format_service(a_node("gn001", base=base))
        for base in ("IDLE", "MIXED", "ALLOCATED")
    } == {"in service"}
    assert approval_snapshot.format_service(a_node("gn001", "DRAIN")) == "drained"
    assert (
        approval_snapshot.format_service(a_node("gn001", "DRAIN", base="DOWN")) == "down, drained"
    )


@given(st.builds(ApprovalSnapshot, *(st.text(max_size=9) for _ in range(3)), *[st.lists(st.text(), max_size=3).map(tuple)] * 2,
                 st.text(max_size=3), st.integers(0, 9)))  # fmt: skip
def test_what_was_shown_is_read_back_as_it_was(seen: ApprovalSnapshot) -> None:
    assert approval_snapshot.parse_snapshot(seen.as_row()) == seen
    assert (
        approval_snapshot.list_changes(
            seen, approval_snapshot.parse_snapshot(seen.as_row()), Act.REBOOT
        )
        == []
    )


def asking(**bounds: Any) -> tuple[Site, Incident, Run]:
    """A site in mode `approval`, and a run that has asked."""
    site = Site(nodes=20, mode=Mode.APPROVAL, bounds=Bounds(cap_share=0.5, **bounds))
    incident = site.lose_gpu()
    run = site.advance(site.begin(incident))
    assert run.state == RunState.AWAITING_APPROVAL
    return site, incident, run


def approve(site: Site, run: Run, seen: str | None = None) -> Run:
    seen = approvals.get_fingerprint(run) if seen is None else seen
    outcome = services.approve(run.pk, actor="alice", seen=seen, now=site.now)
    assert isinstance(outcome, services.Controlled), outcome
    run.refresh_from_db()
    return run


@pytest.mark.django_db
def test_the_state_that_is_asked_about_is_kept_with_the_question() -> None:
    site, _, run = asking()
    shown = approvals.get_open_approval(run)
    assert shown is not None
    assert (shown.shown["service"], shown.shown["nodes_out"]) == ("in service", 0)
    assert shown.shown["faults"] == [f"gpu.xid.79 on {site.gpu('gn001')}"]
    assert site.slurm.journal == []


@pytest.mark.django_db
def test_a_form_that_shows_another_state_is_refused() -> None:
    site, _, run = asking()
    outcome = services.approve(run.pk, actor="alice", seen="0123456789abcdef", now=site.now)
    assert "another state by now than the one you saw" in str(outcome)
    run.refresh_from_db()
    assert run.state == RunState.AWAITING_APPROVAL


@pytest.mark.django_db
def test_leave_is_refused_and_asked_for_anew_when_the_state_has_moved() -> None:
    site, incident, run = asking()
    old = approvals.get_fingerprint(run)
    run = approve(site, run)
    site.slurm.human_drain("gn007", "bob tests")
    run = site.advance(run)
    assert run.state == RunState.AWAITING_APPROVAL
    assert site.slurm.journal == []
    assert "since alice gave leave, 0 nodes were out and 1 are" in site.story(incident)[-1]
    assert approvals.get_fingerprint(run) != old
    assert "another state" in str(services.approve(run.pk, actor="alice", seen=old, now=site.now))
    run = site.advance(approve(site, run))
    assert [act[:2] for act in site.slurm.journal] == [("drain", "gn001")]


@pytest.mark.django_db
def test_leave_expires() -> None:
    site, incident, run = asking()
    run = approve(site, run)
    site.now += timedelta(hours=1)
    run = site.advance(run)
    assert run.state == RunState.AWAITING_APPROVAL
    assert "the leave of alice has expired" in site.story(incident)[-1]
    assert site.slurm.journal == []


@pytest.mark.django_db
def test_a_run_is_approved_once_and_each_step_that_asks_for_itself_again() -> None:
    site, incident, run = asking()
    plan = [{**row, "approval": True} if row["step"] == "reboot" else row for row in run.plan]
    Run.objects.filter(pk=run.pk).update(plan=plan)
    run = site.play(approve(site, run))
    assert run.state == RunState.AWAITING_APPROVAL
    assert [act[0] for act in site.slurm.journal] == ["drain"]
    incident.refresh_from_db()
    assert incident.needs_human == f"Approve or abort run {run.pk}: reboot it through Slurm."
    run = site.play(approve(site, run))
    assert run.state == RunState.SUCCEEDED
    assert [act[0] for act in site.slurm.journal] == ["drain", "reboot", "resume"]
    assert {row.ended_why for row in run.approvals.all()} == {"used"}


@pytest.mark.django_db
def test_more_nodes_at_once_than_the_limit_need_leave_for_each() -> None:
    site = Site(nodes=20, bounds=Bounds(cap_share=0.5, approval_above=1))
    first, second = (site.begin(site.stall_gpu(name)) for name in ("gn001", "gn002"))
    assert site.advance(first).state == RunState.RUNNING
    second = site.advance(second)
    assert second.state == RunState.AWAITING_APPROVAL
    assert (
        "It would be node 2 in repair at once, and above 1 a person decides" in second.waiting_for
    )
    site.advance(approve(site, second))
    assert [act[:2] for act in site.slurm.journal] == [("drain", "gn001"), ("drain", "gn002")]


@pytest.mark.django_db
def test_nobody_is_asked_whether_a_node_more_may_go_out_while_the_guards_would_not_let_it() -> None:
    site = Site(nodes=20, bounds=Bounds(cap_nodes=1, approval_above=1))
    first, second = (site.begin(site.stall_gpu(name)) for name in ("gn001", "gn002"))
    site.advance(first)
    second = site.advance(second)
    assert (second.state, second.approvals.count()) == (RunState.RUNNING, 0)
    assert "Asked again at" in second.waiting_for
    assert site.play(first).state == RunState.SUCCEEDED
    assert site.play(second).state == RunState.SUCCEEDED


def look(site: Site) -> None:
    node_states.record_look(
        site.slurm.read_nodes(), site.now, took=timedelta(0), slurm_user="slurm"
    )


@pytest.mark.django_db
def test_a_question_about_a_node_that_people_have_resumed_is_taken_back_and_the_run_ends() -> None:
    site = Site(nodes=5)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    site.set_mode(Mode.APPROVAL)
    run = site.advance(run)
    assert run.state == RunState.AWAITING_APPROVAL
    site.now += timedelta(minutes=1)
    look(site)
    site.start()
    run.refresh_from_db()
    assert run.state == RunState.AWAITING_APPROVAL, "the node is drained"
    site.slurm.human_resume("gn001")
    site.now += timedelta(minutes=1)
    look(site)
    site.start()
    run.refresh_from_db()
    assert run.state == RunState.RUNNING
    run = site.advance(run)
    assert run.state == RunState.ABORTED
    assert "was resumed by someone else" in run.outcome
    assert "asks for no leave any more" in " ".join(site.story(run.incident))


@pytest.mark.django_db
def test_the_same_where_no_look_came_between_the_drain_and_the_resume() -> None:
    site = Site(nodes=5)
    look(site)
    run = site.play(
        site.begin(site.lose_gpu()), until=lambda run: run.plan[run.step]["step"] == "reboot"
    )
    site.set_mode(Mode.APPROVAL)
    run = site.advance(run)
    assert run.state == RunState.AWAITING_APPROVAL
    site.slurm.human_resume("gn001")
    site.start()
    run.refresh_from_db()
    assert run.state == RunState.AWAITING_APPROVAL, "no look came since"
    site.now += timedelta(seconds=5)
    look(site)
    site.start()
    run.refresh_from_db()
    assert run.state == RunState.RUNNING


@pytest.mark.django_db
def test_a_question_that_nobody_has_to_answer_any_more_is_taken_back_one_for_each_node_that_came_back() -> (
    None
):
    site = Site(nodes=20, bounds=Bounds(cap_share=0.5, approval_above=1))
    first, second, third = (
        site.begin(site.stall_gpu(name)) for name in ("gn001", "gn002", "gn003")
    )
    site.advance(first)
    asked = [site.advance(run) for run in (second, third)]
    assert {run.state for run in asked} == {RunState.AWAITING_APPROVAL}
    site.start()
    assert {run.state for run in asked} == {RunState.AWAITING_APPROVAL}
    site.play(first)
    site.now += timedelta(minutes=5)  # a node that has just been resumed counts as out for a moment
    site.start()
    for run in asked:
        run.refresh_from_db()
    assert [run.state for run in asked] == [RunState.RUNNING, RunState.AWAITING_APPROVAL]
    incident = Incident.objects.get(pk=second.incident_id)
    assert (
        f"Run {second.pk} needs no leave any more: few enough nodes are in repair by now."
        in site.story(incident)
    )
    assert incident.needs_human == ""
    assert site.play(asked[0]).state == RunState.SUCCEEDED


@pytest.mark.django_db
def test_what_a_person_approves_each_time_is_not_taken_back() -> None:
    site, _, run = asking()
    site.start()
    run.refresh_from_db()
    assert run.state == RunState.AWAITING_APPROVAL


@pytest.mark.django_db
def test_a_node_that_was_taken_is_handed_back_when_its_incident_ends_while_a_person_is_asked() -> (
    None
):
    site, incident, run = asking()
    Run.objects.filter(pk=run.pk).update(
        plan=[{**row, "approval": True} if row["step"] == "reboot" else row for row in run.plan]
    )
    run = site.play(approve(site, run))
    Incident.objects.filter(pk=incident.pk).update(state="resolved")
    site.start()
    assert site.play(run).state == RunState.WITHDRAWN
    assert [act[0] for act in site.slurm.journal] == ["drain", "resume"]


@pytest.mark.django_db
def test_the_command_shows_the_state_and_gives_leave_for_just_that(
    capsys: pytest.CaptureFixture[str],
) -> None:
    call_command("approve")
    _, _, run = asking()
    call_command("approve")
    with pytest.raises(CommandError, match="another state"):
        call_command("approve", str(run.pk), seen="stale", actor="alice")
    call_command("approve", str(run.pk), seen=approvals.get_fingerprint(run), actor="alice")
    told = capsys.readouterr().out
    assert "Nothing waits for approval." in told
    assert "gn001: in service" in told
    assert f"kintsugi approval give {run.pk} --seen " in told
    run.refresh_from_db()
    assert (run.state, run.approved_by) == (RunState.RUNNING, "alice")


@pytest.mark.django_db
def test_the_page_shows_what_is_approved_and_refuses_what_was_shown_before(people: People) -> None:
    _, _, run = asking()
    page = people.on_call.get(f"/runbooks/run/{run.pk}/change/").content.decode()
    assert "What you are asked to approve" in page
    assert approvals.get_fingerprint(run) in page
    stale = {"control": "approve", "approve-note": "Go.", "approve-seen": "stale"}
    answer = people.on_call.post(f"/runbooks/run/{run.pk}/control/", stale)
    assert answer.status_code == 409
    assert "another state by now than the one you saw" in answer.content.decode()
    assert approvals.get_fingerprint(run) in answer.content.decode()
    good = stale | {"approve-seen": approvals.get_fingerprint(run)}
    assert people.on_call.post(f"/runbooks/run/{run.pk}/control/", good).status_code == 302
    run.refresh_from_db()
    assert run.state == RunState.RUNNING


def waiting_with_leave() -> tuple[Site, Incident, Run]:
    """Drained by leave; a job is in the way of the reboot."""
    site = Site(nodes=3, mode=Mode.APPROVAL)
    site.slurm.add_job("77", nodes=["gn001"])
    incident = site.lose_gpu()
    run = approve(site, site.advance(site.begin(incident)))
    run = site.play(run, limit=timedelta(minutes=2))
    assert "still on gn001" in run.waiting_for
    return site, incident, run


@pytest.mark.django_db
def test_leave_for_the_whole_run_holds_while_nothing_changes() -> None:
    site, _, run = waiting_with_leave()
    site.slurm.finish_job("77")
    assert site.play(run).state == RunState.SUCCEEDED
    assert run.approvals.count() == 1


@pytest.mark.django_db
def test_a_shift_later_a_person_is_asked_anew_before_the_reboot() -> None:
    site, incident, run = waiting_with_leave()
    run = site.play(run, limit=timedelta(hours=8))
    site.slurm.finish_job("77")
    run = site.play(run, limit=timedelta(hours=1))
    assert run.state == RunState.AWAITING_APPROVAL
    assert "a shift has passed" in run.waiting_for
    assert [act[0] for act in site.slurm.journal] == ["drain"]
    services.start_due(None, now=site.now, world=site.world)
    run.refresh_from_db()
    assert run.state == RunState.AWAITING_APPROVAL  # not taken back as needless
    incident.refresh_from_db()
    assert "reboot" in incident.needs_human
    assert site.play(approve(site, run)).state == RunState.SUCCEEDED
    assert run.approvals.count() == 2


@pytest.mark.django_db
def test_another_fault_on_the_node_has_a_person_asked_anew() -> None:
    site, _, run = waiting_with_leave()
    site.raise_fault(fault_type="gpu.xid.48")
    site.slurm.finish_job("77")
    run = site.play(run, limit=timedelta(hours=1))
    assert run.state == RunState.AWAITING_APPROVAL
    assert "gpu.xid.48" in run.waiting_for
    assert [act[0] for act in site.slurm.journal] == ["drain"]


@pytest.mark.django_db
def test_other_nodes_that_go_out_meanwhile_ask_nobody_anew() -> None:
    site, _, run = waiting_with_leave()
    site.slurm.human_drain("gn002", "bob: tray swap")
    site.slurm.finish_job("77")
    assert site.play(run).state == RunState.SUCCEEDED


@pytest.mark.django_db
def test_a_question_asked_anew_is_taken_back_when_the_runbook_is_armed() -> None:
    """One run that began in another mode: it is asked by its arming alone."""
    site, _, run = waiting_with_leave()
    Run.objects.filter(pk=run.pk).update(mode=Mode.ARMED)
    run = site.play(run, limit=timedelta(hours=8))
    site.slurm.finish_job("77")
    run = site.play(run, limit=timedelta(hours=1))
    assert run.state == RunState.AWAITING_APPROVAL
    site.set_mode(Mode.ARMED)
    services.start_due(None, now=site.now, world=site.world)
    assert site.play(run).state == RunState.SUCCEEDED


@pytest.mark.parametrize(
    ("change", "is_told"),
    [
        ({"service": "in service", "reason": "", "nodes_out": 9, "power": ""}, False),
        ({"faults": ("gpu.xid.48 on node/gn001",)}, True),
        ({"jobs": ("18 of bob",)}, True),
        ({"jobs": ()}, False),
    ],
)
def test_what_a_run_does_itself_is_no_change_beside_it(
    change: dict[str, Any], is_told: bool
) -> None:
    changes = approval_snapshot.list_changes_beside(SEEN, replace(SEEN, **change), Act.REBOOT)
    assert bool(changes) is is_told
