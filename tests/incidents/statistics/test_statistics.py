"""Rows into numbers: what counts as a failure, whose hours, and what people are told."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django import DjangoAssertNumQueries

from detectors.faults import Component, Recovery
from incidents.models import Gpu, Node, Silence, Switch
from incidents.reliability import texts as words
from incidents.reliability.estimates import Direction
from incidents.reliability.proportions import Estimate
from incidents.reliability.summary import Figures
from incidents.statistics import statistics
from incidents.vocabulary.lifecycle import State
from tests.builders import a_fault
from tests.incidents.builders import an_incident

pytestmark = pytest.mark.django_db
SINCE = datetime(2025, 1, 1, tzinfo=UTC)
UNTIL = SINCE + timedelta(hours=1000)


def _at(hours: float) -> datetime:
    return SINCE + timedelta(hours=hours)


def _failure(hours: float, *, lasts: float | None = 2.0, **changes: Any) -> None:
    restored = None if lasts is None else _at(hours + lasts)
    values = {
        "onset_at": _at(hours),
        "opened_at": _at(hours),
        "restored_at": restored,
        "state": State.RESOLVED,
    }
    an_incident(**{**values, **changes})


def _class(name: Component) -> Figures:
    return next(
        row for row in statistics.compute_summary(SINCE, UNTIL).classes if row.component == name
    )


@pytest.fixture
def fleet() -> None:
    nodes = Node.objects.bulk_create(
        [Node(name=f"gn{i:03}", in_service_since=SINCE) for i in range(40, 50)]
    )
    Gpu.objects.bulk_create(
        [Gpu(node=n, index=i, pci_address=f"0000:{i:02x}:00.0") for n in nodes for i in range(8)]
    )
    Node.objects.create(name="stranger", is_provisional=True)
    Switch.objects.bulk_create([Switch(name=f"leaf-{i:02}", role="leaf") for i in range(4)])
    Switch.objects.bulk_create([Switch(name=f"sto-{i:02}", role="storage") for i in range(2)])
    Switch.objects.create(name="mgmt-01", role="management")


@pytest.mark.usefixtures("fleet")
def test_a_class_without_failures_has_a_bound_and_says_so() -> None:
    row = _class(Component.GPU)
    assert row.mtbf == Estimate(None, pytest.approx(10_000 / 2.9957, rel=1e-4), None)
    assert (
        row.sentence
        == "No failures in 10,000 node-hours (80,000 GPU-hours): MTBF above 3,338 h (95 %)."
    )


@pytest.mark.usefixtures("fleet")
def test_each_class_is_measured_in_its_own_machines_hours() -> None:
    rows = {
        row.component: (row.unit.hours, row.units, row.exposure)
        for row in statistics.compute_summary(SINCE, UNTIL).classes
    }
    assert rows["gpu"] == ("node-hours", 10, pytest.approx(10_000))
    assert rows["interconnect_switch"] == ("switch-hours", 4, pytest.approx(4_000))
    assert rows["storage_switch"] == ("switch-hours", 2, pytest.approx(2_000))


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("state", [State.FALSE_POSITIVE, State.DUPLICATE])
def test_an_incident_that_was_no_failure_counts_for_none(state: State) -> None:
    _failure(10, state=state)
    assert statistics.compute_summary(SINCE, UNTIL).overall.failures == 0


@pytest.mark.usefixtures("fleet")
def test_only_onsets_inside_the_window_count() -> None:
    for hours in (-1, 0, 999, 1000):
        _failure(hours)
    assert statistics.compute_summary(SINCE, UNTIL).overall.failures == 2


@pytest.mark.usefixtures("fleet")
def test_mttf_leaves_out_the_hours_a_node_was_out_of_service() -> None:
    _failure(100, lasts=200, out_of_service_at=_at(100))
    _failure(150, lasts=50, out_of_service_at=_at(150), component=Component.NVLINK)
    row = _class(Component.GPU)
    assert row.mtbf.value == pytest.approx(10_000)
    assert row.mttf.value == pytest.approx(10_000 - 200, abs=0.01)


@pytest.mark.usefixtures("fleet")
def test_what_was_over_before_the_window_changes_none_of_its_numbers() -> None:
    _failure(-30, lasts=50, out_of_service_at=_at(-30), closed_at=_at(25))
    _failure(-10, lasts=None, out_of_service_at=_at(-10), state=State.OPEN)
    _failure(100, lasts=200, out_of_service_at=_at(100), closed_at=_at(400))
    before = statistics.compute_summary(SINCE, UNTIL)
    for hours in range(-2000, -100, 100):
        _failure(hours, lasts=20, out_of_service_at=_at(hours), closed_at=_at(hours + 30))
    assert statistics.compute_summary(SINCE, UNTIL) == before
    assert before.overall.up == before.overall.exposure - 1000  # that which began before is out


@pytest.mark.usefixtures("fleet")
def test_an_open_incident_is_censored_at_the_windows_end() -> None:
    for hours in (10, 20, 30):
        _failure(hours, lasts=1)
    _failure(900, lasts=None, state=State.OPEN)
    row = statistics.compute_summary(SINCE, UNTIL).overall
    assert row.open == 1
    assert row.restore_median.value == pytest.approx(1, abs=1e-3)
    assert row.mttr.value == pytest.approx((3 * 1 + 100) / 4, abs=1e-3)
    assert row.horizon == pytest.approx(100, abs=1e-3)
    assert "1 still open" in row.sentence


@pytest.mark.usefixtures("fleet")
def test_a_repair_that_ended_later_is_open_in_an_earlier_window() -> None:
    _failure(990, lasts=20)
    assert statistics.compute_summary(SINCE, UNTIL).overall.open == 1
    assert statistics.compute_summary(SINCE, UNTIL + timedelta(hours=20)).overall.open == 0


@pytest.mark.usefixtures("fleet")
def test_detection_and_acknowledgement_are_told_apart() -> None:
    _failure(10, opened_at=_at(10.5), acknowledged_at=_at(11))
    _failure(20, opened_at=_at(19.9))
    row = statistics.compute_summary(SINCE, UNTIL).overall
    assert row.mttd.mean == pytest.approx(0.25, abs=1e-3), (
        "a device's clock that runs ahead detects at once"
    )
    assert (row.mtta.mean, row.mtta.count) == (pytest.approx(0.5, abs=1e-3), 1)


@pytest.mark.usefixtures("fleet")
def test_detection_by_a_poll_is_an_interval_from_its_last_good_look() -> None:
    _failure(10, last_known_good_at=_at(4))  # six hours without a look
    _failure(20)
    row = statistics.compute_summary(SINCE, UNTIL).overall
    assert row.mttd.mean == pytest.approx(0, abs=1e-3)
    assert (row.mttd_most.mean, row.mttd_most.count) == (pytest.approx(6, abs=1e-3), 1)
    assert "0 s, of 1 polled at most 6.0 h" in _run(
        "--since", "2025-01-01", "--until", "2025-02-01"
    )


@pytest.mark.usefixtures("fleet")
def test_failures_are_counted_by_month_and_by_what_cured_them() -> None:
    _failure(10, recovery=Recovery.NODE_RESTART)
    _failure(20, recovery=Recovery.NODE_RESTART)
    _failure(31 * 24, recovery=Recovery.VENDOR_REPLACEMENT)
    row = statistics.compute_summary(SINCE, UNTIL).overall
    assert row.by_month == {"2025-01": 2, "2025-02": 1}
    assert row.by_recovery == {"node_restart": 2, "vendor_replacement": 1}


@pytest.mark.usefixtures("fleet")
def test_a_trend_is_told_beside_the_mean() -> None:
    for hours in (1, 5, 10, 15, 20):
        _failure(hours)
    row = statistics.compute_summary(SINCE, UNTIL).overall
    assert row.trend.direction is Direction.FALLING
    assert "becoming rarer" in row.sentence
    assert "rarer, Laplace -" in _run("--since", "2025-01-01", "--until", "2025-02-11")


@pytest.mark.usefixtures("fleet")
def test_a_sentence_for_people_has_no_test_statistic() -> None:
    for hours in (1, 5, 10, 15, 20):
        _failure(hours)
    sentence = statistics.compute_summary(SINCE, UNTIL).overall.sentence
    assert "Laplace" not in sentence
    assert not re.search(r"\bp \d", sentence)


def test_a_new_fleet_shows_no_trend_for_the_days_before_it_was_there() -> None:
    begun = SINCE + timedelta(days=70)
    Node.objects.bulk_create([Node(name=f"gn{i:03}", in_service_since=begun) for i in range(100)])
    for day in range(1, 20, 2):
        _failure(24 * (70 + day), owner=f"node/gn{day:03}")
    row = statistics.compute_summary(SINCE, SINCE + timedelta(days=90)).overall
    assert row.trend.direction is Direction.NONE


@pytest.mark.usefixtures("fleet")
def test_where_nothing_is_restored_yet_the_longest_is_told_and_no_mean() -> None:
    _failure(990, lasts=None, state=State.OPEN)
    _failure(999.5, lasts=None, state=State.OPEN)
    row = statistics.compute_summary(SINCE, UNTIL).overall
    assert (row.restored, row.open) == (0, 2)
    assert row.longest_open == pytest.approx(10, abs=1e-3)
    assert row.mttr == row.restore_median == Estimate(None, None, None)
    assert "None is restored yet, the longest for 10.0 h." in row.sentence
    assert words.repair_time(row, row.mttr) == "none restored yet, longest 10.0 h"


# What is no failure of the cluster
# ---------------------------------------------------------------------------


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("kintsugi", {"fault_type": "kintsugi.breaker_tripped", "owner": "site/breaker"}),
        ("kintsugi", {"fault_type": "detector.blind", "owner": "site/dcgm"}),
        ("program", {"fault_type": "job.application_failed", "owner": "site/slurm"}),
        ("program", {"fault_type": "job.stalled", "owner": "site/slurm"}),
        ("program", {"fault_type": "report.user", "has_platform_signal": False}),
        ("provisional", {"owner": "node/stranger"}),
    ],
)
def test_what_is_no_failure_of_the_cluster_is_left_out_and_counted_by_its_reason(
    reason: str, changes: dict[str, Any]
) -> None:
    _failure(10)
    _failure(20, **changes)
    summary = statistics.compute_summary(SINCE, UNTIL)
    assert summary.overall.failures == 1
    assert sum(row.failures for row in summary.classes) == 1
    assert summary.left_out == {reason: 1}
    assert "Not counted: 1 " in words.format_left_out(summary.left_out)


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize(
    "changes",
    [
        {"fault_type": "job.node_fail"},
        {"fault_type": "report.user", "has_platform_signal": False, "is_confirmed": True},
        {
            "fault_type": "report.user",
            "has_platform_signal": False,
            "recovery": Recovery.NODE_RESTART,
        },
        {"fault_type": "target.unreachable"},
        {"fault_type": "facility.power.degraded", "owner": "rack/r01"},
    ],
)
def test_what_people_confirmed_or_cured_and_what_slurm_lost_is_a_failure(
    changes: dict[str, Any],
) -> None:
    _failure(10, **changes)
    summary = statistics.compute_summary(SINCE, UNTIL)
    assert (summary.overall.failures, summary.left_out) == (1, {})


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize(("announced", "counted"), [(None, 0), (12.0, 1)])
def test_planned_work_is_left_out_unless_its_fault_outlasted_it(
    announced: float | None, counted: int
) -> None:
    window = Silence.objects.create(
        kind="maintenance",
        reason="firmware",
        author="ann",
        starts_at=_at(5),
        ends_at=_at(12),
        recorded_at=_at(1),
    )
    _failure(10, silence=window, announced_at=None if announced is None else _at(announced))
    summary = statistics.compute_summary(SINCE, UNTIL)
    assert summary.overall.failures == counted
    assert summary.left_out == ({} if counted else {"planned": 1})


@pytest.mark.usefixtures("fleet")
def test_a_silence_that_is_no_maintenance_leaves_nothing_out() -> None:
    window = Silence.objects.create(
        kind="silence",
        reason="noisy",
        author="ann",
        starts_at=_at(5),
        ends_at=_at(12),
        recorded_at=_at(1),
    )
    _failure(10, silence=window)
    assert statistics.compute_summary(SINCE, UNTIL).overall.failures == 1


# Faults that end by going quiet
# ---------------------------------------------------------------------------


def _quiet(hours: float, *, seen_for: float = 0.0, **changes: Any) -> None:
    """An incident whose root went quiet: it "ended" when it was last seen."""
    fault = a_fault(
        "switch.rebooted",
        "switch/leaf-01",
        at=_at(hours),
        qualifier=f"{hours}",
        last_seen_at=_at(hours + seen_for),
    )
    values = {
        "fault_type": "switch.rebooted",
        "component": "interconnect_switch",
        "owner": "switch/leaf-01",
    }
    _failure(hours, **{"lasts": seen_for, "root_fault": fault, **values, **changes})


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("seen_for", [0.0, 0.0006])
def test_a_repair_of_which_only_the_last_sight_is_known_is_no_time_to_restore_and_is_counted(
    seen_for: float,
) -> None:
    _quiet(10, seen_for=seen_for)
    _quiet(20, seen_for=seen_for)
    _failure(30, lasts=3, component="interconnect_switch", owner="switch/leaf-01")
    row = _class(Component.INTERCONNECT_SWITCH)
    assert (row.failures, row.restored, row.quiet, row.open) == (3, 1, 2, 0)
    assert row.restore_median.value == pytest.approx(3, abs=1e-3)
    assert "2 went quiet, so that nobody knows when service was back." in row.sentence


@pytest.mark.usefixtures("fleet")
def test_a_quiet_fault_whose_end_is_known_otherwise_counts() -> None:
    _quiet(10, lasts=0.02)  # its links were back 72 s after it was last seen
    row = _class(Component.INTERCONNECT_SWITCH)
    assert (row.restored, row.quiet) == (1, 0)
    assert row.restore_median.value == pytest.approx(0.02, abs=1e-4)


@pytest.mark.usefixtures("fleet")
def test_a_class_of_which_all_went_quiet_has_no_time_to_restore() -> None:
    _quiet(10)
    row = _class(Component.INTERCONNECT_SWITCH)
    assert row.mttr == Estimate(None, None, None)
    assert words.repair_time(row, row.mttr) == "not known"


@pytest.mark.usefixtures("fleet")
def test_the_number_of_queries_is_fixed(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for hours in range(30):
        _failure(hours)
    with django_assert_num_queries(8):
        statistics.compute_summary(SINCE, UNTIL)


def test_it_says_what_to_do_when_there_is_no_inventory() -> None:
    _failure(10)
    summary = statistics.compute_summary(SINCE, UNTIL)
    assert "inventory import" in summary.notice
    assert summary.overall.mtbf == Estimate(None, None, None)
    assert summary.overall.sentence.startswith("1 failure; no nodes in the inventory, so no rate.")


def test_nothing_fails_when_the_database_is_empty() -> None:
    summary = statistics.compute_summary(None, UNTIL)
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
    assert set(found) == {
        *(
            "since",
            "until",
            "confidence",
            "notice",
            "left_out",
            "all",
            "classes",
            "impact",
            "definitions",
        )
    }
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
        (["--until", "2999-01-01"], "lies in the future: leave it out"),
        (["--since", "2025-01-01", "--until", "2999-01-01", "--json"], "lies in the future"),
    ],
)
def test_a_wrong_date_is_refused_with_what_was_expected(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        _run(*arguments)
