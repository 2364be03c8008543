"""The reach of each device, as the model site is wired: what its fault can explain, and what
never."""

from __future__ import annotations

import pytest

from detectors import resources
from incidents.correlation.relations import Surroundings, get_keys, get_owners
from incidents.vocabulary.relations import Relation, Side
from tests.incidents.correlation.test_relations import a_view, around  # noqa: F401

FABRIC = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_11"]
NICS = [
    f"node/gn{number:03}/nic/{device}"
    for number in range(1, 101)
    for device in (*FABRIC, "mlx5_8", "mlx5_bond_0")
]
NODES = [f"node/gn{number:03}" for number in range(1, 101)]
SWITCHES = [
    *(f"switch/leaf-{number:02}" for number in range(1, 17)),
    *(f"switch/spine-{number:02}" for number in range(1, 9)),
    "switch/sto-01",
    "switch/sto-02",
]
OF_NETWORK = (
    Relation.PORT_OF_SWITCH,
    Relation.NEIGHBOUR_OF_SWITCH,
    Relation.LEAF_OF_RAIL,
    Relation.SPINE_OF_LEAFS,
    Relation.STORAGE_PATH,
)


def reached(
    switch: str,
    fault_type: str,
    resources_: list[str],
    around: Surroundings,  # noqa: F811
    *by: Relation,
) -> list[str]:
    """Which of these a dead switch can explain."""
    cause = a_view("switch.rebooted", switch)
    return [
        one
        for one in resources_
        if any(
            get_keys(relation, Side.CAUSE, cause, around)
            & get_keys(relation, Side.EFFECT, a_view(fault_type, one), around)
            for relation in by
        )
    ]


def test_a_leaf_reaches_one_rail_of_one_pod(around: Surroundings) -> None:  # noqa: F811
    links = reached(
        "switch/leaf-03", "nic.link.down", NICS, around, *OF_NETWORK[:1], *OF_NETWORK[2:]
    )

    assert links == [f"node/gn{number:03}/nic/mlx5_2" for number in range(1, 51)]


def test_a_leaf_reaches_the_eight_bgp_neighbours_it_has(around: Surroundings) -> None:  # noqa: F811
    neighbours = reached(
        "switch/leaf-03", "switch.bgp.down", SWITCHES, around, Relation.NEIGHBOUR_OF_SWITCH
    )

    assert neighbours == [f"switch/spine-{number:02}" for number in range(1, 9)]


def test_a_leaf_reaches_the_jobs_on_its_nodes(around: Surroundings) -> None:  # noqa: F811
    job = resources.job("slurm", "7")
    elsewhere = resources.job("slurm", "8")

    assert reached(
        "switch/leaf-03", "job.stalled", [job, elsewhere], around, Relation.LEAF_OF_RAIL
    ) == [job]
    assert "site/slurm" in get_owners(
        Relation.LEAF_OF_RAIL, Side.CAUSE, a_view("switch.rebooted", "switch/leaf-03"), around
    )


@pytest.mark.parametrize("leaf", ["switch/leaf-01", "switch/leaf-12"])
def test_a_leaf_never_reaches_lustre(leaf: str, around: Surroundings) -> None:  # noqa: F811
    by = (Relation.PORT_OF_SWITCH, Relation.STORAGE_PATH, Relation.SPINE_OF_LEAFS)

    assert reached(leaf, "storage.lustre.connection_lost", NODES, around, *by) == []


def test_a_spine_reaches_leaf_uplinks_and_bgp_but_no_host_link(around: Surroundings) -> None:  # noqa: F811
    uplinks = [
        f"switch/leaf-{leaf:02}/port/Ethernet{256 + 8 * number}"
        for leaf in range(1, 17)
        for number in range(32)
    ]

    assert reached("switch/spine-01", "nic.link.down", NICS, around, *OF_NETWORK) == []
    assert reached("switch/spine-01", "storage.lustre.error", NODES, around, *OF_NETWORK) == []
    assert (
        len(
            reached("switch/spine-01", "switch.port.down", uplinks, around, Relation.SPINE_OF_LEAFS)
        )
        == 64
    )
    assert (
        reached("switch/spine-01", "switch.bgp.down", SWITCHES, around, Relation.SPINE_OF_LEAFS)
        == SWITCHES[:16]
    )


def test_a_storage_switch_reaches_one_path_of_each_node(around: Surroundings) -> None:  # noqa: F811
    links = reached(
        "switch/sto-01", "nic.link.down", NICS, around, *OF_NETWORK[:1], *OF_NETWORK[2:]
    )

    assert links == [f"{node}/nic/mlx5_8" for node in NODES]
    assert (
        reached("switch/sto-01", "storage.lustre.rpc_timeout", NODES, around, Relation.STORAGE_PATH)
        == NODES
    )
    assert reached("switch/sto-01", "switch.bgp.down", SWITCHES, around, *OF_NETWORK) == []


def test_a_management_switch_reaches_its_machines_but_no_link_of_theirs(
    around: Surroundings,  # noqa: F811
) -> None:
    assert (
        reached("switch/mgmt-01", "target.unreachable", NODES, around, Relation.MANAGEMENT_SWITCH)
        == NODES
    )
    assert reached("switch/mgmt-01", "nic.link.down", NICS, around, *OF_NETWORK) == []
    assert (
        reached("switch/leaf-01", "target.unreachable", NODES, around, Relation.MANAGEMENT_SWITCH)
        == []
    )
