"""The guards, by table: pure, a sentence per case."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.guards.table import (
    Act,
    Allowed,
    Fleet,
    GuardRefused,
    PastReboot,
    Refusal,
    Request,
    check,
    compute_cap,
)
from runbooks.slurm.protocol import NodeState

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
DRAIN = Request(Act.DRAIN, "gn001", "gpu.xid.79")
REBOOT = Request(Act.REBOOT, "gn001", "gpu.xid.79")


def a_node(
    name: str, *flags: str, base: str = "IDLE", partitions: tuple[str, ...] = ("gpu",)
) -> NodeState:
    return NodeState(name, base, frozenset(flags), "", "", None, None, partitions)


def a_fleet(size: int = 100, out: int = 0, **changes: object) -> Fleet:
    """`out` nodes, counted from the end, are drained by whomever."""
    names = [f"gn{number:03d}" for number in range(1, size + 1)]
    drained = set(names[size - out :])
    nodes = {name: a_node(name, *(("DRAIN",) if name in drained else ())) for name in names}
    return Fleet(nodes=nodes, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "limit"),
    [(1, 1), (10, 1), (20, 1), (39, 1), (40, 2), (99, 4), (100, 5), (101, 5), (10_000, 5)],
)
def test_cap_is_five_percent_and_one_at_least_and_five_at_most(size: int, limit: int) -> None:
    assert compute_cap(size) == limit


@pytest.mark.parametrize(
    ("case", "fleet", "refusal"),
    [
        ("nobody is out", a_fleet(), None),
        ("one below the cap", a_fleet(out=4), None),
        ("at the cap", a_fleet(out=5), Refusal.CAP),
        ("a small partition lends one node", a_fleet(size=8), None),
        ("a small partition lends no second", a_fleet(size=8, out=1), Refusal.CAP),
        (
            "claims that Slurm does not show yet count",
            a_fleet(claimed=frozenset({"gn002", "gn003"}), out=3),
            Refusal.CAP,
        ),
        (
            "a claim that Slurm shows already counts once",
            a_fleet(claimed=frozenset({"gn100"}), out=4),
            None,
        ),
        (
            "a claim on a node of another partition",
            a_fleet(claimed=frozenset({"mt001"}), out=4),
            None,
        ),
        ("our own claim is no other's", a_fleet(claimed=frozenset({"gn001"}), out=4), None),
        ("the stop switch is engaged", a_fleet(stopped="alice: maintenance"), Refusal.STOPPED),
        (
            "people work on the node",
            a_fleet(maintained={"gn001": "gn001 is under maintenance"}),
            Refusal.MAINTENANCE,
        ),
        (
            "people work on another node",
            a_fleet(maintained={"gn002": "gn002 is under maintenance"}),
            None,
        ),
        ("the mode was lowered meanwhile", a_fleet(mode="shadow"), Refusal.MODE),
        ("the runbook was switched off meanwhile", a_fleet(mode="off"), Refusal.MODE),
        ("approval mode: a person has approved this run", a_fleet(mode="approval"), None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_drain_is_allowed_or_refused(case: str, fleet: Fleet, refusal: Refusal | None) -> None:
    verdict = check(DRAIN, fleet, NOW)
    assert (verdict.kind if isinstance(verdict, GuardRefused) else None) == refusal
    if isinstance(verdict, GuardRefused):
        assert verdict.reason
        assert verdict.ask_again_at is not None
        assert verdict.ask_again_at > NOW


@pytest.mark.parametrize("flags", [("DRAIN",), ("NOT_RESPONDING",), ("FAIL",)])
def test_every_node_that_takes_no_jobs_counts_whoever_took_it_out(flags: tuple[str, ...]) -> None:
    nodes = a_fleet().nodes | {f"gn{n:03d}": a_node(f"gn{n:03d}", *flags) for n in range(50, 55)}
    assert isinstance(check(DRAIN, Fleet(nodes=nodes), NOW), GuardRefused)


def test_node_that_is_out_already_may_be_repaired_when_the_cap_is_used_up() -> None:
    nodes = {**a_fleet(out=9).nodes, "gn001": a_node("gn001", "NOT_RESPONDING", base="DOWN")}
    assert check(DRAIN, Fleet(nodes=nodes), NOW) == Allowed()


def test_repairs_at_once_stay_capped_when_many_nodes_are_out_already() -> None:
    nodes = {name: a_node(name, "NOT_RESPONDING", base="DOWN") for name in a_fleet().nodes}
    claimed = frozenset({"gn002", "gn003", "gn004", "gn005", "gn006"})
    assert isinstance(check(DRAIN, Fleet(nodes=nodes, claimed=claimed), NOW), GuardRefused)


def test_every_partition_of_the_node_is_asked() -> None:
    nodes = dict(a_fleet().nodes)
    nodes["gn001"] = a_node("gn001", partitions=("gpu", "debug"))
    nodes["gn002"] = a_node("gn002", "DRAIN", partitions=("gpu", "debug"))
    verdict = check(DRAIN, Fleet(nodes=nodes), NOW)
    assert isinstance(verdict, GuardRefused)
    assert "1 of 2 nodes of partition debug are out (gn002), and the cap is 1" in verdict.reason


@pytest.mark.parametrize("partitions", [("gpu", "debug"), ("debug", "gpu")])
def test_node_of_two_partitions_is_taken_only_where_each_has_room_in_whatever_order_slurm_names_them(
    partitions: tuple[str, ...],
) -> None:
    nodes = {**a_fleet(out=4).nodes, "gn001": a_node("gn001", partitions=partitions)}
    nodes |= {
        "db001": a_node("db001", partitions=("debug",)),
        "mt001": a_node("mt001", "DRAIN", partitions=("other",)),
    }
    assert check(DRAIN, Fleet(nodes=nodes), NOW) == Allowed()
    for full in (
        {"db001": a_node("db001", "DRAIN", partitions=("debug",))},
        {"gn002": a_node("gn002", "DRAIN")},
    ):
        verdict = check(DRAIN, Fleet(nodes=nodes | full), NOW)
        assert isinstance(verdict, GuardRefused)
        assert verdict.kind is Refusal.CAP


def test_node_that_is_out_counts_in_each_of_its_partitions() -> None:
    both = a_node("gn002", "DRAIN", partitions=("gpu", "debug"))
    nodes = {
        "gn001": a_node("gn001", partitions=("debug",)),
        "gn002": both,
        "gn003": a_node("gn003"),
    }
    for name in ("gn001", "gn003"):
        verdict = check(Request(Act.DRAIN, name, "gpu.xid.79"), Fleet(nodes=nodes), NOW)
        assert isinstance(verdict, GuardRefused)
        assert "are out (gn002), and the cap is 1" in verdict.reason


@pytest.mark.parametrize(
    ("past", "kind", "again"),
    [
        (PastReboot("gn002", "gpu.xid.79", NOW), None, None),
        (PastReboot("gn001", "gpu.xid.79", NOW - timedelta(hours=24)), None, None),
        (
            PastReboot("gn001", "gpu.xid.79", NOW - timedelta(hours=23, minutes=59)),
            Refusal.FAULT_RETURNED,
            None,
        ),
        (
            PastReboot("gn001", "gpu.xid.119", NOW - timedelta(hours=2)),
            Refusal.REBOOTED_LATELY,
            NOW + timedelta(hours=22),
        ),
    ],
)
def test_node_is_rebooted_once_in_24_hours(
    past: PastReboot, kind: Refusal | None, again: datetime | None
) -> None:
    verdict = check(REBOOT, a_fleet(reboots=(past,)), NOW)
    assert (verdict.kind if isinstance(verdict, GuardRefused) else None) == kind
    assert (verdict.ask_again_at if isinstance(verdict, GuardRefused) else None) == again


def test_cap_is_not_asked_again_when_the_drained_node_reboots() -> None:
    """Humans drained more meanwhile: that must not strand the node that is being repaired."""
    assert check(REBOOT, a_fleet(out=20), NOW) == Allowed()


@given(size=st.integers(1, 300), out=st.integers(0, 300), claimed=st.integers(0, 300))
def test_allowed_drain_never_takes_more_than_the_cap_out(size: int, out: int, claimed: int) -> None:
    fleet = a_fleet(size=size, out=min(out, size - 1))
    names = sorted(fleet.nodes)
    fleet = Fleet(nodes=fleet.nodes, claimed=frozenset(names[1 : 1 + claimed]))
    if check(DRAIN, fleet, NOW) == Allowed():
        taken = (
            {name for name, node in fleet.nodes.items() if node.is_out} | fleet.claimed | {"gn001"}
        )
        assert len(taken) <= compute_cap(size)


@pytest.mark.parametrize("act", list(Act))
def test_nothing_is_done_while_a_wider_cause_is_suspected(act: Act) -> None:
    until = NOW + timedelta(minutes=2)
    fleet = Fleet(
        nodes={},
        held_until=until,
        held_reason="3 of 50 behind leaf-01 fail: leaf-01 may be the cause.",
    )

    refused = check(Request(act, "gn001", "gpu.xid.79"), fleet, NOW)

    assert isinstance(refused, GuardRefused)
    assert refused.kind is Refusal.HELD
    assert refused.ask_again_at == until
    assert (
        refused.reason
        == "A wider cause is suspected: 3 of 50 behind leaf-01 fail: leaf-01 may be the cause"
    )


def test_a_drain_is_allowed_when_its_hold_is_over() -> None:
    fleet = Fleet(nodes={}, held_until=NOW, held_reason="over")

    assert isinstance(check(Request(Act.DRAIN, "gn001", "gpu.xid.79"), fleet, NOW), Allowed)
