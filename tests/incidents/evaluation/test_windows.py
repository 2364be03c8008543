"""Which window keeps which fault from people, and which windows may be made."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from incidents.evaluation.windows import (
    LONGEST_WITHOUT_REVIEW,
    REVIEW_DUE,
    SETTLING,
    Draft,
    DraftField,
    Judgement,
    Kept,
    KnownNames,
    Nothing,
    Outside,
    Window,
    WindowKind,
    WindowPlace,
    format_extent,
    get_review_time,
    judge,
    list_problems,
)
from incidents.models import Silence
from tests.builders import NOW

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
KNOWN = KnownNames(
    frozenset({"node/gn001", "node/gn002", "node/mt001", "switch/leaf-01", "site/slurm/job/77"}),
    frozenset(
        {"gpu.xid.79", "gpu.xid.48", "nic.link.down", "nic.link.flapping", "switch.port.down"}
    ),
)


def a_window(**values: Any) -> Window:
    defaults: dict[str, Any] = {
        "key": 1,
        "kind": WindowKind.SILENCE,
        "reason": "tray out",
        "author": "ada",
        "starts_at": NOW - HOUR,
        "ends_at": NOW + HOUR,
    }
    return Window(**{**defaults, **values})


def a_draft(**values: Any) -> Draft:
    defaults: dict[str, Any] = {
        "kind": WindowKind.SILENCE,
        "reason": "tray out",
        "starts_at": NOW,
        "ends_at": NOW + HOUR,
    }
    if "resource" not in values and "machines" not in values:
        defaults["resource"] = "node/gn001"
    return Draft(**{**defaults, **values})


def test_the_kinds_are_those_of_the_table() -> None:
    assert {kind.value for kind in WindowKind} == set(Silence.Kind.values)


@pytest.mark.parametrize(
    ("pattern", "resource", "is_covered"),
    [
        ("node/gn042", "node/gn042", True),
        ("node/gn042", "node/gn042/gpu/0000:9b:00.0", True),
        ("node/gn042", "node/gn0421", False),
        ("node/gn04?", "node/gn042/nic/mlx5_0", True),
        ("node/gn0*", "node/gn142", False),
        ("node/gn042/gpu/*", "node/gn042/gpu/0000:9b:00.0", True),
        ("node/gn042/gpu/*", "node/gn042/nic/mlx5_0", False),
        ("node/gn042/gpu/*", "node/gn042", False),
        ("switch/leaf-0[1-3]", "switch/leaf-02/port/Ethernet64", True),
        ("switch/leaf-01/port/Ethernet6", "switch/leaf-01/port/Ethernet64", False),
        ("site/slurm/job/7_[1-4]", "site/slurm/job/7_[1-4]", True),
        ("", "node/gn042", True),
    ],
)
def test_a_pattern_covers_what_it_names_and_its_parts(
    pattern: str, resource: str, is_covered: bool
) -> None:
    assert a_window(resource=pattern).covers(WindowPlace("gpu.xid.79", resource)) is is_covered


@pytest.mark.parametrize(
    ("pattern", "fault_type", "is_covered"),
    [
        ("", "gpu.xid.79", True),
        ("gpu.xid.79", "gpu.xid.79", True),
        ("gpu.xid.7", "gpu.xid.79", False),
        ("gpu.*", "gpu.xid.79", True),
        ("nic.*", "gpu.xid.79", False),
    ],
)
def test_a_type_pattern_covers_the_types_that_it_matches(
    pattern: str, fault_type: str, is_covered: bool
) -> None:
    window = a_window(resource="node/gn042", fault_type=pattern)
    assert window.covers(WindowPlace(fault_type, "node/gn042")) is is_covered


def test_maintenance_covers_the_parts_of_its_machines_and_the_far_ends_of_their_cables() -> None:
    window = a_window(kind=WindowKind.MAINTENANCE, machines=frozenset({"node/gn042"}))
    port = "switch/leaf-01/port/Ethernet0"
    assert window.covers(WindowPlace("gpu.xid.79", "node/gn042/gpu/0000:9b:00.0"))
    assert window.covers(WindowPlace("switch.port.down", port, far_end="node/gn042/nic/mlx5_0"))
    assert not window.covers(WindowPlace("switch.port.down", port, far_end="node/gn043/nic/mlx5_0"))
    assert not window.covers(WindowPlace("switch.port.down", port))


def test_nothing_hides_the_question_whether_a_window_is_still_right() -> None:
    assert not a_window(resource="*").covers(WindowPlace(REVIEW_DUE, "kintsugi/window-1"))


@pytest.mark.parametrize(
    ("at", "is_in_force"),
    [(-2 * HOUR, False), (-HOUR, True), (timedelta(0), True), (HOUR, False), (2 * HOUR, False)],
)
def test_a_window_is_in_force_from_its_start_and_no_longer_at_its_end(
    at: timedelta, is_in_force: bool
) -> None:
    assert a_window().is_in_force(NOW + at) is is_in_force


def test_a_window_that_was_ended_is_not_in_force_before_its_time_has_passed() -> None:
    assert not a_window(ended_at=NOW - timedelta(minutes=1)).is_in_force(NOW)


def test_an_incident_is_kept_when_its_faults_are_covered_by_different_windows() -> None:
    one, two = a_window(key=1, resource="node/gn001"), a_window(key=2, resource="switch/leaf-01")
    places = [
        WindowPlace("nic.link.down", "node/gn001"),
        WindowPlace("switch.port.down", "switch/leaf-01/port/Ethernet0"),
    ]
    assert judge(places, [two, one], NOW) == Kept(one)


def test_an_incident_is_told_when_one_standing_fault_is_outside() -> None:
    places = [
        WindowPlace("nic.link.down", "node/gn001"),
        WindowPlace("nic.link.down", "node/gn002"),
    ]
    assert judge(places, [a_window(resource="node/gn001")], NOW) == Outside(1)


def test_an_incident_is_told_when_its_window_is_over() -> None:
    assert judge(
        [WindowPlace("nic.link.down", "node/gn001")], [a_window(resource="node/gn001")], NOW + HOUR
    ) == Outside(0)


SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("kind", "since", "after_end", "judged"),
    [
        (WindowKind.MAINTENANCE, timedelta(0), timedelta(0), Kept(None)),
        (WindowKind.MAINTENANCE, -HOUR, SETTLING - SECOND, Kept(None)),
        (WindowKind.MAINTENANCE, timedelta(0), SETTLING, Outside(0)),
        (WindowKind.MAINTENANCE, -HOUR - SECOND, timedelta(0), Outside(0)),
        (WindowKind.MAINTENANCE, None, timedelta(0), Outside(0)),
        (WindowKind.SILENCE, timedelta(0), timedelta(0), Outside(0)),
    ],
)
def test_what_a_boot_brought_during_a_maintenance_waits_for_ten_minutes_after_it(
    kind: WindowKind, since: timedelta | None, after_end: timedelta, judged: Judgement
) -> None:
    """The window begins an hour before NOW and ends an hour after it."""
    began_at = NOW + since if since is not None else None
    place = WindowPlace("nic.link.down", "node/gn001", may_pass_since=began_at)
    window = a_window(kind=kind, machines=frozenset({"node/gn001"}))
    assert judge([place], [window], NOW + HOUR + after_end) == judged


def test_nothing_changes_when_nothing_stands() -> None:
    assert judge([], [a_window(resource="node/gn001")], NOW) == Nothing()


def test_people_are_told_of_the_window_that_lasts_longest() -> None:
    short, long = (
        a_window(key=1, resource="node/*"),
        a_window(key=2, resource="node/*", ends_at=NOW + DAY),
    )
    endless = a_window(key=3, resource="node/*", ends_at=None)
    place = WindowPlace("nic.link.down", "node/gn001")
    assert judge([place], [short, long], NOW) == Kept(long)
    assert judge([place], [endless, short, long], NOW) == Kept(endless)


def fields(draft: Draft, now: datetime = NOW) -> set[DraftField]:
    return {problem.field for problem in list_problems(draft, KNOWN, now)}


@pytest.mark.parametrize(
    "draft",
    [
        a_draft(),
        a_draft(resource="node/gn0*"),
        a_draft(resource="node/gn001/gpu/0000:19:00.0"),
        a_draft(resource="node/gn001/*"),
        a_draft(resource="site/slurm/job/77"),
        a_draft(resource="", fault_type="nic.link.*"),
        a_draft(resource="node/gn001", fault_type="gpu.*"),
        a_draft(kind=WindowKind.MAINTENANCE, machines=("node/gn001", "switch/leaf-01")),
        a_draft(
            kind=WindowKind.SHELF, fault_type="gpu.xid.48", ends_at=None, review_at=NOW + 30 * DAY
        ),
        a_draft(resource="*", may_cover_all=True),
        a_draft(starts_at=NOW - DAY),
        a_draft(ends_at=NOW + 90 * DAY),
    ],
)
def test_a_window_can_be_made_when_it_says_what_and_until_when(draft: Draft) -> None:
    assert list_problems(draft, KNOWN, NOW) == []


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (a_draft(reason="  "), DraftField.REASON),
        (a_draft(resource="", fault_type=""), DraftField.WHERE),
        (a_draft(resource="node/xx*"), DraftField.WHERE),
        (a_draft(resource="gn001"), DraftField.WHERE),
        (a_draft(resource="node/gn001/gqu/0000:19:00.0"), DraftField.WHERE),
        (a_draft(fault_type="gpu.xyz"), DraftField.FAULT_TYPE),
        (a_draft(ends_at=None), DraftField.ENDS_AT),
        (a_draft(ends_at=NOW), DraftField.ENDS_AT),
        (a_draft(starts_at=NOW + 2 * HOUR), DraftField.ENDS_AT),
        (a_draft(starts_at=NOW - DAY, ends_at=NOW - HOUR), DraftField.ENDS_AT),
        (a_draft(ends_at=None, review_at=NOW - HOUR), DraftField.REVIEW_AT),
        (a_draft(ends_at=None, review_at=NOW + 31 * DAY), DraftField.REVIEW_AT),
        (a_draft(review_at=NOW + 2 * HOUR), DraftField.REVIEW_AT),
        (a_draft(resource="*"), DraftField.EVERYTHING),
        (a_draft(resource="", fault_type="*"), DraftField.EVERYTHING),
        (a_draft(resource="*/*", fault_type="*.*"), DraftField.EVERYTHING),
        (a_draft(kind=WindowKind.SHELF, resource="node/gn001"), DraftField.FAULT_TYPE),
        (a_draft(kind=WindowKind.MAINTENANCE, machines=()), DraftField.WHERE),
        (a_draft(kind=WindowKind.MAINTENANCE, machines=("node/gn009",)), DraftField.WHERE),
        (
            a_draft(kind=WindowKind.MAINTENANCE, machines=("node/gn001",), ends_at=None),
            DraftField.ENDS_AT,
        ),
        (
            a_draft(
                kind=WindowKind.MAINTENANCE,
                machines=("node/gn001", "node/gn002", "node/mt001", "switch/leaf-01"),
            ),
            DraftField.EVERYTHING,
        ),
    ],
)
def test_a_window_is_refused_with_the_field_that_is_wrong(draft: Draft, field: DraftField) -> None:
    assert fields(draft) == {field}


def test_a_type_that_lacks_its_star_is_told_of_it() -> None:
    (problem,) = list_problems(a_draft(fault_type="nic.link"), KNOWN, NOW)
    assert problem.text == "The catalogue has no fault type nic.link; nic.link.* would match."


@pytest.mark.parametrize(
    ("draft", "review_at"),
    [
        (a_draft(), None),
        (a_draft(ends_at=NOW + LONGEST_WITHOUT_REVIEW), None),
        (a_draft(ends_at=NOW + 90 * DAY), NOW + 30 * DAY),
        (a_draft(ends_at=None, review_at=NOW + DAY), NOW + DAY),
    ],
)
def test_a_review_is_due_after_thirty_days_at_the_latest(
    draft: Draft, review_at: datetime | None
) -> None:
    assert get_review_time(draft) == review_at


@pytest.mark.parametrize(
    ("resource", "machines", "fault_type", "text"),
    [
        ("node/gn0*", [], "", "node/gn0*"),
        ("node/gn0*", [], "nic.*", "nic.* on node/gn0*"),
        ("", [], "nic.*", "nic.* everywhere"),
        ("", ["node/gn001", "switch/leaf-01"], "", "gn001, leaf-01"),
        ("", [f"node/gn{n:03}" for n in range(1, 6)], "", "gn001, gn002, gn003 and 2 more"),
    ],
)
def test_a_window_says_what_it_covers(
    resource: str, machines: list[str], fault_type: str, text: str
) -> None:
    assert format_extent(resource, machines, fault_type) == text
