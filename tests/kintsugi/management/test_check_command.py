"""`kintsugi check` says whether database and parts of the site are alive; what starts does not ask."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.utils import timezone

from incidents.checks import heartbeats
from incidents.checks.heartbeats import PartReport, Process
from kintsugi import startup
from tests.kintsugi.management.test_store import nowhere, run

__all__ = ["nowhere"]


def write(report: PartReport, ago: timedelta) -> None:
    at = timezone.now() - ago
    pid = 100 + len(report.part)  # each is a process of its own
    heartbeats.write(Process("mgmt-1", pid, "0.2.0", at), [report], at)


def ask() -> str:
    err = StringIO()
    call_command("check", tags=["parts"], stderr=err, stdout=StringIO())
    return err.getvalue()


@pytest.mark.django_db
def test_silent_parts_are_named_with_what_rests_and_the_unit_to_look_at() -> None:
    write(PartReport("beat"), timedelta(minutes=5))
    write(PartReport("web"), timedelta(0))
    found = ask()
    assert "kintsugi.W007" in found
    for words in (
        "beat on mgmt-1",
        "for 5 min",
        "nothing is polled",
        "systemctl status kintsugi-beat",
    ):
        assert words in found
    assert "web on" not in found


@pytest.mark.django_db
def test_a_part_that_is_kept_from_its_work_is_named_with_why() -> None:
    why = "Redis at redis1:6379 takes nothing: no memory."
    write(PartReport("worker-notify", ("notify",), trouble=why), timedelta(0))
    found = ask()
    assert "worker-notify on mgmt-1" in found
    assert why in found
    assert "messages wait" in found


@pytest.mark.django_db
def test_a_site_whose_parts_get_on_has_nothing_to_be_said_of() -> None:
    write(PartReport("beat"), timedelta(0))
    assert ask() == ""


@pytest.mark.django_db
def test_what_starts_does_not_speak_of_parts_that_are_just_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(PartReport("beat"), timedelta(minutes=5))
    assert "beat on" in ask()
    startup.require()
    assert "beat on" not in caplog.text


def test_a_database_that_is_away_is_named_without_its_password(
    tmp_path: Path, nowhere: str
) -> None:
    ended = run(tmp_path, "-m", "kintsugi", "check", DATABASE_URL=nowhere)
    assert "kintsugi.W005" in ended.stderr
    assert "kintsugi on 127.0.0.1" in ended.stderr
    assert "pg_isready -h 127.0.0.1" in ended.stderr
    assert "s3cret" not in ended.stderr
