"""What jobs need, as squeue tells it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.slurm.demands import Demand, get_largest, parse_demands

TOLD = """17|RUNNING|64|gpu|2025-01-14T03:00:00|None
18|PENDING|98|gpu|2025-01-15T09:30:00|Resources
19|PENDING|4|gpu,debug|N/A|Priority
20|PENDING|100|gpu|N/A|JobHeldUser
"""


def test_jobs_are_told_with_their_nodes_partitions_and_expected_start() -> None:
    expected = datetime(2025, 1, 15, 9, 30, tzinfo=UTC)
    assert parse_demands(TOLD) == [
        Demand("17", 64, ("gpu",), is_running=True),
        Demand("18", 98, ("gpu",), is_running=False, starts_at=expected),
        Demand("19", 4, ("gpu", "debug"), is_running=False),
    ]


@pytest.mark.parametrize(
    "reason",
    [
        *("JobHeldUser", "JobHeldAdmin", "Dependency", "DependencyNeverSatisfied"),
        *("QOSMaxNodePerUserLimit", "AssocGrpNodeLimit", "PartitionTimeLimit", "Licenses"),
        *("JobArrayTaskLimit", "BadConstraints", "BeginTime", "InvalidQOS"),
    ],
)
def test_a_job_that_no_free_node_would_start_needs_nothing_now(reason: str) -> None:
    assert parse_demands(f"20|PENDING|100|gpu|N/A|{reason}") == []


@pytest.mark.parametrize(
    "reason",
    [
        *("Resources", "Priority", "None", "ReqNodeNotAvail, UnavailableNodes:gn001"),
        "Nodes required for job are DOWN, DRAINED or reserved",
    ],
)
def test_a_job_that_waits_for_nodes_needs_them(reason: str) -> None:
    (demand,) = parse_demands(f"20|PENDING|100|gpu|N/A|{reason}")
    assert demand.nodes == 100


def test_a_job_that_waits_for_an_hour_is_told_with_it() -> None:
    (demand,) = parse_demands("20|PENDING|100|gpu|2030-01-01T00:00:00|BeginTime")
    assert demand.starts_at == datetime(2030, 1, 1, tzinfo=UTC)


def test_of_each_partition_the_largest_that_runs_and_the_largest_that_waits_are_kept() -> None:
    small = [Demand("1", 2, ("gpu",), is_running=True), Demand("2", 3, ("gpu",), is_running=False)]
    assert {one.job_id for one in get_largest([*small, *parse_demands(TOLD)])} == {"17", "18", "19"}


@given(st.text(alphabet="0123456789|RUNNIG,PED \n\u0660", max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert all(demand.nodes >= 0 for demand in parse_demands(text))
