"""Orders from Slack that come at once, each in a thread and with a connection of its own: each
counts once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from pytest_django import Settings

from fixtures.slack_page.interactions import Delivery
from fixtures.slack_server import CHANNEL
from incidents.models import Notice, Notification
from incidents.notify import services as notifications
from kintsugi import clock
from kintsugi.clients import wiring
from kintsugi.roles import UserRole
from runbooks import services
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY as BOOK
from runbooks.models import Arming, AuditEntry, Mode, RunState, SecondPersonRequest, StopSwitch
from tests.incidents.clocks import Clock, drain
from tests.incidents.test_races import at_once
from tests.kintsugi.slack_site import SlackSite, slack
from tests.runbooks.engine.test_approvals import asking
from tests.runbooks.fleet.test_armings import draft
from tests.runbooks.site import Site

__all__ = ["slack"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("database_on_disk")]

EIGHT = 8
CLICKS = ("U0ALICE", "U0BOB") * 4


def _texts(delivered: list[object]) -> list[str]:
    return [
        str(one.answer["text"])
        for one in delivered
        if isinstance(one, Delivery) and one.answer is not None
    ]


def test_one_order_delivered_eight_times_at_once_is_obeyed_once(slack: SlackSite) -> None:
    overheard = slack.command("status")
    body = overheard.body.replace(b"text=status", b"text=stop+row+3")
    deliver = slack.server.people._deliver
    told = _texts(at_once([lambda: deliver(overheard.url, body)] * EIGHT))
    assert sum("not obeyed twice" in text for text in told) == EIGHT - 1
    assert StopSwitch.objects.count() == 1


def test_eight_clicks_at_once_give_leave_once(slack: SlackSite) -> None:
    site, incident, run = asking()
    message = slack.asking(site)
    people = slack.server.people
    at_once(
        [
            lambda user=user: people.click(message.ts, "approve", user=user)
            for user in ("U0ALICE", "U0BOB") * 4
        ]
    )  # type: ignore[misc]
    slack.await_answer(EIGHT - 1)
    run.refresh_from_db()
    assert run.state == RunState.RUNNING
    assert incident.timeline.filter(kind="run_approved").count() == 1
    whispers = [str(shown["text"]) for _, shown in people.whispers]
    assert len(whispers) == EIGHT - 1
    assert all("Done already" in text for text in whispers)


def _ask_for_arming(slack: SlackSite, settings: Settings) -> tuple[Site, str]:
    """Two administrators who may confirm what a third has asked for; the message's id."""
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_SECOND_PERSON": frozenset({"widening"})}
    admins = Group.objects.get(name=UserRole.ADMIN.value)
    User.objects.create_user("ada").groups.add(admins)
    for name in ("alice", "bob"):
        User.objects.get(username=name).groups.add(admins)
    site = Site(mode=Mode.SHADOW)
    site.now = clock.now()
    wanted = draft(mode="approval", until=site.now + timedelta(days=1))
    services.begin_arming(wanted, actor="ada", now=site.now, world=site.world)
    drain(wiring.build_notifier(), Clock(site.now))
    [posted] = slack.server.workspace.posted(CHANNEL)
    return site, posted.ts


def test_eight_clicks_of_two_people_at_once_confirm_an_arming_once(
    slack: SlackSite, settings: Settings
) -> None:
    _, ts = _ask_for_arming(slack, settings)
    people = slack.server.people
    at_once(
        [lambda user=user: people.click(ts, "confirm", user=user) for user in CLICKS]  # type: ignore[misc]
    )
    slack.await_answer(EIGHT - 1)
    assert Arming.objects.count() == 1
    request = SecondPersonRequest.objects.get()
    assert (request.ending, request.ended_by in ("alice", "bob")) == ("confirmed", True)
    whispers = [str(shown["text"]) for _, shown in people.whispers]
    assert sum(f"was confirmed by {request.ended_by}" in text for text in whispers) == EIGHT - 1
    assert not Notice.objects.get().is_open


def test_a_click_beside_a_change_of_the_mode_confirms_what_was_asked_or_ends_it(
    slack: SlackSite, settings: Settings
) -> None:
    """Never an arming beside a mode that its request has not seen, but one that came after it."""
    site, ts = _ask_for_arming(slack, settings)

    def turn_off() -> None:
        services.set_mode(BOOK, "off", actor="cleo", now=site.now, world=None)

    at_once([lambda: slack.server.people.click(ts, "confirm", user="U0BOB"), turn_off])
    slack.await_answer(0)
    request = SecondPersonRequest.objects.get()
    acts = list(AuditEntry.objects.order_by("pk").values_list("act", flat=True))
    if request.ending == "confirmed":
        assert acts.index("arm") < acts.index("set_mode")
    else:
        assert request.ending == "outdated"
        assert not Arming.objects.exists()
    assert services.get_mode(BOOK) is Mode.OFF
    assert not Notice.objects.get().is_open


def test_a_message_is_on_its_way_while_its_request_ends_and_says_so_in_the_end(
    slack: SlackSite, settings: Settings
) -> None:
    site, ts = _ask_for_arming(slack, settings)
    request = SecondPersonRequest.objects.get()

    def reject() -> None:
        services.reject_request(request.pk, "not now", actor="bob", now=site.now)

    Notification.objects.update(state=Notification.SendState.WAITING, revision=5)
    number = Notification.objects.get().pk
    at_once([lambda: notifications.send(number, wiring.build_notifier(), now=site.now), reject])
    drain(wiring.build_notifier(), Clock(site.now))
    shown = slack.server.workspace.channels[CHANNEL].messages[ts]
    assert "rejected by bob" in str(shown.blocks)
    assert slack.buttons(shown) == []
