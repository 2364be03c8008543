"""Rows into numbers: what counts as a failure, whose hours, and what people are told."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django import DjangoAssertNumQueries

from detectors.faults import Component, Recovery
from incidents import statistics
from incidents.lifecycle import State
from incidents.models import Gpu, Node, Switch
from incidents.reliability import Direction, Estimate
from incidents.reliability_summary import Figures
from tests.incidents.builders import an_incident

pytestmark = pytest.mark.django_db
SINCE = datetime(2025, 1, 1, tzinfo=UTC)
UNTIL = SINCE + timedelta(hours=1000)


def _at(hours: float) -> datetime:
    return SINCE + timedelta(hours=hours)


def _failure(hours: float, *, lasts: float | None = 2.0, **changes: Any) -> None:
    restored = None if lasts is None else _at(hours + lasts)
    values = {"onset_at": _at(hours), "opened_at": _at(hours), "restored_at": restored, "state": State.RESOLVED}
    an_incident(**{**values, **changes})


def _class(name: Component) -> Figures:
    return next(row for row in statistics.summary(SINCE, UNTIL).classes if row.component == name)


@pytest.fixture
def fleet() -> None:
    nodes = Node.objects.bulk_create([Node(name=f"gn{i:03}", in_service_since=SINCE) for i in range(40, 50)])
    Gpu.objects.bulk_create([Gpu(node=n, index=i, pci_address=f"0000:{i:02x}:00.0") for n in nodes for i in range(8)])
    Node.objects.create(name="stranger", is_provisional=True)
    Switch.objects.bulk_create([Switch(name=f"leaf-{i:02}", role="leaf") for i in range(4)])
    Switch.objects.bulk_create([Switch(name=f"sto-{i:02}", role="storage") for i in range(2)])
    Switch.objects.create(name="mgmt-01", role="management")


@pytest.mark.usefixtures("fleet")
def test_a_class_without_failures_has_a_bound_and_says_so() -> None:
    row = _class(Component.GPU)
    assert row.mtbf == Estimate(None, pytest.approx(10_000 / 2.9957, rel=1e-4), None)
    assert row.sentence == "No failures in 10,000 node-hours (80,000 GPU-hours): MTBF above 3,338 h (95 %)."


@pytest.mark.usefixtures("fleet")
def test_each_class_is_measured_in_its_own_machines_hours() -> None:
    rows = {
        row.component: (row.unit.hours, row.units, row.exposure) for row in statistics.summary(SINCE, UNTIL).classes
    }
    assert rows["gpu"] == ("node-hours", 10, pytest.approx(10_000))
    assert rows["interconnect_switch"] == ("switch-hours", 4, pytest.approx(4_000))
    assert rows["storage_switch"] == ("switch-hours", 2, pytest.approx(2_000))


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("state", [State.FALSE_POSITIVE, State.DUPLICATE])
def test_an_incident_that_was_no_failure_counts_for_none(state: State) -> None:
    _failure(10, state=state)
    assert statistics.summary(SINCE, UNTIL).overall.failures == 0


@pytest.mark.usefixtures("fleet")
def test_only_onsets_inside_the_window_count() -> None:
    for hours in (-1, 0, 999, 1000):
        _failure(hours)
    assert statistics.summary(SINCE, UNTIL).overall.failures == 2


@pytest.mark.usefixtures("fleet")
def test_mttf_leaves_out_the_hours_a_node_was_out_of_service() -> None:
    _failure(100, lasts=200, out_of_service_at=_at(100))
    _failure(150, lasts=50, out_of_service_at=_at(150), component=Component.NVLINK)
    row = _class(Component.GPU)
    assert row.mtbf.value == pytest.approx(10_000)
    assert row.mttf.value == pytest.approx(10_000 - 200, abs=0.01)


@pytest.mark.usefixtures("fleet")
def test_an_open_incident_is_censored_at_the_windows_end() -> None:
    for hours in (10, 20, 30):
        _failure(hours, lasts=1)
    _failure(900, lasts=None, state=State.OPEN)
    row = statistics.summary(SINCE, UNTIL).overall
    assert row.open == 1
    assert row.restore_median.value == pytest.approx(1, abs=1e-3)
    assert row.mttr.value == pytest.approx((3 * 1 + 100) / 4, abs=1e-3)
    assert row.horizon == pytest.approx(100, abs=1e-3)
    assert "1 still open" in row.sentence


@pytest.mark.usefixtures("fleet")
def test_a_repair_that_ended_later_is_open_in_an_earlier_window() -> None:
    _failure(990, lasts=20)
    assert statistics.summary(SINCE, UNTIL).overall.open == 1
    assert statistics.summary(SINCE, UNTIL + timedelta(hours=20)).overall.open == 0


@pytest.mark.usefixtures("fleet")
def test_detection_and_acknowledgement_are_told_apart() -> None:
    _failure(10, opened_at=_at(10.5), acknowledged_at=_at(11))
    _failure(20, opened_at=_at(19.9))
    row = statistics.summary(SINCE, UNTIL).overall
    assert row.mttd.mean == pytest.approx(0.25, abs=1e-3), "a device's clock that runs ahead detects at once"
    assert (row.mtta.mean, row.mtta.count) == (pytest.approx(0.5, abs=1e-3), 1)


@pytest.mark.usefixtures("fleet")
def test_failures_are_counted_by_month_and_by_what_cured_them() -> None:
    _failure(10, recovery=Recovery.NODE_RESTART)
    _failure(20, recovery=Recovery.NODE_RESTART)
    _failure(31 * 24, recovery=Recovery.VENDOR_REPLACEMENT)
    row = statistics.summary(SINCE, UNTIL).overall
    assert row.by_month == {"2025-01": 2, "2025-02": 1}
    assert row.by_recovery == {"node_restart": 2, "vendor_replacement": 1}


@pytest.mark.usefixtures("fleet")
def test_a_trend_is_told_beside_the_mean() -> None:
    for hours in (1, 5, 10, 15, 20):
        _failure(hours)
    row = statistics.summary(SINCE, UNTIL).overall
    assert row.trend.direction is Direction.FALLING
    assert "becoming rarer" in row.sentence
    assert "rarer, p " in _run("--since", "2025-01-01", "--until", "2025-02-11")


@pytest.mark.usefixtures("fleet")
def test_the_number_of_queries_is_fixed(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for hours in range(30):
        _failure(hours)
    with django_assert_num_queries(7):
        statistics.summary(SINCE, UNTIL)


def test_it_says_what_to_do_when_there_is_no_inventory() -> None:
    _failure(10)
    summary = statistics.summary(SINCE, UNTIL)
    assert "inventory import" in summary.notice
    assert summary.overall.mtbf == Estimate(None, None, None)
    assert summary.overall.sentence.startswith("1 failure; no nodes in the inventory, so no rate.")


def test_nothing_fails_when_the_database_is_empty() -> None:
    summary = statistics.summary(None, UNTIL)
    assert (summary.since, summary.until, summary.overall.failures) == (UNTIL, UNTIL, 0)


def _run(*arguments: str) -> str:
    out = StringIO()
    call_command("reliability", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.usefixtures("fleet")
def test_the_page_states_its_definitions_and_its_numbers() -> None:
    _failure(10, recovery=Recovery.NODE_RESTART)
    page = _run("--since", "2025-01-01", "--until", "2025-02-01")
    assert "gpu" in page
    assert "neither false_positive nor duplicate" in " ".join(page.split())
    assert max(map(len, page.splitlines())) <= 120
    assert "7,440 node-hours" in page
    assert "node restart 1" in page


@pytest.mark.usefixtures("fleet")
def test_the_json_has_the_promised_shape() -> None:
    _failure(10)
    found = json.loads(_run("--since", "2025-01-01", "--until", "2025-02-01T00:00+00:00", "--json"))
    assert set(found) == {"since", "until", "confidence", "notice", "all", "classes", "impact", "definitions"}
    gpu = next(row for row in found["classes"] if row["component"] == "gpu")
    assert gpu["failures"] == 1
    assert gpu["mtbf_hours"]["value"] == pytest.approx(7440)
    assert gpu["unit"] == "node-hours"
    assert gpu["trend"] == {"direction": "too_few", "score": None, "p_value": None}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--since", "2025-02-30"], "--since 2025-02-30"),
        (["--until", "yesterday"], "expected a date such as"),
        (["--since", "2025-02-01", "--until", "2025-01-01"], "is not before"),
    ],
)
def test_a_wrong_date_is_refused_with_what_was_expected(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        _run(*arguments)
