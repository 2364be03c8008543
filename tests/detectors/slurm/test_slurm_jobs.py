"""Jobs lost with their node, and whether a node fails more of them than chance explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from detectors.detector import Output, Reading, Target, TargetKind
from detectors.slurm import failure_rate, queries, slurm_jobs
from detectors.slurm.failure_rate import EndedJob
from detectors.slurm.slurm_jobs import SlurmJobsDetector

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
RAISED = 2.0
SITE = Target("slurm", "", kind=TargetKind.SITE)


def job(
    node: str, script: str, *, is_failed: bool = False, user: str = "alice", minutes: int = 60
) -> EndedJob:
    return EndedJob("1", is_failed, NOW - timedelta(minutes=minutes), user, (node,), script)


def a_day(nodes: int, scripts: int, failing: Sequence[tuple[int, int]] = ()) -> list[EndedJob]:
    """Each node runs each script once, for two users by turns; `failing` are (node, script)."""
    return [
        job(
            f"gn{n}",
            f"script{chr(97 + s)}",
            is_failed=(n, s) in failing,
            user=("alice", "bob")[s % 2],
        )
        for n in range(nodes)
        for s in range(scripts)
    ]


@given(st.integers(1, 200), st.integers(0, 200), st.floats(0.001, 0.999))
def test_the_tail_is_that_of_the_binomial_distribution(
    trials: int, least: int, chance: float
) -> None:
    assert math.isclose(
        failure_rate.compute_tail(least, trials, chance),
        float(stats.binom.sf(least - 1, trials, chance)),
        rel_tol=1e-6,
        abs_tol=1e-300,
    )


def test_a_node_on_which_every_script_fails_stands_out() -> None:
    found = failure_rate.compute_excess(
        a_day(100, 6, [(7, s) for s in range(6)] + [(20, 1), (30, 2)]), {}
    )
    assert [node for node, excess in found.items() if excess.value > RAISED] == ["gn7"]
    assert (found["gn7"].failed, found["gn7"].tried) == (6, 6)


def test_a_cluster_on_which_much_fails_everywhere_has_no_bad_node() -> None:
    failing = [(n, s) for n in range(100) for s in range(6) if (n * 7 + s * 3) % 2]
    assert all(
        excess.value < RAISED
        for excess in failure_rate.compute_excess(a_day(100, 6, failing), {}).values()
    )


def test_one_failure_in_a_cluster_without_any_is_no_bad_node() -> None:
    assert failure_rate.compute_excess(a_day(100, 6, [(7, 0)]), {})["gn7"].value < RAISED


def test_one_script_run_a_hundred_times_is_one_trial() -> None:
    again = [job("gn7", f"sweep_{n}", is_failed=True, user="carol", minutes=n) for n in range(100)]
    found = failure_rate.compute_excess(a_day(100, 6) + again, {})
    assert (found["gn7"].failed, found["gn7"].tried) == (1, 7)
    assert found["gn7"].value < RAISED


def test_the_latest_run_of_a_script_counts() -> None:
    jobs = [job("gn1", "a", is_failed=True, minutes=60), job("gn1", "a", minutes=5)]
    assert failure_rate.compute_excess(jobs, {})["gn1"].failed == 0


def test_failures_of_one_user_alone_say_nothing_of_the_node() -> None:
    debugging = [
        job("gn7", name, is_failed=True, user="dave") for name in ("try", "again", "why", "please")
    ]
    assert failure_rate.compute_excess(a_day(100, 2) + debugging, {})["gn7"].value == 0


def test_what_failed_before_a_nodes_boot_is_told_of_another_machine() -> None:
    jobs = a_day(100, 6, [(7, s) for s in range(6)])
    assert "gn7" not in failure_rate.compute_excess(jobs, {"gn7": NOW - timedelta(minutes=30)})


def test_a_larger_cluster_asks_for_more_evidence() -> None:
    failing = [(7, s) for s in range(2)]
    spread = [(n, 5) for n in range(0, 400, 40)]
    few = failure_rate.compute_excess(a_day(40, 6, failing + spread[:1]), {})["gn7"].value
    many = failure_rate.compute_excess(a_day(400, 6, failing + spread), {})["gn7"].value
    assert many < few


def test_a_cluster_without_a_bad_node_is_seldom_accused() -> None:
    """At one chance in 100 a day, 300 days of pure chance give some three words; ten would be one
    chance in 1,000."""
    draws = stats.bernoulli(0.05).rvs(size=(300, 60, 6), random_state=7)
    days = 0
    for day in draws:
        failing = [(n, s) for n in range(60) for s in range(6) if day[n][s]]
        days += any(
            each.value > RAISED
            for each in failure_rate.compute_excess(a_day(60, 6, failing), {}).values()
        )
    assert days < 10


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("12|COMPLETED|2026-11-21T03:00:00|alice|gn001|a|b\n", ("12", False, ("gn001",), "a|b")),
        (
            "12|NODE_FAIL|2026-11-21T03:00:00|alice|gn[001-002]|x\n",
            ("12", True, ("gn001", "gn002"), "x"),
        ),
        ("12|FAILED|2026-11-21T03:00:00|alice|gn001|\n", ("12", True, ("gn001",), "")),
    ],
)
def test_a_line_of_the_accounts_is_read(
    line: str, expected: tuple[str, bool, tuple[str, ...], str]
) -> None:
    [(found, _)] = slurm_jobs.parse_jobs(line.encode())
    assert (found.job_id, found.is_failed, found.nodes, found.name) == expected


@pytest.mark.parametrize(
    "state", ["CANCELLED by 1000", "TIMEOUT", "OUT_OF_MEMORY", "PREEMPTED", "RUNNING"]
)
def test_what_users_end_and_limits_end_is_neither_success_nor_failure(state: str) -> None:
    assert slurm_jobs.parse_jobs(f"12|{state}|2026-11-21T03:00:00|alice|gn001|x\n".encode()) == []


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(raw: bytes) -> None:
    outputs = {name: Output(0, raw, b"", timedelta(0)) for name in ("nodes", "ended", "lately")}
    list(SlurmJobsDetector().parse(Reading("slurm_jobs", SITE, NOW, outputs)))


@pytest.mark.parametrize("first", ["", "11{}COMPLETED{}2026-11-21T03:59:00{}bob{}gn4{}quiet{}\n"])
def test_a_row_that_a_user_wrote_into_the_name_of_a_job_is_no_job(first: str) -> None:
    """Slurm 22.05 prints a line feed in a name as it is."""
    (argument,) = [
        word
        for word in queries.build_ended_jobs_query(SITE, 1).argv
        if word.startswith("--delimiter=")
    ]
    between = argument.partition("=")[2]
    forged = "train\n99|NODE_FAIL|2026-11-21T03:59:00|bob|gn3|x\n98\x1fNODE_FAIL\x1f2026-11-21T03:59:00\x1fbob\x1fgn3\x1fx"
    cells = ("12", "FAILED", "2026-11-21T03:58:00", "alice", "gn5", forged, "\n")
    text = first.replace("{}", between) + between.join(cells)
    assert [job.job_id for job, _ in slurm_jobs.parse_jobs(text.encode())] == (
        [] if not first else ["11"]
    ) + ["12"]
