"""Guards on room, history and causes, by table: pure, a sentence per case."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.guards.room import compute_cap, compute_pod_cap
from runbooks.guards.table import (
    GUARDS,
    Act,
    Allowed,
    Bounds,
    Fleet,
    GuardRefused,
    PastReboot,
    Refusal,
    Request,
    WiderCause,
    check,
    explain,
)
from runbooks.slurm.demands import Demand
from tests.runbooks.guards.test_guards import a_fleet, a_node

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
DRAIN = Request(Act.DRAIN, "gn001", "gpu.xid.79")
REBOOT = Request(Act.REBOOT, "gn001", "gpu.xid.79")
CYCLE = Request(Act.POWER_CYCLE, "gn001", "gpu.xid.79")
BOUNDS = Bounds(cap_nodes=100, cap_share=1.0)


def refusal(request: Request, fleet: Fleet) -> Refusal | None:
    verdict = check(request, fleet, NOW)
    if isinstance(verdict, Allowed):
        return None
    assert verdict.reason
    assert verdict.ask_again_at is None or verdict.ask_again_at > NOW
    return verdict.kind


def in_pods(size: int, out: int = 0, **changes: object) -> Fleet:
    fleet = a_fleet(size, out, bounds=BOUNDS, **changes)
    return Fleet(
        **{
            **vars(fleet),
            "pods": dict.fromkeys(fleet.nodes, "pod-a") | {"gn900": "pod-b"},
        }  # of which Slurm knows none
    )


@pytest.mark.parametrize(
    ("base", "flag"),
    [
        ("IDLE", "MAINTENANCE"),
        ("IDLE", "POWERED_DOWN"),
        ("IDLE", "POWERING_UP"),
        ("IDLE", "INVALID_REG"),
        ("IDLE", "BLOCKED"),
        ("FUTURE", ""),
    ],
)
def test_a_node_that_takes_no_jobs_for_whatever_reason_counts_against_the_cap(
    base: str, flag: str
) -> None:
    fleet = a_fleet(100)
    away = {
        name: replace(node, base=base, flags=frozenset({flag} - {""}))
        for name, node in fleet.nodes.items()
        if name > "gn095"
    }
    assert refusal(DRAIN, fleet) is None
    assert refusal(DRAIN, replace(fleet, nodes={**fleet.nodes, **away})) is Refusal.CAP


@pytest.mark.parametrize(("size", "limit"), [(1, 1), (8, 1), (10, 1), (32, 3), (50, 5)])
def test_pod_keeps_nine_of_ten_nodes_and_lends_one_always(size: int, limit: int) -> None:
    assert compute_pod_cap(size, Bounds()) == limit


@pytest.mark.parametrize(
    ("fleet", "kind"),
    [
        (in_pods(50, 4), None),
        (in_pods(50, 5), Refusal.POD_FLOOR),
        (in_pods(50, 4, claimed=frozenset({"gn002"})), Refusal.POD_FLOOR),
        (in_pods(8), None),
        (in_pods(8, 1), Refusal.POD_FLOOR),
    ],
)
def test_pod_keeps_enough_nodes(fleet: Fleet, kind: Refusal | None) -> None:
    assert refusal(DRAIN, fleet) == kind


def needing(
    nodes: int, *, partitions: tuple[str, ...] = ("gpu",), is_running: bool = False
) -> tuple[Demand, ...]:
    return (Demand("17", nodes, partitions, is_running),)


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize(
    ("nodes", "kind"),
    [(95, None), (96, Refusal.JOB_FLOOR), (97, None), (200, None)],
    ids=[
        "one to spare",
        "needs every node in service",
        "short already",
        "larger than the partition",
    ],
)
def test_largest_job_keeps_the_nodes_that_it_needs(
    nodes: int, kind: Refusal | None, is_running: bool
) -> None:
    assert refusal(DRAIN, a_fleet(100, 4, demands=needing(nodes, is_running=is_running))) == kind


@pytest.mark.parametrize(
    ("hours", "kind"), [(1, Refusal.JOB_FLOOR), (8, Refusal.JOB_FLOOR), (9, None)]
)
def test_a_job_that_is_expected_to_start_after_a_shift_keeps_no_node(
    hours: int, kind: Refusal | None
) -> None:
    starts_at = NOW + timedelta(hours=hours)
    demand = Demand("17", 96, ("gpu",), is_running=False, starts_at=starts_at)
    assert refusal(DRAIN, a_fleet(100, 4, demands=(demand,))) == kind


def test_claims_that_slurm_does_not_show_yet_serve_no_job() -> None:
    fleet = a_fleet(100, 3, demands=needing(96), claimed=frozenset({"gn002"}))
    assert refusal(DRAIN, fleet) == Refusal.JOB_FLOOR


@pytest.mark.parametrize("needed", [96, 97])
def test_a_node_whose_run_has_just_ended_may_serve_a_job_or_be_out(needed: int) -> None:
    ended = frozenset({"gn002"})
    fleet = a_fleet(100, 3, demands=needing(needed), claimed=ended, just_ended=ended)
    assert refusal(DRAIN, fleet) == Refusal.JOB_FLOOR


def test_job_of_another_partition_needs_nothing_of_this_one() -> None:
    assert refusal(DRAIN, a_fleet(20, demands=needing(20, partitions=("debug",)))) is None


def test_node_of_two_partitions_is_kept_for_a_job_of_either() -> None:
    both = a_node("gn001", partitions=("gpu", "debug"))
    nodes = {**a_fleet(100).nodes, "gn001": both, "db001": a_node("db001", partitions=("debug",))}
    for partitions, needs in ((("debug",), 2), (("gpu",), 100), (("debug", "gpu"), 101)):
        assert (
            refusal(DRAIN, Fleet(nodes=nodes, demands=needing(needs, partitions=partitions)))
            == Refusal.JOB_FLOOR
        )
        assert (
            refusal(DRAIN, Fleet(nodes=nodes, demands=needing(needs - 1, partitions=partitions)))
            is None
        )


def test_node_that_a_critical_fault_leaves_of_no_use_is_kept_for_no_job() -> None:
    fleet = a_fleet(20, demands=needing(20))
    assert refusal(DRAIN, fleet) == Refusal.JOB_FLOOR
    assert refusal(Request(Act.DRAIN, "gn001", "gpu.xid.79", is_unusable=True), fleet) is None


def begun(*minutes: int) -> tuple[datetime, ...]:
    return tuple(NOW - timedelta(minutes=one) for one in minutes)


def test_rate_of_one_fault_type_is_asked_again_when_the_oldest_is_an_hour_ago() -> None:
    fleet = a_fleet(begun=begun(70, 50, 40), per_hour=2)
    verdict = check(DRAIN, fleet, NOW)
    assert isinstance(verdict, GuardRefused)
    assert verdict.kind is Refusal.RATE
    assert (
        verdict.reason
        == "2 nodes were taken out for gpu.xid.79 within the last hour, and the limit is 2 an hour"
    )
    assert verdict.ask_again_at == NOW + timedelta(minutes=10)


@pytest.mark.parametrize(
    ("count", "per_hour", "kind"), [(9, None, None), (10, None, Refusal.RATE), (9, 20, None)]
)
def test_the_lower_of_the_sites_and_the_runbooks_rate_holds(
    count: int, per_hour: int | None, kind: Refusal | None
) -> None:
    assert refusal(DRAIN, a_fleet(begun=begun(*range(1, count + 1)), per_hour=per_hour)) == kind


def test_node_that_was_let_go_already_is_not_held_up_by_the_rate() -> None:
    assert refusal(REBOOT, a_fleet(begun=begun(*range(1, 30)))) is None


def test_first_act_of_a_run_on_a_node_that_was_out_already_is_counted_as_taking_it() -> None:
    nodes = {name: a_node(name, "DRAIN") for name in a_fleet().nodes}
    claimed = frozenset({"gn002", "gn003", "gn004", "gn005", "gn006"})
    assert refusal(REBOOT, Fleet(nodes=nodes, claimed=claimed, is_claimed=False)) == Refusal.CAP
    assert refusal(REBOOT, Fleet(nodes=nodes, claimed=claimed, is_claimed=True)) is None


def past(act: Act, fault_type: str = "gpu.xid.79", **ago: int) -> PastReboot:
    return PastReboot("gn001", fault_type, NOW - timedelta(**ago), act)


@pytest.mark.parametrize(
    ("case", "request_", "before", "kind"),
    [
        (
            "a second reboot for a fault within a day",
            REBOOT,
            [past(Act.REBOOT, hours=5)],
            Refusal.FAULT_RETURNED,
        ),
        ("a second after a day", REBOOT, [past(Act.REBOOT, days=2)], None),
        (
            "a third within 14 days",
            REBOOT,
            [past(Act.REBOOT, days=n) for n in (2, 9)],
            Refusal.FAULT_RETURNED,
        ),
        ("a third after 14 days", REBOOT, [past(Act.REBOOT, days=n) for n in (2, 15)], None),
        (
            "two for two faults",
            REBOOT,
            [past(Act.REBOOT, "gpu.xid.119", days=n) for n in (2, 9)],
            None,
        ),
        (
            "a power cycle after a reboot that did not cure it",
            CYCLE,
            [past(Act.REBOOT, hours=1)],
            None,
        ),
        (
            "a second power cycle within a day",
            CYCLE,
            [past(Act.POWER_CYCLE, hours=1)],
            Refusal.FAULT_RETURNED,
        ),
        (
            "another fault within a day",
            CYCLE,
            [past(Act.REBOOT, "gpu.xid.119", hours=1)],
            Refusal.REBOOTED_LATELY,
        ),
        ("a clock that jumped back", REBOOT, [past(Act.REBOOT, hours=-1)], Refusal.FAULT_RETURNED),
        (
            "a reset is no restart",
            Request(Act.RESET_GPU, "gn001", "gpu.xid.79"),
            [past(Act.REBOOT, hours=1)],
            None,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_restarts_of_a_node_are_counted(
    case: str, request_: Request, before: list[PastReboot], kind: Refusal | None
) -> None:
    assert refusal(request_, a_fleet(reboots=tuple(before))) == kind


@pytest.mark.parametrize("act", list(Act))
def test_nothing_is_done_while_something_wider_has_an_incident(act: Act) -> None:
    cause = WiderCause("incident #12, leaf-03 is down, is open on switch/leaf-03")
    request = Request(act, "gn001", "gpu.xid.79")
    assert refusal(request, a_fleet(causes=(cause,))) == Refusal.WIDER_CAUSE
    assert refusal(request, a_fleet()) is None


@pytest.mark.parametrize(
    "fault_type", ["target.unreachable", "detector.silent", "slurm.node_not_responding"]
)
def test_silence_alone_drains_nothing_whatever_a_runbook_says(fault_type: str) -> None:
    request = Request(Act.DRAIN, "gn001", fault_type)
    assert (
        refusal(request, a_fleet(active_faults=frozenset({fault_type})))
        == Refusal.UNREACHABLE_ALONE
    )
    assert refusal(request, a_fleet(active_faults=frozenset({fault_type, "gpu.lost"}))) is None


def test_breaker_lets_through_what_brings_a_drained_node_back() -> None:
    out = {**a_fleet().nodes, "gn001": a_node("gn001", "DRAIN")}
    for act in Act:
        request = Request(act, "gn001", "gpu.xid.79")
        recovers = act in (Act.RESTART_UNITS, Act.REBOOT, Act.RESET_GPU, Act.POWER_CYCLE)
        assert refusal(request, Fleet(nodes=out, breaker="tripped")) == (
            None if recovers else Refusal.BREAKER
        )
        assert refusal(request, a_fleet(breaker="tripped")) == Refusal.BREAKER


@pytest.mark.parametrize(
    ("size", "bad", "kind"), [(20, 5, None), (20, 6, Refusal.BREAKER), (100, 10, None)]
)
def test_breaker_trips_above_the_share_and_above_the_cap(
    size: int, bad: int, kind: Refusal | None
) -> None:
    names = sorted(a_fleet(size).nodes)[:bad]
    assert refusal(DRAIN, a_fleet(size, turned_bad=frozenset(names))) == kind


def test_all_that_stands_in_the_way_is_told_and_not_the_first_alone() -> None:
    fleet = a_fleet(
        out=9, stopped="alice: works", breaker="tripped", maintained={"gn001": "people work there"}
    )
    against = {
        verdict.guard.name for verdict in explain(DRAIN, fleet, NOW) if verdict.refused is not None
    }
    assert against == {"stop switch", "breaker", "maintenance", "cap"}
    assert len(explain(DRAIN, fleet, NOW)) == len(GUARDS)


@given(size=st.integers(1, 300), share=st.integers(0, 100))
def test_a_share_is_cut_off_to_whole_nodes_as_a_person_would(size: int, share: int) -> None:
    assert compute_cap(size, Bounds(cap_nodes=1000, cap_share=share / 100)) == max(
        1, size * share // 100
    )
    assert compute_pod_cap(size, Bounds(pod_floor=share / 100)) == max(
        1, size * (100 - share) // 100
    )
