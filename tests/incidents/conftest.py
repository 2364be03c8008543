"""Fixtures of the incident tests: a strict Slack on this machine whose clock the tests turn."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from pytest_django import Settings

from fixtures.slack_server import CHANNEL, TOKEN, SlackServer, workspace
from incidents.notify.slack.client import SlackNotifier
from tests.incidents.clocks import Clock
from tests.services.patience import patient


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slack(clock: Clock) -> Iterator[SlackServer]:
    with SlackServer(workspace(clock=clock)) as server:  # type: ignore[arg-type]
        yield server


@pytest.fixture
def notifier(slack: SlackServer) -> SlackNotifier:
    return SlackNotifier(token=TOKEN, api_url=slack.api_url, timeout=timedelta(seconds=patient(1)))


@pytest.fixture
def slack_settings(settings: Settings) -> None:
    settings.KINTSUGI = {
        **settings.KINTSUGI,
        "SLACK_BOT_TOKEN": TOKEN,
        "SLACK_CHANNEL": CHANNEL,
        "KINTSUGI_BASE_URL": "http://console.example",
    }
