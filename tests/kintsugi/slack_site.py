"""A strict Slack beside the console: what people type and click there arrives as Slack delivers it,
signed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from pytest_django import Settings

from fixtures.slack_page.interactions import SIGNING_SECRET, App, Delivery
from fixtures.slack_page.workspace import Posted
from fixtures.slack_server import CHANNEL, TOKEN, SlackServer, workspace
from kintsugi.clients import wiring
from kintsugi.roles import UserRole
from tests.incidents.clocks import Clock, drain
from tests.runbooks.site import Site
from tests.services.ports import wait_until

__all__ = ["kept_out", "slack"]


class Shifted:
    """The time, which Slack and the console may see differently."""

    by = 0.0

    def __call__(self) -> float:
        return time.time() + self.by


@dataclass
class SlackSite:
    """`alice` is on call and mapped to U0ALICE, `vera` may only look, U0SAM is mapped to nobody's
    account."""

    server: SlackServer
    clock: Shifted
    users: Path

    def command(self, text: str, user: str = "U0ALICE") -> Delivery:
        return self.server.people.command(text, user=user)

    def said(self, text: str, user: str = "U0ALICE") -> str:
        """What the person is shown at once."""
        answer = self.command(text, user).answer
        assert answer is not None
        assert answer["response_type"] == "ephemeral"
        return str(answer["text"])

    def click(self, message: Posted, name: str, user: str = "U0ALICE", **more: Any) -> Delivery:
        """Returns once Slack has been told what came of it."""
        people = self.server.people
        uses = self._uses()
        delivery = people.click(message.ts, name, user=user, **more)
        if delivery.status == 200:
            self.await_answer(uses)
        return delivery

    def await_answer(self, uses: int) -> None:
        wait_until(lambda: self._uses() > uses, within_s=10, what="the answer to the click")

    def whisper(self) -> str:
        """The last text that was shown to one person alone."""
        return str(self.server.people.whispers[-1][1]["text"])

    def _uses(self) -> int:
        return sum(hook.uses for hook in self.server.people.hooks.values())

    def asking(self, site: Site) -> Posted:
        """What the channel shows of a run that asks: the last message with buttons."""
        drain(wiring.build_notifier(), Clock(site.now))
        messages = self.server.workspace.channels[CHANNEL].messages.values()
        return [message for message in messages if _buttons(message)][-1]

    def buttons(self, message: Posted) -> list[str]:
        return [str(button["action_id"]) for button in _buttons(message)]


def _buttons(message: Posted) -> list[dict[str, Any]]:
    return [
        element
        for block in message.blocks
        for element in block.get("elements", [])
        if element["type"] == "button"
    ]


def by_client(url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    """Delivers to the console without a socket. It has no cookie and no CSRF token, as Slack has
    none."""
    rest = {name: value for name, value in headers.items() if name != "Content-Type"}
    answer = Client(enforce_csrf_checks=True).post(
        url, body, content_type=headers["Content-Type"], headers=rest
    )
    return answer.status_code, answer.content


@pytest.fixture
def slack(db: None, settings: Settings, tmp_path: Path) -> Iterator[SlackSite]:
    users, clock = tmp_path / "users.toml", Shifted()
    users.write_text('U0ALICE = "alice"\nU0BOB = "bob"\nU0VERA = "vera"\nU0SAM = "sam"\n')
    for name, role in (
        ("alice", UserRole.ON_CALL),
        ("bob", UserRole.ON_CALL),
        ("vera", UserRole.VIEWER),
    ):
        User.objects.create_user(name).groups.add(Group.objects.get(name=role.value))
    space = workspace(posts_per_second=1000, burst=1000, clock=clock)  # type: ignore[arg-type]
    with SlackServer(space) as server:
        settings.KINTSUGI = {
            **settings.KINTSUGI,
            "SLACK_BOT_TOKEN": TOKEN,
            "SLACK_CHANNEL": CHANNEL,
            "SLACK_API_URL": server.api_url,
            "SLACK_SIGNING_SECRET": SIGNING_SECRET,
            "KINTSUGI_SLACK_USERS": users,
        }
        server.people.app = App("/slack/command/", "/slack/action/", send=by_client)
        yield SlackSite(server, clock, users)
        assert space.violations == []


@pytest.fixture
def kept_out(slack: SlackSite, settings: Settings) -> SlackSite:
    """A console that takes no orders from Slack."""
    settings.KINTSUGI = {**settings.KINTSUGI, "SLACK_SIGNING_SECRET": None}
    return slack
