"""Orders from Slack that come at once, each in a thread and with a connection of its own: each
counts once."""

from __future__ import annotations

import pytest

from fixtures.slack_page.interactions import Delivery
from runbooks.models import RunState, StopSwitch
from tests.incidents.test_races import at_once
from tests.kintsugi.slack_site import SlackSite, slack
from tests.runbooks.engine.test_approvals import asking

__all__ = ["slack"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("database_on_disk")]

EIGHT = 8


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
