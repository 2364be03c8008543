"""What people and programs are told while the console's database does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from kintsugi.configuration import stop_file
from kintsugi.configuration.schema import store_name
from kintsugi.health.database_away import OUTAGE
from tests.kintsugi.people import People, people
from tests.kintsugi.slack_site import SlackSite, slack

__all__ = ["people", "slack"]

pytestmark = pytest.mark.django_db
WHY = "connection to server at db1.internal failed: Connection refused"
ALWAYS = 1_000_000


@contextmanager
def database_away(questions: int = ALWAYS) -> Iterator[None]:
    """So many questions get no answer from now on."""
    left = [questions]

    def refuse(execute: Callable[..., Any], *arguments: Any) -> Any:
        if left[0] <= 0:
            return execute(*arguments)
        left[0] -= 1
        raise OperationalError(WHY)

    with connection.execute_wrapper(refuse):
        yield


@pytest.fixture(autouse=True)
def connection_of_the_test(
    monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path
) -> Iterator[None]:
    monkeypatch.setattr(connection, "close", lambda: None)
    settings.KINTSUGI = settings.KINTSUGI | {"KINTSUGI_STOP_FILE": str(tmp_path / "stop")}
    yield
    OUTAGE.end()


@pytest.fixture
def browser(people: People) -> Client:
    """Of somebody who is signed in."""
    people.viewer.raise_request_exception = False
    return people.viewer


@pytest.mark.parametrize("page", ["/", "/metrics", "/healthz/"])
def test_whoever_asks_gets_503_and_is_told_when_to_ask_again(browser: Client, page: str) -> None:
    with database_away():
        answer = browser.get(page)
    assert (answer.status_code, answer["Cache-Control"]) == (503, "no-store")
    assert int(answer["Retry-After"]) > 0


def test_a_program_is_answered_in_json(browser: Client) -> None:
    with database_away():
        answer = browser.post(
            "/api/v1/readings/",
            '{"version": 1, "node": "gn001"}',
            content_type="application/json",
            headers={"Authorization": "Bearer kn1-nobody"},
        )
    assert (answer.status_code, int(answer["Retry-After"]) > 0) == (503, True)
    assert "the database does not answer" in answer.json()["error"]


def test_a_page_names_the_database_what_goes_on_what_rests_and_what_to_do(
    browser: Client,
) -> None:
    with database_away():
        text = unescape(browser.get("/").content.decode())
    assert store_name() in text
    assert f"since {OUTAGE.since:%Y-%m-%d %H:%M:%S} UTC" in text
    assert WHY in text
    for words in ("Receivers keep syslog", "stay drained", "No node is polled", "stop --file"):
        assert words in text
    assert str(stop_file.get_path()) in text


def test_who_signs_in_meanwhile_reads_the_same() -> None:
    stranger = Client(raise_request_exception=False)
    with database_away():
        answer = stranger.post("/login/", {"username": "ada", "password": "correct horse"})
    assert answer.status_code == 503
    assert store_name() in unescape(answer.content.decode())


def test_the_log_has_one_line_when_it_goes_and_one_when_it_is_back(
    browser: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with database_away():
        for _ in range(3):
            browser.get("/")
    browser.get("/healthz")
    browser.get("/healthz")
    lines = [line for line in caplog.messages if store_name() in line]
    assert len(lines) == 2, lines
    assert "does not answer since" in lines[0]
    assert "answers again, after" in lines[1]
    assert not any(record.exc_info for record in caplog.records)


def test_one_question_that_is_broken_off_is_no_outage(
    browser: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with database_away(questions=1):
        answer = browser.get("/")
    assert answer.status_code == 503
    assert "The database answers, and did not take this one question" in answer.content.decode()
    assert OUTAGE.since is None
    assert any(record.exc_info for record in caplog.records)


def test_an_error_that_is_not_the_databases_stays_a_500(
    browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise LookupError("a page's own mistake")

    monkeypatch.setattr("kintsugi.web.banners.get_banners", fail)
    assert browser.get("/").status_code == 500


def test_slack_shows_the_person_what_holds_the_order_up_and_how_to_stop_without_it(
    slack: SlackSite,
) -> None:
    with database_away():
        text = slack.said("stop row 3")
    assert "Nothing is known to be done" in text
    assert str(stop_file.get_path()) in text
