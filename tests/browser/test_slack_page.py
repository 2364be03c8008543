"""The simulated Slack's page as a person watches it while an incident runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from fixtures.slack_page import methods
from fixtures.slack_page.workspace import Json
from fixtures.slack_server import CHANNEL, SlackServer, workspace
from tests.services.patience import patient

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture
def slack() -> Iterator[SlackServer]:
    with SlackServer(workspace()) as server:
        yield server


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.set_default_timeout(patient(10) * 1000)
    yield page
    context.close()


def _post(slack: SlackServer, text: str, *, thread_ts: str = "") -> str:
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": text}}]
    arguments: Json = {"channel": CHANNEL, "text": text, "blocks": blocks, "thread_ts": thread_ts}
    with slack.workspace.lock:
        return str(methods.post_message(slack.workspace, arguments, slack.url)["ts"])


def test_new_messages_appear_by_themselves_and_leave_the_rest_as_it_was(
    slack: SlackServer, page: Page
) -> None:
    first = _post(slack, "gn042 is drained")
    _post(slack, "a reply of long ago", thread_ts=first)
    page.goto(slack.url)
    page.locator("summary").click()
    page.evaluate("document.querySelector('article').kept = true")
    expect(page.get_by_text("a reply of long ago")).to_be_hidden()
    second = _post(slack, "gn077 is drained")
    expect(page.get_by_text("gn077 is drained")).to_be_visible()
    _post(slack, "gn077 reboots", thread_ts=second)
    expect(page.get_by_text("gn077 reboots")).to_be_visible()
    assert page.evaluate("document.querySelector('article').kept"), (
        "an unchanged message is not drawn anew"
    )
    expect(page.get_by_text("a reply of long ago")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_changed_card_changes_in_place(slack: SlackServer, page: Page) -> None:
    ts = _post(slack, "open")
    page.goto(slack.url)
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": "resolved"}}]
    with slack.workspace.lock:
        methods.update(
            slack.workspace,
            {"channel": CHANNEL, "ts": ts, "text": "x", "blocks": blocks},
            slack.url,
        )
    expect(page.get_by_text("resolved")).to_be_visible()
    expect(page.locator("article")).to_have_count(1)


def test_the_page_asks_no_other_host_for_anything(slack: SlackServer, page: Page) -> None:
    asked: list[str] = []
    errors: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    page.on("request", note)
    page.on("pageerror", lambda error: errors.append(str(error)))
    ts = _post(slack, "<https://console.example/|Open incident #1> :no_entry:")
    page.goto(f"{slack.url}archives/{CHANNEL}/p{ts.replace('.', '')}")
    expect(page.get_by_text("Open incident #1")).to_be_visible()
    assert [url for url in asked if not url.startswith(slack.url)] == []
    assert errors == []
