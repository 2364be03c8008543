"""An order that needs a second person is asked for in the channel, and confirmed from Slack: the
same checks as in the console, one message that follows what becomes of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from pytest_django import Settings

from fixtures.slack_page.workspace import Posted
from fixtures.slack_server import CHANNEL
from incidents.models import Node, Notice, Notification
from kintsugi import clock
from kintsugi.clients import wiring
from kintsugi.roles import UserRole
from runbooks import services
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY
from runbooks.models import Arming, AuditEntry, Mode, PreflightReport, SecondPersonRequest
from runbooks.outcomes import AskedSecond, Controlled
from tests.incidents.clocks import Clock, drain
from tests.kintsugi.slack_site import SlackSite, kept_out, slack
from tests.runbooks.fleet.test_armings import draft
from tests.runbooks.site import Site

__all__ = ["kept_out", "slack"]

HOUR = timedelta(hours=1)
BOOK = DRAIN_REBOOT_VERIFY
BOTH = frozenset({"arming", "widening"})


@pytest.fixture
def site(slack: SlackSite, settings: Settings) -> Site:
    """Where arming and widening need two: ada asks; bob and she may set modes, alice is on call."""
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_SECOND_PERSON": BOTH}
    admins = Group.objects.get(name=UserRole.ADMIN.value)
    User.objects.create_user("ada").groups.add(admins)
    User.objects.get(username="bob").groups.add(admins)
    slack.users.write_text('U0ALICE = "alice"\nU0BOB = "bob"\nU0ADA = "ada"\n')
    site = Site(mode=Mode.SHADOW)
    site.now = clock.now()
    return site


def ask(site: Site, **changes: object) -> SecondPersonRequest:
    wanted = {"until": site.now + HOUR * 24, **changes}
    asked = services.begin_arming(draft(**wanted), actor="ada", now=site.now, world=site.world)
    assert isinstance(asked, AskedSecond), asked
    return SecondPersonRequest.objects.get(ended_at=None)


def message(slack: SlackSite, site: Site) -> Posted:
    """The one that asks, as the channel shows it by now."""
    drain(wiring.build_notifier(), Clock(site.now))
    [posted] = slack.server.workspace.posted(CHANNEL)
    return posted


def words(posted: Posted) -> str:
    sections = [block for block in posted.blocks if block["type"] in ("section", "header")]
    texts: list[dict[str, Any]] = []
    for block in sections:
        texts += [block["text"]] if "text" in block else []
        texts += block.get("fields", [])
    return "\n".join(str(text["text"]) for text in texts)


def report_preflight(site: Site, *, is_ok: bool) -> None:
    """What the process that acts has found just now."""
    check = {"name": "ssh", "is_ok": is_ok, "found": "gn001 answers nobody.", "todo": "Mend it."}
    PreflightReport.objects.create(at=site.now, by="bob", checks=[check])


def test_the_message_says_who_asks_what_where_until_when_and_what_can_be_done(
    slack: SlackSite, site: Site
) -> None:
    request = ask(site, mode="approval", runs=3)
    shown = words(message(slack, site))
    assert "Widening waits for a second person" in shown
    assert f"ada asks for this: {request.what}" in shown
    assert "for 3 runs at most: pilot." in shown
    assert "That is 2 nodes now: gn001, gn002." in shown
    assert f"Nothing of it is done yet. {BOOK} is at shadow" in shown
    assert "Another administrator than ada confirms it here" in shown
    assert f"/kintsugi reject {request.pk} WHY" in shown
    assert "/modes/|Open its page" in shown
    assert slack.buttons(message(slack, site)) == ["confirm"]


def test_a_mode_says_that_it_is_for_all_nodes_and_without_an_end(
    slack: SlackSite, site: Site
) -> None:
    services.set_mode(BOOK, "approval", actor="ada", now=site.now, world=site.world)
    shown = words(message(slack, site))
    assert f"ada asks for this: {BOOK} goes to approval. That is on all nodes, until a" in shown


def test_another_person_confirms_with_a_click_and_just_that_is_done(
    slack: SlackSite, site: Site
) -> None:
    ask(site, mode="approval", runs=3)
    slack.click(message(slack, site), "confirm", user="U0BOB")
    row = Arming.objects.get()
    assert (row.mode, row.runs, row.set_by) == ("approval", 3, "ada, confirmed by bob")
    shown = words(message(slack, site))
    assert "Widening confirmed by bob" in shown
    assert "and it was done as asked" in shown
    assert slack.buttons(message(slack, site)) == []
    assert not Notice.objects.get().is_open
    lines = AuditEntry.objects.filter(actor="bob").order_by("pk").values_list("act", flat=True)
    assert list(lines) == ["second_person_confirmed", "arm", "order"]


def test_who_asked_cannot_confirm_it(slack: SlackSite, site: Site) -> None:
    ask(site, mode="approval")
    slack.click(message(slack, site), "confirm", user="U0ADA")
    assert "You have asked for this yourself" in slack.whisper()
    assert not Arming.objects.exists()


@pytest.mark.parametrize("user", ["U0ALICE", "U0SAM", "U0NOBODY"])
def test_who_may_not_arm_cannot_confirm_or_reject_it(
    slack: SlackSite, site: Site, user: str
) -> None:
    request = ask(site, mode="approval")
    slack.click(message(slack, site), "confirm", user=user)
    assert "Who has the role admin may" in slack.whisper()
    assert "Nothing is done" in slack.said(f"reject {request.pk} no", user)
    request.refresh_from_db()
    assert request.ended_at is None
    assert not Arming.objects.exists()


def test_two_slack_users_of_one_account_are_one_person(slack: SlackSite, site: Site) -> None:
    slack.users.write_text('U0ADA = "ada"\nU0PHONE = "ada"\n')
    ask(site, mode="approval")
    slack.click(message(slack, site), "confirm", user="U0PHONE")
    assert "You have asked for this yourself" in slack.whisper()


def test_arming_from_slack_takes_a_passing_preflight(slack: SlackSite, site: Site) -> None:
    ask(site, mode="armed")
    asking = message(slack, site)
    slack.click(asking, "confirm", user="U0BOB")
    assert "has been asked to make the preflight" in slack.whisper()
    report_preflight(site, is_ok=False)
    slack.click(asking, "confirm", user="U0BOB")
    assert "gn001 answers nobody." in slack.whisper()
    assert not Arming.objects.exists()
    site.now += timedelta(seconds=1)
    report_preflight(site, is_ok=True)
    slack.click(asking, "confirm", user="U0BOB")
    assert Arming.objects.get().mode == "armed"


def test_a_click_after_modes_have_changed_ends_the_request(slack: SlackSite, site: Site) -> None:
    ask(site, mode="approval")
    asking = message(slack, site)
    services.set_mode(BOOK, "off", actor="ada", now=site.now, world=site.world)
    slack.click(asking, "confirm", user="U0BOB")
    assert "have changed. It is ended: ask again." in slack.whisper()
    shown = words(message(slack, site))
    assert "Widening: the request has ended" in shown
    assert "Modes, armings or nodes that it is about have changed since." in shown
    assert not Arming.objects.exists()


def test_a_request_whose_nodes_have_moved_ends_by_itself_and_its_message_says_so(
    slack: SlackSite, site: Site
) -> None:
    ask(site, mode="approval", scope="pod", place=Node.objects.get(name="gn001").pod)
    services.sweep_second_person(site.now)
    assert "waits for a second person" in words(message(slack, site))
    Node.objects.filter(name="gn001").update(pod="another")
    services.sweep_second_person(site.now)
    assert "have changed since" in words(message(slack, site))
    assert SecondPersonRequest.objects.get().ending == "outdated"


def test_a_request_that_nobody_confirms_says_that_its_time_is_over(
    slack: SlackSite, site: Site
) -> None:
    request = ask(site, mode="approval")
    assert "waits for a second person" in words(message(slack, site))
    slack.said(f"confirm {request.pk}", "U0BOB")
    site.now += HOUR
    services.sweep_second_person(site.now)
    assert "Widening: no second person came" in words(message(slack, site))
    slack.server.people.click_whisper("confirm", user="U0BOB")
    slack.await_answer(0)
    assert "was expired by kintsugi" in slack.whisper()


def test_a_request_is_rejected_with_a_reason(slack: SlackSite, site: Site) -> None:
    request = ask(site, mode="approval")
    assert "and why" in slack.said(f"reject {request.pk}", "U0BOB")
    assert "is rejected" in slack.said(f"reject {request.pk} after the patch day", "U0BOB")
    shown = words(message(slack, site))
    assert "Widening rejected by bob" in shown
    assert ": after the patch day. Nothing has changed." in shown


def test_the_command_shows_the_request_before_it_takes_a_confirmation(
    slack: SlackSite, site: Site
) -> None:
    request = ask(site, mode="approval")
    assert f"Request {request.pk} of ada waits" in slack.said("status", "U0BOB")
    assert request.what in slack.said("confirm", "U0BOB")
    assert request.what in slack.said(f"confirm {request.pk}", "U0BOB")
    assert not Arming.objects.exists()
    slack.server.people.click_whisper("confirm", user="U0BOB")
    slack.await_answer(0)
    assert Arming.objects.get().set_by == "ada, confirmed by bob"


def test_a_confirmation_is_for_the_request_that_was_shown(slack: SlackSite, site: Site) -> None:
    """The same terms asked for anew have a message of their own."""
    ask(site, mode="approval", reason="pilot")
    asking = message(slack, site)
    ask(site, mode="approval", reason="another")
    slack.click(asking, "confirm", user="U0BOB")
    assert "was outdated by ada" in slack.whisper()
    assert not Arming.objects.exists()
    assert "ada asks for it anew." in Notice.objects.order_by("pk")[0].doing


def test_a_message_that_was_deleted_is_posted_anew_by_itself(slack: SlackSite, site: Site) -> None:
    """What it says last, and no other message is sent again for it."""
    first = ask(site, mode="approval")
    drain(wiring.build_notifier(), Clock(site.now))
    done = services.reject_request(first.pk, "no", actor="bob", now=site.now)
    assert isinstance(done, Controlled)
    ask(site, mode="approval", runs=2)
    drain(wiring.build_notifier(), Clock(site.now))
    kept, deleted = slack.server.workspace.posted(CHANNEL)
    del slack.server.workspace.channels[CHANNEL].messages[deleted.ts]
    second = SecondPersonRequest.objects.get(ended_at=None)
    services.reject_request(second.pk, "no", actor="bob", now=site.now)
    drain(wiring.build_notifier(), Clock(site.now))
    posted = slack.server.workspace.posted(CHANNEL)
    assert len(posted) == 2
    assert posted[0].ts == kept.ts
    assert "rejected by bob" in words(posted[1])
    assert Notification.objects.exclude(message_ts="").count() == 2


def test_without_a_secret_the_message_has_no_button_and_names_the_other_ways(
    kept_out: SlackSite, site: Site, settings: Settings
) -> None:
    settings.KINTSUGI = {**settings.KINTSUGI, "SLACK_SIGNING_SECRET": None}
    request = ask(site, mode="approval")
    posted = message(kept_out, site)
    assert kept_out.buttons(posted) == []
    assert f"confirms it on the page of modes or by kintsugi arming confirm {request.pk}" in words(
        posted
    )
    assert "/kintsugi" not in words(posted)
