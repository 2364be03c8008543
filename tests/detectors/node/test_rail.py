"""Rails against the median of their node: which is slow, when that is a fault, and when it says
nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.catalog import catalog
from detectors.detector import Target, Transports
from detectors.evaluation import judge
from detectors.expected import Expected
from detectors.faults import EventKind, Observation
from detectors.node.rail import (
    RailDetector,
    SlowRail,
    evaluate_slow_rails,
    find_agreements,
    find_slow_rail,
)
from fixtures.cluster.facets.nic import NicFacet
from fixtures.cluster.facets.nic_polled import expected
from fixtures.cluster.world import SimulatedShell, SimulatedWorld

START = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DETECTOR = RailDetector()
DEVICES = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_11")


class Node:
    def __init__(self, gigabytes: Sequence[float], inventory: Expected | None = None) -> None:
        self.now = START
        self.world = SimulatedWorld.sakuraone(clock=lambda: self.now)
        self.facet = self.world.node("gn001").facet(NicFacet)
        self.target = Target("gn001", "", expected=expected() if inventory is None else inventory)
        self.memory = judge.Memory()
        self.active: set[str] = set()
        self.carry(gigabytes)

    def carry(self, gigabytes: Sequence[float]) -> None:
        for rail, rate in enumerate(gigabytes):
            self.facet.port(f"rail{rail}").carry(rate * 1e9, self.now)

    def look(self, apart: timedelta = MINUTE) -> set[str]:
        self.now += apart
        seen = list(
            DETECTOR.parse(
                DETECTOR.collect(
                    self.target, Transports(shell=SimulatedShell(self.world)), self.now
                )
            )
        )
        judged = judge.judge_round(
            DETECTOR, seen, self.memory, active=self.active, catalog=catalog.load()
        )
        self.memory = judged.memory
        return {
            f"{event.severity} {event.fault_type} {event.resource.rpartition('/')[2]}"
            for event in judged.events
            if event.event is EventKind.RAISED
        }

    def after(self, rounds: int) -> set[str]:
        return [self.look() for _ in range(rounds)][-1]


@pytest.mark.parametrize(
    ("gigabytes", "slow"),
    [
        ([22.6] * 8, set()),
        ([18.9, 18.9, 18.9, 8.0, 18.9, 18.9, 8.0, 18.9], {"mlx5_4", "mlx5_7"}),
        ([18.9] * 7 + [15.2], set()),
        ([18.9] * 7 + [15.0], {"mlx5_11"}),
        ([0.9] * 7 + [0.1], set()),
        ([18.9] * 4 + [8.0] * 4, {"mlx5_5", "mlx5_6", "mlx5_7", "mlx5_11"}),
    ],
    ids=[
        "all at 22.6",
        "two at 8.0 of 18.9",
        "just above 0.8",
        "just below 0.8",
        "idle node",
        "half of them",
    ],
)
def test_a_rail_is_slow_against_the_median_when_the_node_is_busy(
    gigabytes: list[float], slow: set[str]
) -> None:
    assert Node(gigabytes).after(8) == {f"indeterminate nic.rail.slow {device}" for device in slow}


def test_a_slow_rail_is_told_after_five_minutes_and_not_before() -> None:
    node = Node([18.9] * 7 + [8.0])
    assert [bool(node.look()) for _ in range(8)] == [False] * 6 + [True, True]


def test_a_slow_rail_alone_opens_no_incident() -> None:
    assert not catalog.load()["nic.rail.slow"].opens_incident
    assert catalog.load()["nic.rail.degraded"].opens_incident


@pytest.mark.parametrize(
    "apart", [timedelta(seconds=49), timedelta(seconds=71), timedelta(minutes=5)]
)
def test_rounds_that_are_not_about_a_minute_apart_are_not_compared(apart: timedelta) -> None:
    node = Node([18.9] * 7 + [8.0])
    assert [node.look(apart) for _ in range(12)] == [set()] * 12


@pytest.mark.parametrize("apart", [timedelta(seconds=50), timedelta(seconds=70)])
def test_rounds_of_50_to_70_seconds_are_compared(apart: timedelta) -> None:
    node = Node([18.9] * 7 + [8.0])
    assert [node.look(apart) for _ in range(12)][-1] == {"indeterminate nic.rail.slow mlx5_11"}


def test_without_an_inventory_nobody_knows_which_ports_are_rails() -> None:
    assert Node([18.9] * 7 + [8.0], Expected()).after(8) == set()


@pytest.mark.parametrize(
    ("rate", "grown", "severity"),
    [
        (8.0, {"packet_seq_err": 9000}, "minor"),
        (13.0, {"packet_seq_err": 9000}, "warning"),
        (8.0, {"symbol_error": 4}, "minor"),
        (8.0, {"packet_seq_err": 3}, None),
    ],
    ids=[
        "half, retransmissions",
        "two thirds, retransmissions",
        "half, lost symbols",
        "half, as many as the others",
    ],
)
def test_a_slow_rail_is_a_fault_with_a_cause_beside_it(
    rate: float, grown: dict[str, int], severity: str | None
) -> None:
    node = Node([18.9] * 7 + [rate])
    said: set[str] = set()
    for _ in range(8):
        node.facet.port("rail7").added.update(grown)
        said = node.look()
    wanted = {f"{severity} nic.rail.degraded mlx5_11"} if severity else set()
    assert said == {"indeterminate nic.rail.slow mlx5_11"} | wanted


def test_a_narrower_pci_express_link_explains_a_slow_rail() -> None:
    node = Node([18.9] * 7 + [12.0])
    node.facet.port("rail7").pcie_width = 8
    assert "warning nic.rail.degraded mlx5_11" in node.after(8)


def slow(node: str, *jobs: str, place: str = "leaf-04", ratio: float = 0.42) -> SlowRail:
    return SlowRail(node, f"node/{node}/nic/mlx5_4", place, ratio, frozenset(jobs))


@pytest.mark.parametrize(
    ("rails", "is_fault"),
    [
        ([slow("gn001", "7"), slow("gn002", "7"), slow("gn003", "8")], True),
        ([slow("gn001", "7"), slow("gn002", "7"), slow("gn003", "7")], False),
        ([slow("gn001", "7"), slow("gn002", "8")], False),
        ([slow("gn001", "7"), slow("gn002", "8"), slow("gn003")], False),
        ([slow("gn001", "7"), slow("gn001", "8"), slow("gn002", "9")], False),
        ([slow("gn001", "7"), slow("gn002", "8"), slow("gn003", "9", place="leaf-12")], False),
        ([slow(f"gn{n:03d}", "7") for n in range(1, 33)], False),
        ([slow(f"gn{n:03d}", str(n)) for n in range(1, 33)], True),
    ],
    ids=[
        *(
            "three nodes, two jobs",
            "one job",
            "two nodes",
            "one node without a job",
            "one node twice",
        ),
        *("another leaf", "one large job", "many jobs"),
    ],
)
def test_a_rail_that_is_slow_on_several_nodes_and_jobs_is_a_fault(
    rails: list[SlowRail], is_fault: bool
) -> None:
    assert any(each.is_fault for each in find_agreements(rails)) is is_fault


def test_an_agreement_names_the_place_and_raises_a_fault_on_each_rail() -> None:
    rails = [slow("gn001", "7"), slow("gn002", "8"), slow("gn003", "8", ratio=0.7)]
    agreement = find_agreements(rails)[0]
    assert agreement.reason == "leaf-04 is slow on 3 nodes in 2 jobs: look at it first"
    memory, said = judge.Memory(), []
    for minute in range(7):
        seen = list(evaluate_slow_rails(rails, START + minute * MINUTE))
        judged = judge.judge(seen, memory, active=(), catalog=catalog.load())
        memory, said = (
            judged.memory,
            [f"{event.severity} {event.resource}" for event in judged.events],
        )
    assert said == [
        "minor node/gn001/nic/mlx5_4",
        "minor node/gn002/nic/mlx5_4",
        "warning node/gn003/nic/mlx5_4",
    ]


def test_a_slow_rail_is_placed_by_its_leaf_or_else_by_its_rail() -> None:
    seen = Observation("node/gn001/nic/mlx5_4", "rail.ratio", 0.4, START, {"rail": "3"})
    at_leaf = find_slow_rail(seen, place="leaf-04", jobs=frozenset({"7"}))
    alone = find_slow_rail(seen, place=None, jobs=frozenset())
    assert at_leaf is not None
    assert alone is not None
    assert (at_leaf.node, at_leaf.place, alone.place) == ("gn001", "leaf-04", "rail 3")
    assert (
        find_slow_rail(
            Observation("node/gn001", "nic.mtu", 9000, START), place=None, jobs=frozenset()
        )
        is None
    )


some_rails = st.lists(
    st.builds(
        slow,
        st.sampled_from(["gn001", "gn002", "gn003", "gn004"]),
        st.sampled_from(["7", "8"]),
        place=st.sampled_from(["leaf-04", "leaf-05"]),
    ),
    max_size=12,
)


@given(rails=some_rails)
def test_agreement_does_not_hang_on_the_order_in_which_nodes_are_heard(
    rails: list[SlowRail],
) -> None:
    def verdicts(these: Sequence[SlowRail]) -> list[tuple[str, bool, str]]:
        return [(each.place, each.is_fault, each.reason) for each in find_agreements(these)]

    assert verdicts(rails) == verdicts(rails[::-1])
