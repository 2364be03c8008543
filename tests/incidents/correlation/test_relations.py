"""Each relation by its keys: who meets whom, and who does not. Where they can be found covers where
they meet."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from detectors import resources
from detectors.catalog import catalog
from incidents.correlation.relations import Surroundings, get_keys, get_owners
from incidents.faults.fault_views import FaultView
from incidents.inventory import services
from incidents.topology.graph import ALL_NODES, Graph
from incidents.vocabulary.relations import Relation, Side

SITE = Path("fixtures/topology/sakuraone.toml")
AT = datetime(2026, 1, 1, tzinfo=UTC)
GPU = "node/gn001/gpu/0000:19:00.0"


def a_view(fault_type: str, resource: str) -> FaultView:
    row = catalog.load()[fault_type]
    return FaultView(
        fault_type=fault_type,
        resource=resource,
        component=row.component,
        severity=row.severity,
        action=row.action,
        occurred_at=AT,
        observed_at=AT,
        opens_incident=row.opens_incident,
        is_sympathetic=row.is_sympathetic,
    )


@pytest.fixture(scope="module")
def around() -> Surroundings:
    job = resources.job("slurm", "7")
    machines = frozenset({"node/gn001", "node/gn002", "node/gn060"})
    return Surroundings(
        graph=Graph(services.load(SITE)),
        jobs=dict.fromkeys(machines, frozenset({job})),
        machines={job: machines},
        windows={
            "node/gn001": frozenset({"maintenance 4"}),
            "node/gn002": frozenset({"maintenance 4"}),
        },
    )


def meets(relation: Relation, cause: FaultView, effect: FaultView, around: Surroundings) -> bool:
    at = get_keys(relation, Side.CAUSE, cause, around) & get_keys(
        relation, Side.EFFECT, effect, around
    )
    if at:  # what meets is found from either side
        assert effect.owner in get_owners(relation, Side.CAUSE, cause, around)
        assert cause.owner in get_owners(relation, Side.EFFECT, effect, around)
    return bool(at)


NIC, PORT = "node/gn001/nic/mlx5_0", "switch/leaf-01/port/Ethernet0"
NEXT_NIC, NEXT_PORT = "node/gn002/nic/mlx5_0", "switch/leaf-01/port/Ethernet4"
DOWN, PORT_DOWN, BGP = "nic.link.down", "switch.port.down", "switch.bgp.down"
REBOOTED, LUSTRE, SILENT = "switch.rebooted", "storage.lustre.connection_lost", "target.unreachable"

MEET = [
    (Relation.SAME_PART, ("gpu.xid.79", GPU), ("gpu.xid.154", GPU)),
    (Relation.SAME_GPU, ("pcie.aer.fatal", "node/gn001/pci/0000:19:00.1"), ("gpu.xid.79", GPU)),
    (Relation.UNNAMED_GPU, ("gpu.xid.79", GPU), ("gpu.driver.lost", "node/gn001/gpu/-")),
    (Relation.SAME_MACHINE, ("gpu.xid.79", GPU), ("gpu.count_mismatch", "node/gn001")),
    (
        Relation.NVSWITCH_FABRIC,
        ("nvlink.sxid.20034", "node/gn001/nvswitch/0000:07:00.0"),
        ("gpu.xid.74", GPU),
    ),
    (Relation.CABLE, (DOWN, NIC), (PORT_DOWN, PORT)),
    (Relation.MODULE, (DOWN, NIC), ("switch.port.error", NEXT_PORT)),
    (Relation.MODULE, ("switch.transceiver.shared", "switch/leaf-01/module/1"), (DOWN, NEXT_NIC)),
    (Relation.SHARED_MACHINE, (DOWN, NIC), (DOWN, "node/gn031/nic/mlx5_0")),
    (Relation.PORT_OF_SWITCH, (REBOOTED, "switch/leaf-01"), (DOWN, NIC)),
    (
        Relation.PORT_OF_SWITCH,
        (REBOOTED, "switch/leaf-01"),
        (PORT_DOWN, "switch/spine-01/port/Ethernet0"),
    ),
    (Relation.PORT_OF_SWITCH, ("switch.ports_lost", "switch/leaf-01"), (PORT_DOWN, PORT)),
    (Relation.NEIGHBOUR_OF_SWITCH, (REBOOTED, "switch/leaf-01"), (BGP, "switch/spine-08")),
    (Relation.LEAF_OF_RAIL, (REBOOTED, "switch/leaf-01"), ("nic.rail.degraded", NIC)),
    (
        Relation.LEAF_OF_RAIL,
        (REBOOTED, "switch/leaf-09"),
        ("job.stalled", resources.job("slurm", "7")),
    ),
    (
        Relation.SPINE_OF_LEAFS,
        (REBOOTED, "switch/spine-01"),
        (PORT_DOWN, "switch/leaf-16/port/Ethernet256"),
    ),
    (Relation.SPINE_OF_LEAFS, (REBOOTED, "switch/spine-01"), (BGP, "switch/leaf-16")),
    (Relation.STORAGE_PATH, (REBOOTED, "switch/sto-01"), (LUSTRE, "node/gn001")),
    (Relation.STORAGE_PATH, (REBOOTED, "switch/sto-01"), (DOWN, "node/gn001/nic/mlx5_8")),
    (Relation.STORAGE_PATH, ("storage.service_lost", "storage/lustre"), (LUSTRE, "node/gn099")),
    (Relation.STORAGE_PATH, ("storage.lustre.server_bug", "node/ddn-1"), (LUSTRE, "node/gn099")),
    (Relation.RACK, ("facility.nodes_down", "rack/r01"), ("slurm.node_down", "node/gn005")),
    (Relation.RACK, ("facility.nodes_down", "rack/r01"), (PORT_DOWN, PORT)),
    (Relation.POD, ("switch.leafs_lost", "pod/pod-a"), (REBOOTED, "switch/leaf-08")),
    (Relation.POD, ("switch.leafs_lost", "pod/pod-a"), (DOWN, "node/gn005/nic/mlx5_0")),
    (
        Relation.POD,
        ("switch.leafs_lost", "pod/pod-a"),
        (PORT_DOWN, "switch/leaf-01/port/Ethernet256"),
    ),
    (
        Relation.STORAGE_PATH,
        (REBOOTED, "switch/sto-01"),
        ("storage.service_lost", "storage/lustre"),
    ),
    (
        Relation.STORAGE_PATH,
        ("storage.lustre.server_bug", "node/ddn-1"),
        ("storage.service_lost", "storage/lustre"),
    ),
    (
        Relation.POWER_FEED,
        ("facility.power.degraded", "feed/feed-1"),
        ("node.power_supply.failed", "node/gn005"),
    ),
    (
        Relation.POWER_FEED,
        ("facility.power.degraded", "feed/feed-1"),
        ("facility.power.degraded", "rack/r01"),
    ),
    (Relation.COOLING, ("facility.cooling.degraded", "rack/r01"), ("gpu.slowdown.thermal", GPU)),
    (Relation.ALL_OF_SITE, ("facility.nodes_down", ALL_NODES), ("slurm.node_down", "node/gn005")),
    (
        Relation.SWITCHES_OF_SITE,
        ("switch.spines_lost", "site/spines"),
        (REBOOTED, "switch/spine-01"),
    ),
    (
        Relation.SWITCHES_OF_SITE,
        ("config.switch_on_many", "site/switches"),
        ("config.switch.pfc", PORT),
    ),
    (
        Relation.SWITCHES_OF_SITE,
        ("config.switch_on_many", "site/switches"),
        ("config.switch_on_many", "pod/pod-a"),
    ),
    (
        Relation.SWITCHES_OF_SITE,
        ("facility.time_lost", ALL_NODES),
        ("config.clock_unsynchronised", "switch/leaf-01"),
    ),
    (Relation.MANAGEMENT_SWITCH, (REBOOTED, "switch/mgmt-01"), (SILENT, "node/gn050")),
    (
        Relation.MANAGEMENT_NETWORK,
        ("network.management_unreachable", "site/management"),
        (SILENT, "node/gn050"),
    ),
    (
        Relation.PAUSE_PATH,
        ("nic.pfc.storm", NIC),
        ("switch.pfc_storm", "switch/spine-02/port/Ethernet0"),
    ),
    (Relation.PAUSE_PATH, ("nic.pfc.storm", NIC), ("nic.pfc.stalling", NEXT_NIC)),
    (Relation.SAME_JOB, ("gpu.xid.79", GPU), ("gpu.xid.45", "node/gn060/gpu/0000:19:00.0")),
    (
        Relation.SAME_JOB,
        ("gpu.xid.79", GPU),
        ("job.application_failed", resources.job("slurm", "7")),
    ),
    (Relation.SAME_MAINTENANCE, (SILENT, "node/gn001"), (SILENT, "node/gn002")),
]

APART = [
    (Relation.SAME_PART, (SILENT, "node/gn001"), (SILENT, "node/gn001")),
    (Relation.SAME_GPU, ("gpu.xid.79", GPU), ("gpu.xid.79", "node/gn001/gpu/0000:3b:00.0")),
    (Relation.UNNAMED_GPU, ("gpu.xid.79", GPU), ("gpu.driver.lost", "node/gn002/gpu/-")),
    (
        Relation.SAME_MACHINE,
        ("job.stalled", "site/slurm/job/7"),
        ("job.stalled", "site/slurm/job/8"),
    ),
    (
        Relation.NVSWITCH_FABRIC,
        ("nvlink.sxid.20034", "node/gn001/nvswitch/0000:07:00.0"),
        (DOWN, NIC),
    ),
    (Relation.CABLE, (DOWN, NIC), (PORT_DOWN, NEXT_PORT)),
    (Relation.MODULE, (DOWN, NIC), ("switch.port.error", "switch/leaf-01/port/Ethernet8")),
    (Relation.SHARED_MACHINE, (DOWN, NIC), (DOWN, "node/gn002/nic/mlx5_1")),
    (Relation.PORT_OF_SWITCH, (PORT_DOWN, PORT), (DOWN, NEXT_NIC)),
    (Relation.PORT_OF_SWITCH, (REBOOTED, "switch/leaf-01"), (LUSTRE, "node/gn001")),
    (Relation.SAME_JOB, ("gpu.xid.79", GPU), ("gpu.xid.45", "node/gn003/gpu/0000:19:00.0")),
    (Relation.SAME_MAINTENANCE, (SILENT, "node/gn001"), (SILENT, "node/gn003")),
    (Relation.RACK, ("facility.nodes_down", "rack/r01"), ("slurm.node_down", "node/gn006")),
    (Relation.POD, ("switch.leafs_lost", "pod/pod-a"), (REBOOTED, "switch/leaf-09")),
    (Relation.POD, ("switch.leafs_lost", "pod/pod-a"), (REBOOTED, "switch/spine-01")),
    (Relation.POD, ("switch.leafs_lost", "pod/pod-a"), (DOWN, "node/gn005/nic/mlx5_8")),
    (
        Relation.SWITCHES_OF_SITE,
        ("switch.spines_lost", "site/spines"),
        (REBOOTED, "switch/leaf-01"),
    ),
    (
        Relation.SWITCHES_OF_SITE,
        ("config.switch_on_many", "site/switches"),
        (SILENT, "switch/mgmt-01"),
    ),
]


@pytest.mark.parametrize(("relation", "cause", "effect"), MEET)
def test_faults_meet_when_they_are_related(
    relation: Relation, cause: tuple[str, str], effect: tuple[str, str], around: Surroundings
) -> None:
    assert meets(relation, a_view(*cause), a_view(*effect), around)


@pytest.mark.parametrize(("relation", "cause", "effect"), APART)
def test_faults_stay_apart_when_they_are_not_related(
    relation: Relation, cause: tuple[str, str], effect: tuple[str, str], around: Surroundings
) -> None:
    assert not meets(relation, a_view(*cause), a_view(*effect), around)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("side", Side)
def test_every_relation_answers_when_nothing_is_known_of_the_site(
    relation: Relation, side: Side
) -> None:
    for resource in (
        GPU,
        NIC,
        PORT,
        "switch/leaf-01",
        "rack/r01",
        "site/slurm/job/7",
        "storage/lustre",
        "node/-",
    ):
        fault = a_view("nic.link.down", resource)
        assert get_keys(relation, side, fault, Surroundings()) >= frozenset()
        assert get_owners(relation, side, fault, Surroundings()) >= frozenset()


def test_every_relation_is_shown_to_relate_when_it_is_listed() -> None:
    assert {relation for relation, _, _ in MEET} == set(Relation)
