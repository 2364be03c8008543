"""Lead times: what counts as ended, what still waits, what a dead part and a left-out stage do to
them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.statistics.vendor_statistics import (
    EVERYBODY,
    STAGES,
    compute_lead_times,
    format_stage,
    iterate_spans,
)
from incidents.vendor import cases
from incidents.vendor.cases import Facts, Opened
from incidents.vocabulary.vendor_states import CaseState, Move
from tests.builders import GPU, NOW, OTHER_GPU, a_node, an_incident

DAY = timedelta(days=1)
Q = CaseState


def way(*steps: tuple[str, CaseState, int]) -> list[tuple[str, str, object]]:
    return [(what, state.value, NOW + days * DAY) for what, state, days in steps]


def told(*steps: tuple[str, CaseState, int], until: int) -> set[tuple[str, str, float, bool]]:
    found = iterate_spans(way(*steps), NOW + until * DAY)  # type: ignore[arg-type]
    return {(span.stage[0].value, span.stage[1].value, span.days, span.has_ended) for span in found}


def test_each_stage_counts_from_its_beginning() -> None:
    assert told(
        ("open", Q.OPENED, 0),
        ("ship", Q.SHIPPED, 2),
        ("receive", Q.RECEIVED, 9),
        ("install", Q.INSTALLED, 10),
        ("verify", Q.VERIFIED, 11),
        until=99,
    ) == {
        ("opened", "shipped", 2.0, True),
        ("shipped", "received", 7.0, True),
        ("received", "installed", 1.0, True),
        ("installed", "verified", 1.0, True),
        ("opened", "verified", 11.0, True),
    }


def test_what_has_not_ended_still_waits() -> None:
    assert told(("open", Q.OPENED, 0), ("ship", Q.SHIPPED, 2), until=5) == {
        ("opened", "shipped", 2.0, True),
        ("shipped", "received", 3.0, False),
        ("opened", "verified", 5.0, False),
    }


def test_a_stage_that_nobody_told_of_has_no_length() -> None:
    assert told(("open", Q.OPENED, 0), ("install", Q.INSTALLED, 4), until=5) == {
        ("installed", "verified", 1.0, False),
        ("opened", "verified", 5.0, False),
    }


def test_a_dead_part_begins_its_way_anew_and_the_whole_goes_on() -> None:
    assert told(
        ("open", Q.OPENED, 0),
        ("ship", Q.SHIPPED, 1),
        ("receive", Q.RECEIVED, 3),
        ("dead_on_arrival", Q.SHIPPED, 4),
        ("receive", Q.RECEIVED, 9),
        until=10,
    ) == {
        ("shipped", "received", 2.0, True),
        ("shipped", "received", 5.0, True),
        ("received", "installed", 1.0, False),
        ("opened", "shipped", 1.0, True),
        ("opened", "verified", 10.0, False),
    }


def test_what_was_closed_waits_no_longer() -> None:
    assert told(("open", Q.OPENED, 0), ("close", Q.CLOSED, 3), until=99) == {
        ("opened", "shipped", 3.0, False),
        ("opened", "verified", 3.0, False),
    }


@pytest.mark.django_db
def test_vendors_and_parts_are_told_apart_with_everybody_first() -> None:
    a_node()
    for resource, vendor, days in ((GPU, "Supermicro", 2), (OTHER_GPU, "Dell", 6)):
        incident = an_incident(resource=resource)
        opened = cases.open_case(incident.pk, actor="ada", now=NOW, facts=Facts(vendor=vendor))
        assert isinstance(opened, Opened)
        cases.move(opened.case_id, Move.SHIP, actor="ada", now=NOW + days * DAY)
    rows = compute_lead_times(NOW + 9 * DAY)
    assert [(row.vendor, row.part, row.cases) for row in rows] == [
        (EVERYBODY, EVERYBODY, 2),
        ("Dell", "gpu", 1),
        ("Supermicro", "gpu", 1),
    ]
    shipped = rows[0].stages[0]
    assert (shipped.median_days.value, shipped.ended, shipped.count) == (2.0, 2, 2)
    assert format_stage(rows[2].stages[0]).endswith(", 1 of 1")
    assert format_stage(rows[0].stages[1]) == "not reached, 0 of 2"
    assert format_stage(rows[0].stages[2]) == "-"


@pytest.mark.django_db
def test_without_a_case_nothing_is_claimed() -> None:
    (row,) = compute_lead_times(NOW)
    assert (row.cases, [format_stage(stage) for stage in row.stages]) == (0, ["-"] * len(STAGES))
