"""The page and the command that show which parts of Kintsugi get on."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import typer
from django.utils import timezone

from incidents.checks import heartbeats
from incidents.checks.heartbeats import Disk, PartBacklog, PartReport, Process
from incidents.triage import inbox
from kintsugi.cli import exit_codes, lists
from kintsugi.web.status_page import describe_inbox
from tests.kintsugi.people import People, people

__all__ = ["people"]
pytestmark = pytest.mark.django_db
REDIS = "Redis at redis1:6379 takes nothing: no memory."


def write(report: PartReport, ago: timedelta = timedelta(0), host: str = "mgmt-1") -> None:
    at = timezone.now() - ago
    pid = 100 + len(report.part)  # each is a process of its own
    heartbeats.write(Process(host, pid, "0.2.0", at - timedelta(hours=2)), [report], at)


@pytest.fixture
def three_parts(db: None) -> None:
    write(PartReport("beat"), timedelta(minutes=5))
    write(PartReport("worker-notify", ("notify",), trouble=REDIS))
    backlog = PartBacklog(3 * 1024**2, timezone.now() - timedelta(minutes=2))
    disk = Disk("/var/lib/kintsugi", 20 * 1024**3, 40 * 1024**3)
    write(PartReport("receiver", backlog=backlog, disk=disk), host="mgmt-2")


def get_page(people: People) -> str:
    return people.viewer.get("/status/").content.decode()


def show(capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> tuple[int, str]:
    code = exit_codes.OK
    try:
        lists.show_status(as_json=as_json)
    except typer.Exit as ended:
        code = ended.exit_code
    return code, capsys.readouterr().out


@pytest.mark.usefixtures("three_parts")
def test_the_page_names_each_part_and_what_keeps_it_from_its_work(people: People) -> None:
    page = get_page(people)
    for words in (
        "2 of 3 parts do not get on.",
        "No events wait.",
        "mgmt-2",
        "takes notify",
        REDIS,
        "systemctl status kintsugi-beat",
        "3.0 MiB",
        "not delivered since",
        "20.0 GiB of 40.0 GiB free",
    ):
        assert words in page


@pytest.mark.usefixtures("three_parts")
def test_what_does_not_get_on_stands_first(people: People) -> None:
    page = get_page(people)
    assert page.index("k-part-silent") < page.index("k-part-degraded")
    assert page.index("k-part-degraded") < page.index("k-part-running")


def test_a_site_that_gets_on_is_told_so(people: People) -> None:
    write(PartReport("beat"))
    write(PartReport("web"))
    assert "All 2 parts get on." in get_page(people)


def test_a_site_of_which_nothing_was_seen_is_told_where_to_look(people: People) -> None:
    page = get_page(people)
    assert "No part of Kintsugi has written within a day." in page
    assert "systemctl status" in page


def test_the_page_is_for_people_who_may_see_faults(people: People) -> None:
    for client in (people.stranger, people.anonymous):
        assert client.get("/status/").url == "/login/?next=/status/"


def test_batches_that_wait_are_told_with_their_size_and_age() -> None:
    backlog = inbox.Backlog(2, 5 * 1024**2, timedelta(seconds=90))
    assert describe_inbox(backlog) == "2 batches wait (5.0 MiB), the oldest for 1 min 30 s."


@pytest.mark.usefixtures("three_parts")
def test_the_command_ends_with_one_while_a_part_does_not_get_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, printed = show(capsys)
    assert code == exit_codes.FAILED
    assert "beat" in printed.splitlines()[1]
    assert "silent" in printed.splitlines()[1]
    assert REDIS in printed

    code, printed = show(capsys, as_json=True)
    rows = {row["part"]: row for row in json.loads(printed)}
    assert code == exit_codes.FAILED
    assert {name: row["state"] for name, row in rows.items()} == {
        "beat": "silent",
        "worker-notify": "degraded",
        "receiver": "running",
    }
    assert rows["worker-notify"]["queues"] == ["notify"]
    assert rows["receiver"]["backlog_bytes"] == 3 * 1024**2


def test_the_command_ends_with_zero_where_all_parts_get_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(PartReport("beat"))
    code, printed = show(capsys)
    assert code == exit_codes.OK
    assert "running" in printed


def test_the_command_ends_with_one_where_nothing_was_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, printed = show(capsys)
    assert code == exit_codes.FAILED
    assert "No part of Kintsugi has written within a day" in printed
