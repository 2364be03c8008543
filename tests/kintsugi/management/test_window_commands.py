"""`kintsugi silence` and `maintenance`: what they make, print and refuse."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from incidents import services
from incidents.models import Incident, Silence
from kintsugi.management.person import get_person
from kintsugi.management.typed_times import parse_moment
from tests.builders import a_node, a_switch, an_event

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def machines() -> None:
    a_node("gn042")
    a_node("gn043")
    a_switch("leaf-01")


def done(command: str, *words: str) -> str:
    out = io.StringIO()
    call_command(command, *words, stdout=out)
    return out.getvalue()


def refused(command: str, *words: str) -> str:
    with pytest.raises(CommandError) as caught:
        done(command, *words)
    return str(caught.value)


def a_fault_now() -> Incident:
    now = timezone.now()
    services.ingest([an_event(at=now)], now=now)
    return Incident.objects.get()


def test_a_silence_is_made_and_says_what_it_keeps() -> None:
    incident = a_fault_now()
    text = done(
        "silence",
        "add",
        "--resource",
        "node/gn042",
        "--for",
        "2h",
        "--reason",
        "tray",
        "--actor",
        "ada",
    )
    row = Silence.objects.get()
    assert row.ends_at is not None
    assert row.ends_at - row.starts_at == timedelta(hours=2)
    assert (row.author, row.reason, row.kind) == (
        f"ada, typed by {get_person()}",
        "tray",
        "silence",
    )
    assert text.startswith(f"Window {row.pk}, a silence of node/gn042, from ")
    assert text.endswith(
        f"by ada, typed by {get_person()} (tray). 1 open incidents are kept from people by it.\n"
    )
    incident.refresh_from_db()
    assert incident.silence == row


def test_a_dry_run_says_what_a_silence_would_keep_and_makes_none() -> None:
    a_fault_now()
    words = ("add", "--resource", "node/gn042", "--for", "2h", "--reason", "tray", "--dry-run")
    assert (
        done("silence", *words)
        == "1 active faults and 1 open incidents would be kept from people now.\n"
    )
    assert not Silence.objects.exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("--resource", "node/xx", "--for", "1h", "--reason", "r"),
            "where: Nothing known matches node/xx.",
        ),
        (
            ("--resource", "node/gn042", "--reason", "r"),
            "--for or --until: Give an end or a review",
        ),
        (("--resource", "node/gn042", "--for", "1h"), "--reason: Say why"),
        (
            ("--resource", "*", "--for", "1h", "--reason", "r"),
            "--yes: That keeps every fault of every machine",
        ),
        (
            ("--type", "no.such", "--for", "1h", "--reason", "r"),
            "--type: The catalogue has no fault type no.such",
        ),
        (
            ("--resource", "node/gn042", "--for", "soon", "--reason", "r"),
            "--for soon: expected a number and s, m",
        ),
        (
            ("--resource", "node/gn042", "--until", "31 May", "--reason", "r"),
            "--until 31 May: expected a time such",
        ),
        (
            ("--resource", "node/gn042", "--until", "2020-01-01 00:00", "--reason", "r"),
            "is not after the start",
        ),
        (
            ("--resource", "node/gn042", "--for", "1h", "--until", "2020-01-01", "--reason", "r"),
            "not both",
        ),
        (
            ("--resource", "node/gn042", "--review", "2099-01-01 00:00", "--reason", "r"),
            "A review is due after 30 d",
        ),
    ],
)
def test_a_silence_is_refused_with_every_reason(words: tuple[str, ...], text: str) -> None:
    assert text in refused("silence", "add", *words)
    assert not Silence.objects.exists()


def test_everything_may_be_silenced_by_who_says_so() -> None:
    done("silence", "add", "--resource", "*", "--for", "1h", "--reason", "power test", "--yes")
    assert Silence.objects.get().resource == "*"


def test_a_shelf_lasts_until_its_review() -> None:
    review = (timezone.now() + timedelta(days=20)).isoformat()
    words = (
        "--resource",
        "node/gn042/gpu/0000:19:00.0",
        "--type",
        "gpu.xid.48",
        "--review",
        review,
    )
    done("silence", "add", "--shelf", "--reason", "waits for a tray", *words)
    row = Silence.objects.get()
    assert (row.kind, row.ends_at) == ("shelf", None)
    assert row.review_at is not None


def test_a_silence_is_changed_and_ended_and_not_ended_twice() -> None:
    done("silence", "add", "--resource", "node/gn042", "--for", "2h", "--reason", "tray")
    row = Silence.objects.get()
    assert f"was changed by bob, typed by {get_person()}" in done(
        "silence", "change", str(row.pk), "--for", "1h", "--actor", "bob"
    )
    row.refresh_from_db()
    assert row.ends_at is not None
    assert row.ends_at - timezone.now() < timedelta(hours=1)
    done("silence", "change", str(row.pk), "--reason", "new tray")
    assert "Say what changes" in refused("silence", "change", str(row.pk))
    assert f"Window {row.pk} is ended by bob, typed by {get_person()}; 0 incidents" in done(
        "silence", "end", str(row.pk), "--actor", "bob"
    )
    assert f"Window {row.pk} was ended already" in refused("silence", "end", str(row.pk))
    assert "There is no window 99." in refused("silence", "end", "99")


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("maintenance", ("gn042", "--for", "1h", "--reason", "firmware")),
        ("silence", ("--resource", "node/gn042", "--for", "1h", "--reason", "firmware")),
    ],
)
def test_the_end_stays_when_only_the_reason_changes(command: str, made: tuple[str, ...]) -> None:
    done(command, "add", *made)
    (before,) = json.loads(done(command, "list", "--json"))
    done(command, "change", str(before["id"]), "--reason", "new boards")
    (after,) = json.loads(done(command, "list", "--json"))
    assert after == before | {"reason": "new boards"}


@pytest.mark.parametrize("command", ["maintenance", "silence"])
def test_a_change_of_nothing_is_refused(command: str) -> None:
    assert "Say what changes: --for, --until" in refused(command, "change", "1")


def test_maintenance_takes_machines_as_slurm_writes_them() -> None:
    done(
        "maintenance",
        "add",
        "gn[042-043],",
        "leaf-01",
        "--for",
        "1h",
        "--reason",
        "firmware",
        "--yes",
    )
    assert Silence.objects.get().machines == ["node/gn042", "node/gn043", "switch/leaf-01"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("gn9", "--for", "1h", "--reason", "r"), "where: The inventory knows no machine gn9."),
        (("gn042", "--reason", "r"), "A maintenance needs an end"),
        (
            ("gn042", "gn043", "leaf-01", "--for", "1h", "--reason", "r"),
            "--yes: That is all 3 machines.",
        ),
    ],
)
def test_maintenance_is_refused_with_the_reason(words: tuple[str, ...], text: str) -> None:
    assert text in refused("maintenance", "add", *words)


def test_windows_are_listed_in_force_planned_and_ended() -> None:
    later = (timezone.now() + timedelta(days=1)).isoformat()
    done("silence", "add", "--resource", "node/gn042", "--for", "2h", "--reason", "tray")
    done(
        "silence", "add", "--type", "nic.*", "--starts", later, "--for", "2h", "--reason", "fibres"
    )
    done("maintenance", "add", "gn042", "--for", "1h", "--reason", "firmware")
    first, second = done("silence", "list").splitlines()
    assert "in force  silence of node/gn042" in first
    assert "planned   silence of nic.* everywhere" in second
    (listed,) = json.loads(done("maintenance", "list", "--json"))
    assert (listed["kind"], listed["state"], listed["machines"]) == (
        "maintenance",
        "in_force",
        ["node/gn042"],
    )
    done("maintenance", "end", str(listed["id"]), "--actor", "ada")
    (ended,) = json.loads(done("maintenance", "list", "--expired", "--json"))
    assert (ended["state"], ended["ended_by"]) == ("ended", f"ada, typed by {get_person()}")
    assert done("maintenance", "list") == "None.\n"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2025-01-31 14:00", datetime(2025, 1, 31, 13, tzinfo=UTC)),
        ("2025-07-31 14:00", datetime(2025, 7, 31, 12, tzinfo=UTC)),
        ("2025-10-26T02:30+01:00", datetime(2025, 10, 26, 1, 30, tzinfo=UTC)),
    ],
)
def test_a_time_without_an_offset_is_the_sites(text: str, at: datetime) -> None:
    with timezone.override("Europe/Berlin"):
        assert parse_moment("--until", text) == at


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2025-03-30 02:30", "does not exist in Europe/Berlin"),
        ("2025-10-26 02:30", "comes twice in Europe/Berlin. Write 2025-10-26T02:30:00+02:00 or"),
        ("2025-02-30 12:00", "there is no such time"),
    ],
)
def test_an_hour_that_the_clocks_skip_or_repeat_is_refused(text: str, why: str) -> None:
    with (
        timezone.override("Europe/Berlin"),
        pytest.raises(CommandError, match=why.replace("+", r"\+")),
    ):
        parse_moment("--until", text)
