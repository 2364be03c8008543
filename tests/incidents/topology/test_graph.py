"""The model site as a graph: what hangs on what, and what notices a change."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from incidents.inventory import graphs, services
from incidents.topology.graph import (
    ALL_NODES,
    ALL_SPINES,
    ALL_STORAGE_SWITCHES,
    ALL_SWITCHES,
    Graph,
)
from incidents.topology.topology import (
    CablePlace,
    ModulePlace,
    NodePlace,
    RackPlace,
    StoragePlace,
    SwitchPlace,
    Topology,
)
from tests.work import calls_of

SITE = Path("fixtures/topology/sakuraone.toml")


@pytest.fixture(scope="module")
def site() -> Graph:
    return Graph(services.load(SITE))


def test_a_leaf_has_the_fifty_nics_of_its_rail_as_children(site: Graph) -> None:
    children = site.get_children("switch/leaf-03")

    assert len(children) == 50
    assert children == {f"node/gn{number:03}/nic/mlx5_2" for number in range(1, 51)}


def test_a_spine_has_four_uplinks_of_each_leaf_as_children(site: Graph) -> None:
    children = site.get_children("switch/spine-01")

    assert len(children) == 64
    assert {child.split("/")[1] for child in children} == {
        f"leaf-{number:02}" for number in range(1, 17)
    }


def test_the_siblings_of_a_leaf_are_the_other_rails_of_its_pod(site: Graph) -> None:
    assert site.get_siblings("switch/leaf-03") == {
        f"switch/leaf-{number:02}" for number in (1, 2, 4, 5, 6, 7, 8)
    }
    assert site.get_siblings("switch/leaf-09") == {
        f"switch/leaf-{number:02}" for number in range(10, 17)
    }


def test_the_siblings_of_other_places_are_of_their_kind(site: Graph) -> None:
    assert site.get_siblings("switch/sto-01") == {"switch/sto-02"}
    assert len(site.get_siblings("switch/spine-05")) == 7
    assert site.get_siblings("rack/r01") == {f"rack/r{number:02}" for number in range(2, 11)}
    assert site.get_siblings("feed/feed-1") == {"feed/feed-2"}


def test_a_module_holds_two_ports_where_one_transceiver_feeds_two_nodes(site: Graph) -> None:
    assert site.find_module("switch/leaf-01/port/Ethernet4") == "switch/leaf-01/module/1"
    assert site.get_ports("switch/leaf-01/module/1") == {
        "switch/leaf-01/port/Ethernet0",
        "switch/leaf-01/port/Ethernet4",
    }
    assert site.get_machines_behind("switch/leaf-01/module/1") == {
        "switch/leaf-01",
        "node/gn001",
        "node/gn002",
    }


def test_racks_feeds_and_the_management_switch_hold_their_machines(site: Graph) -> None:
    assert site.get_children("rack/r01") == {f"node/gn{number:03}" for number in range(1, 6)}
    assert site.get_feeds("node/gn001") == {"feed/feed-1", "feed/feed-2"}
    assert len(site.get_children("feed/feed-1")) == 101
    assert site.get_management_switches("node/gn077") == {"switch/mgmt-01"}
    assert len(site.get_children("switch/mgmt-01")) == 101


def test_clients_of_a_file_system_are_the_nodes_of_its_roles(site: Graph) -> None:
    assert site.get_file_systems("node/gn001") == {"storage/lustre"}
    assert site.get_file_systems("node/mt001") == frozenset()
    assert len(site.get_children("storage/lustre")) == 100
    assert site.get_storage_switches("node/gn001") == {"switch/sto-01", "switch/sto-02"}
    assert site.get_servers("storage/lustre") == {f"node/ddn-{number}" for number in range(1, 5)}


def test_both_ends_of_a_cable_speak_of_one_child(site: Graph) -> None:
    nic = "node/gn007/nic/mlx5_2"
    port = site.find_peer(nic) or ""

    assert site.find_child("switch/leaf-03", port) == site.find_child("switch/leaf-03", nic) == nic
    assert site.find_child("switch/leaf-04", port) is None
    assert site.find_child("rack/r02", nic) == "node/gn007"


def test_nothing_is_known_of_what_the_inventory_does_not_hold() -> None:
    empty = Graph()

    assert empty.find_peer("node/gn001/nic/mlx5_0") is None
    assert empty.get_role("switch/leaf-01") == ""
    assert (
        empty.get_children("switch/leaf-01") == empty.get_siblings("switch/leaf-01") == frozenset()
    )
    assert empty.find_child("switch/leaf-01", "node/gn001/nic/mlx5_0") is None
    assert empty.get_children(ALL_NODES) == frozenset()
    assert empty.get_children(ALL_SWITCHES) == frozenset()


def test_switches_of_a_sort_are_one_place_and_those_of_management_are_in_none(site: Graph) -> None:
    assert len(site.get_children(ALL_SPINES)) == 8
    assert site.get_children(ALL_STORAGE_SWITCHES) == {"switch/sto-01", "switch/sto-02"}
    assert len(site.get_children(ALL_SWITCHES)) == 26
    assert site.get_kinds_of_switch("switch/mgmt-01") == frozenset()


@pytest.mark.django_db
def test_one_small_query_is_asked_when_nothing_has_changed(now: datetime) -> None:
    services.apply(services.load(SITE), now)
    first = graphs.get_current()

    with CaptureQueriesContext(
        connection,
    ) as asked:
        again = graphs.get_current()

    assert again is first
    assert len(asked) == 1


@pytest.mark.django_db
def test_the_graph_of_the_database_is_that_of_the_files(now: datetime, site: Graph) -> None:
    services.apply(services.load(SITE), now)
    kept = graphs.get_current()

    for place in (
        "switch/leaf-03",
        "switch/spine-01",
        "switch/sto-02",
        "rack/r07",
        "feed/feed-2",
        "storage/lustre",
    ):
        assert kept.get_children(place) == site.get_children(place)
        assert kept.get_siblings(place) == site.get_siblings(place)
    assert kept.get_ports("switch/leaf-01/module/1") == site.get_ports("switch/leaf-01/module/1")


@pytest.mark.django_db
def test_a_change_by_another_process_is_noticed(now: datetime) -> None:
    services.apply(Topology(nodes=(NodePlace("gn001", rack="r01"),)), now)
    before = graphs.get_current()
    kept = dict(graphs._kept)
    services.apply(Topology(nodes=(NodePlace("gn001", rack="r02"),)), now)
    graphs._kept.update(kept)  # as this process is, when another one made the change

    assert before.find_rack("node/gn001") == "rack/r01"
    assert graphs.get_current().find_rack("node/gn001") == "rack/r02"


def test_building_grows_with_the_site_and_a_question_does_not() -> None:
    """Ten thousand nodes are built in seconds and answer at once; here in calls, which are alike on
    all machines."""
    (small, small_built), (large, large_built) = (
        built(pods=pods, nodes_each=50) for pods in (4, 40)
    )

    assert large_built < 11 * small_built
    assert calls_of(lambda: neighbours(large)) == calls_of(lambda: neighbours(small))


def built(*, pods: int, nodes_each: int) -> tuple[Graph, int]:
    graph = Graph(a_site_of(pods=pods, nodes_each=nodes_each))
    return graph, calls_of(lambda: neighbours(graph))


def neighbours(graph: Graph) -> None:
    """The first look at each kind of neighbour reads the whole site; all later ones read a
    place."""
    assert len(graph.get_children("switch/leaf-2-0")) == 50
    assert len(graph.get_siblings("switch/leaf-2-0")) == 7
    graph.find_module("switch/leaf-2-0/port/Ethernet0")
    graph.find_rack("node/gn-2-0")
    assert len(graph.get_machines_behind("switch/leaf-2-3")) == 50
    assert graph.find_child("switch/leaf-2-3", "node/gn-2-7/nic/mlx5_3") is not None
    assert len(graph.get_switches("node/gn-2-7", "leaf")) == 8


def a_site_of(*, pods: int, nodes_each: int) -> Topology:
    names = [
        (pod, number, f"gn-{pod}-{number}") for pod in range(pods) for number in range(nodes_each)
    ]
    return Topology(
        nodes=tuple(
            NodePlace(name, pod=f"pod-{pod}", rack=f"r{pod}-{n // 5}") for pod, n, name in names
        ),
        switches=tuple(
            SwitchPlace(f"leaf-{pod}-{rail}", "leaf", pod=f"pod-{pod}", rail=rail)
            for pod in range(pods)
            for rail in range(8)
        ),
        cables=tuple(
            CablePlace(
                f"node/{name}/nic/mlx5_{rail}",
                f"switch/leaf-{pod}-{rail}/port/Ethernet{4 * n}",
                400,
            )
            for pod, n, name in names
            for rail in range(8)
        ),
        modules=tuple(
            ModulePlace(
                f"leaf-{pod}-{rail}", str(m + 1), (f"Ethernet{8 * m}", f"Ethernet{8 * m + 4}")
            )
            for pod in range(pods)
            for rail in range(8)
            for m in range(nodes_each // 2)
        ),
        racks=tuple(
            RackPlace(f"r{pod}-{n}", feeds=("feed-1",))
            for pod in range(pods)
            for n in range(nodes_each // 5)
        ),
        storage=(StoragePlace("/lustre", servers=("oss-1",), switches=("sto-1",)),),
    )
