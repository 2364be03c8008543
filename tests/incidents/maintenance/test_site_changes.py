"""What was changed before: who is called sees it in the incident, and nothing else follows from
it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.maintenance.site_changes import ChangeDraft, ChangeRefused, record_change
from incidents.models import Incident, IncidentFault, SiteChange
from incidents.people import explain
from incidents.text import account as accounts
from tests.builders import NOW
from tests.incidents.sites import NODES, a_site, happen

pytestmark = pytest.mark.django_db
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
GPU = f"node/{NODES[0]}/gpu/0000:19:00.0"
HEADING = "What was changed in the day before"


@pytest.fixture(autouse=True)
def _site(db: None) -> None:
    a_site()


def change(
    summary: str, *, before: timedelta, machines: tuple[str, ...] = (), reference: str = ""
) -> SiteChange:
    draft = ChangeDraft(summary, "ada", NOW - before, reference=reference, machines=machines)
    return record_change(draft, teller="deploy", now=NOW)


def lines_of_the_incident() -> list[str]:
    account = explain.build_account(Incident.objects.get().pk)
    assert account is not None
    return [
        line.text
        for section in account.list_sections()
        if section.heading == HEADING
        for line in section.lines
    ]


def test_changes_of_its_machines_and_of_the_whole_site_are_shown_with_the_last_one_first() -> None:
    change("PFC on priority 4", before=2 * HOUR, machines=(NODES[0],), reference="a1b2c3d")
    change("a new partition", before=HOUR)
    change("a new kernel", before=HOUR, machines=(NODES[5], "spine-01"))
    happen("gpu.xid.79", [GPU])
    assert lines_of_the_incident() == [
        "2025-01-15 02:00:00 UTC, 1 h before, on the whole site, by ada: a new partition.",
        "2025-01-15 01:00:00 UTC, 2 h before, on gn001, by ada: PFC on priority 4. (a1b2c3d)",
    ]


def test_what_came_after_the_onset_or_a_day_before_is_not_shown() -> None:
    change("right at the edge", before=DAY)
    record_change(
        ChangeDraft("too late", "ada", NOW + MINUTE), teller="deploy", now=NOW + 2 * MINUTE
    )
    happen("gpu.xid.79", [GPU])
    assert lines_of_the_incident() == []


def test_many_changes_are_counted_and_the_latest_five_named() -> None:
    for number in range(8):
        change(f"change {number}", before=number * MINUTE)
    happen("gpu.xid.79", [GPU])
    *named, more = lines_of_the_incident()
    assert [line.rpartition(": ")[2] for line in named] == [
        f"change {number}." for number in range(5)
    ]
    assert more == "3 more: `kintsugi change list`."


def test_a_change_joins_no_faults_and_is_the_root_of_none() -> None:
    change("a new firmware", before=MINUTE, machines=tuple(NODES))
    happen("gpu.xid.79", [f"node/{name}/gpu/0000:19:00.0" for name in NODES[:2]])
    assert Incident.objects.count() == 2
    assert IncidentFault.objects.count() == 2


def test_the_same_change_told_twice_under_its_reference_is_one() -> None:
    first = change("PFC on priority 4", before=HOUR, reference="a1b2c3d")
    assert change("PFC on priority 4", before=HOUR, reference="a1b2c3d") == first
    change("by hand", before=HOUR)
    change("by hand", before=HOUR)
    assert SiteChange.objects.count() == 3


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (ChangeDraft(" ", "ada", NOW), r"what was changed \(--summary\)"),
        (ChangeDraft("a new kernel", "", NOW), r"who changed it \(--by\)"),
        (ChangeDraft("x" * 301, "ada", NOW), "301 characters; 300 at most"),
        (ChangeDraft("a new kernel", "ada", NOW, reference="x" * 201), "201 characters; 200"),
        (ChangeDraft("a new kernel", "ada", NOW + HOUR), "kintsugi maintenance add"),
        (ChangeDraft("a new kernel", "ada", NOW, machines=("gn001", "gn999")), "name gn999"),
    ],
)
def test_what_is_not_recorded_is_refused_with_what_would_be(draft: ChangeDraft, words: str) -> None:
    with pytest.raises(ChangeRefused, match=words):
        record_change(draft, teller="deploy", now=NOW)
    assert not SiteChange.objects.exists()


def test_a_change_in_words_that_move_a_terminal_moves_none() -> None:
    change("new\x1b[2Jkernel\nnow", before=MINUTE)
    happen("gpu.xid.79", [GPU])
    account = explain.build_account(Incident.objects.get().pk)
    assert account is not None
    assert "\x1b" not in accounts.format_text(account)
