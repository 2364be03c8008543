"""What jobs need, as squeue tells it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runbooks.slurm.demands import Demand, get_largest, parse_demands

TOLD = """17|RUNNING|64|gpu|None
18|PENDING|98|gpu|Resources
19|PENDING|4|gpu,debug|Priority
20|PENDING|100|gpu|JobHeldUser
"""


def test_jobs_are_told_with_their_nodes_and_partitions() -> None:
    assert parse_demands(TOLD) == [
        Demand("17", 64, ("gpu",), is_running=True),
        Demand("18", 98, ("gpu",), is_running=False),
        Demand("19", 4, ("gpu", "debug"), is_running=False),
    ]


def test_a_job_that_somebody_holds_needs_nothing_now() -> None:
    assert "20" not in {demand.job_id for demand in parse_demands(TOLD)}


def test_of_each_partition_the_largest_that_runs_and_the_largest_that_waits_are_kept() -> None:
    small = [Demand("1", 2, ("gpu",), is_running=True), Demand("2", 3, ("gpu",), is_running=False)]
    assert {one.job_id for one in get_largest([*small, *parse_demands(TOLD)])} == {"17", "18", "19"}


@given(st.text(alphabet="0123456789|RUNNIG,PED \n\u0660", max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert all(demand.nodes >= 0 for demand in parse_demands(text))
