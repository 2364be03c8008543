"""A power cycle needs two persons where the site says so: both approve the one state that was
shown."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from incidents.models import Incident
from kintsugi.roles import UserRole
from runbooks import services
from runbooks.engine import approvals
from runbooks.library import library
from runbooks.models import AuditEntry, Run, RunState, SecondPersonRequest
from runbooks.outcomes import AskedSecond, Controlled, ControlRefused, Outcome
from tests.incidents.test_races import at_once
from tests.kintsugi.people import People, people, signed_in
from tests.kintsugi.slack_site import SlackSite, slack
from tests.kintsugi.typing_person import types
from tests.runbooks.second_person.test_second_person import an_account, said
from tests.runbooks.site import Site

__all__ = ["people", "slack"]

NODE, HOUR = "gn001", timedelta(hours=1)
STEPS = ("drain", "wait_for_jobs", "cold_cycle", "wait_for_boot")


@pytest.fixture(autouse=True)
def _two(settings: Settings) -> None:
    two = {"KINTSUGI_SECOND_PERSON": frozenset({"cold_cycle"})}
    settings.KINTSUGI = {**settings.KINTSUGI, **two}


@pytest.fixture
def accounts(db: None) -> None:
    for name in ("ada", "bob"):
        an_account(name, UserRole.ON_CALL)
    an_account("vera", UserRole.VIEWER)


def asking(steps: tuple[str, ...] = STEPS) -> tuple[Site, Run]:
    """A node that is drained and empty, and a run that asks leave to switch it off and on."""
    site = Site(nodes=3)
    run = site.begin(site.raise_fault(NODE))
    run.plan = [library.plan_step(name, {}).as_row() for name in steps]
    run.save()
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.AWAITING_APPROVAL
    return site, run


def approve(site: Site, run: Run, actor: str, seen: str | None = None) -> Outcome:
    seen = approvals.get_fingerprint(run) if seen is None else seen
    return services.approve(run.pk, actor=actor, seen=seen, now=site.now)


def state(run: Run) -> str:
    run.refresh_from_db()
    return run.state


@pytest.mark.django_db
@pytest.mark.usefixtures("accounts")
class TestTwoPersons:
    def test_nothing_is_switched_off_before_a_second_person_approves_it(self) -> None:
        site, run = asking()
        first = approve(site, run, "ada")
        assert isinstance(first, AskedSecond)
        assert f"by approving run {run.pk} too" in first.text
        assert state(run) == RunState.AWAITING_APPROVAL
        assert site.play(run, limit=HOUR).state == RunState.AWAITING_APPROVAL
        assert site.power.journal == []
        second = approve(site, run, "bob")
        assert isinstance(second, Controlled)
        assert site.play(run, limit=HOUR).state == RunState.SUCCEEDED
        assert site.power.journal.count(("off", NODE)) == 1
        given = run.approvals.get()
        assert given.given_by == "ada, confirmed by bob"

    def test_timeline_and_audit_log_say_who_asked_and_who_confirmed(self) -> None:
        site, run = asking()
        approve(site, run, "ada")
        incident = Incident.objects.get(pk=run.incident_id)
        assert incident.needs_human.startswith("Approve or abort as a second person, beside ada")
        approve(site, run, "bob")
        incident.refresh_from_db()
        assert incident.needs_human == ""
        story = site.story(incident)
        assert any("ada asks for this: Run" in line for line in story)
        assert any("approved by bob. Asked for by ada, confirmed by bob." in line for line in story)
        acts = list(AuditEntry.objects.exclude(actor="kintsugi").order_by("pk"))
        assert [(entry.actor, entry.act) for entry in acts] == [
            ("ada", "ask_second_person"),
            ("bob", "second_person_confirmed"),
            ("bob", "approved"),
        ]

    def test_who_has_approved_it_is_no_second_person(self) -> None:
        site, run = asking()
        approve(site, run, "ada")
        assert "asked for this yourself" in said(approve(site, run, "ada"))
        assert state(run) == RunState.AWAITING_APPROVAL

    @pytest.mark.parametrize("who", ["vera", "root"])
    def test_who_may_not_control_runs_is_none_of_the_two(self, who: str) -> None:
        site, run = asking()
        assert f"{who} has none" in said(approve(site, run, who))
        approve(site, run, "ada")
        assert f"{who} has none" in said(approve(site, run, who))
        assert state(run) == RunState.AWAITING_APPROVAL

    def test_the_second_approves_what_the_first_has_seen(self) -> None:
        site, run = asking()
        approve(site, run, "ada")
        assert "another state" in said(approve(site, run, "bob", seen="stale"))
        assert SecondPersonRequest.objects.get().ended_at is None

    def test_where_the_state_has_moved_two_persons_are_asked_anew(self) -> None:
        site, run = asking()
        approve(site, run, "ada")
        approve(site, run, "bob")
        site.slurm.human_drain("gn003", "eve tests")
        run = site.advance(run)
        assert run.state == RunState.AWAITING_APPROVAL
        assert site.power.journal == []
        assert isinstance(approve(site, run, "bob"), AskedSecond)
        assert isinstance(approve(site, run, "ada"), Controlled)

    def test_the_leave_of_the_first_expires_and_the_run_asks_for_both_again(self) -> None:
        site, run = asking()
        approve(site, run, "ada")
        site.now += HOUR
        services.sweep_second_person(site.now)
        services.sweep_second_person(site.now)
        assert SecondPersonRequest.objects.get().ending == "expired"
        incident = Incident.objects.get(pk=run.incident_id)
        assert "the leave of ada has expired" in site.story(incident)[-1]
        assert "takes two persons" in incident.needs_human
        assert isinstance(approve(site, run, "bob"), AskedSecond)
        assert isinstance(approve(site, run, "ada"), Controlled)

    def test_who_comes_too_late_is_the_first_of_the_next_two(self) -> None:
        site, run = asking()
        approve(site, run, "ada")
        site.now += HOUR
        assert isinstance(approve(site, run, "bob"), AskedSecond)
        assert state(run) == RunState.AWAITING_APPROVAL

    def test_one_person_ends_the_run_and_the_request_with_it(self) -> None:
        site, run = asking()
        approve(site, run, "ada")
        services.abort(run.pk, actor="bob", now=site.now)
        services.sweep_second_person(site.now)
        assert SecondPersonRequest.objects.get().ending == "outdated"

    def test_other_steps_need_one_person(self) -> None:
        site, run = asking()
        row = library.plan_step("reboot", {}, needs_approval=True).as_row()
        run.plan = [row if one["step"] == "cold_cycle" else one for one in run.plan]
        run.save()
        assert isinstance(approve(site, run, "whoever"), Controlled)

    def test_the_command_says_that_one_has_approved_it(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, run = asking()
        types("ada", monkeypatch)
        seen = approvals.get_fingerprint(run)
        call_command("approve", str(run.pk), "--seen", seen, "--actor", "ada")
        with pytest.raises(CommandError, match="names nobody else"):
            call_command("approve", str(run.pk), "--seen", seen, "--actor", "bob")
        capsys.readouterr()
        call_command("approve")
        assert "ada has approved it at" in capsys.readouterr().out
        assert state(run) == RunState.AWAITING_APPROVAL


@pytest.mark.django_db
def test_the_runs_page_says_who_has_approved_it_and_takes_the_second(people: People) -> None:
    _, run = asking()
    seen = approvals.get_fingerprint(run)
    form = {"control": "approve", "approve-note": "Go.", "approve-seen": seen}
    page, own = f"/runbooks/run/{run.pk}/change/", f"/runbooks/run/{run.pk}/control/"
    told = people.on_call.post(own, form, follow=True).content.decode()
    assert "Nothing is done yet: a second person confirms it until" in told
    assert "Two persons approve this here." in told
    assert "omar has approved it" in people.viewer.get(page).content.decode()
    again = people.on_call.post(own, form)
    assert (again.status_code, state(run)) == (409, RunState.AWAITING_APPROVAL)
    assert people.admin.post(own, form).status_code == 302
    assert state(run) == RunState.RUNNING


def test_two_clicks_in_slack_of_two_persons_give_leave(slack: SlackSite) -> None:
    site, run = asking()
    message = slack.asking(site)
    for _ in range(2):
        slack.click(message, "approve")
    assert "asked for this yourself" in slack.whisper()
    assert state(run) == RunState.AWAITING_APPROVAL
    shown = slack.command(f"approve {run.pk}", "U0BOB").answer
    assert "alice has approved it at" in str(shown)
    slack.click(message, "approve", "U0BOB")
    assert state(run) == RunState.RUNNING
    assert run.approvals.get().given_by == "alice, confirmed by bob"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
class TestAtOnce:
    def test_one_person_many_times_at_once_gives_no_leave(self) -> None:
        an_account("ada", UserRole.ON_CALL)
        site, run = asking()
        found = at_once([lambda: approve(site, run, "ada")] * 4)
        assert [type(one) for one in found].count(AskedSecond) == 1
        assert [type(one) for one in found].count(ControlRefused) == 3
        assert state(run) == RunState.AWAITING_APPROVAL

    def test_two_persons_at_once_give_leave_once(self) -> None:
        for name in ("ada", "bob"):
            signed_in(name, UserRole.ON_CALL)
        site, run = asking()
        found = at_once([lambda who=who: approve(site, run, who) for who in ("ada", "bob") * 2])  # type: ignore[misc]
        assert [type(one) for one in found].count(Controlled) == 1
        assert state(run) == RunState.RUNNING
        assert site.play(run, limit=HOUR).state == RunState.SUCCEEDED
        assert site.power.journal.count(("off", NODE)) == 1
