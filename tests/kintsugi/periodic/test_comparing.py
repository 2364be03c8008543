"""What only both ends of a cable, or several nodes, show together: polled, compared and told
through the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from detectors.catalog import catalog
from detectors.node.nic import NicDetector
from detectors.node.rail import RailDetector
from detectors.node.transceiver import TransceiverDetector
from detectors.switch.switch_snmp import SwitchSensorsDetector, SwitchSnmpDetector
from fixtures.cluster.facets.nic import RAIL_BYTES_PER_S, NicFacet, SimulatedPort
from fixtures.cluster.facets.nic_polled import DEVICE, RAIL
from fixtures.cluster.switch_mib import DOWN, MibPort
from fixtures.cluster.transports import simulated_transports
from fixtures.cluster.world import SimulatedWorld
from fixtures.memory_slurm import MemorySlurm
from incidents.checks.cables import KIND
from incidents.inventory import graphs, services
from incidents.models import Fault, Incident, Notification, TimelineEntry
from incidents.polling.polling import Chunk
from kintsugi.periodic.polling import Watch
from kintsugi.pipeline import Pipeline
from tests.builders import NOW
from tests.runbooks.site import CLUSTER, Site

pytestmark = pytest.mark.django_db
TOPOLOGY = Path(__file__).resolve().parents[3] / "fixtures" / "topology" / "sakuraone.toml"
TICK = timedelta(seconds=15)
NODES, LEAF = ("gn001", "gn002", "gn003"), "leaf-04"


class Rings:
    def __init__(self) -> None:
        self.polls: list[Chunk] = []

    def ingest(self) -> None: ...

    def advance(self, run_id: int, at: object = None) -> None: ...

    def notify(self, notification_id: int, at: object = None) -> None: ...

    def poll(self, chunk: Chunk) -> None:
        self.polls.append(chunk)


class House:
    """Three nodes of the model site and the leaf of their fourth rail, polled and swept as at a
    site."""

    def __init__(self) -> None:
        self.now = NOW
        whole = services.load(TOPOLOGY)
        machines = {*NODES, LEAF}
        services.apply(
            replace(
                whole,
                nodes=tuple(node for node in whole.nodes if node.name in machines),
                switches=tuple(switch for switch in whole.switches if switch.name in machines),
                cables=tuple(
                    c for c in whole.cables if {end.split("/")[1] for end in (c.a, c.b)} <= machines
                ),
                modules=tuple(module for module in whole.modules if module.switch in machines),
                ports=tuple(port for port in whole.ports if port.switch in machines),
                racks=(),
                feeds=(),
                storage=(),
            ),
            self.now,
        )
        graphs.forget()
        self.world = SimulatedWorld.sakuraone(clock=lambda: self.now)
        self.slurm = MemorySlurm(
            {name: ["gpu"] for name in NODES}, cluster_name=CLUSTER, now=lambda: self.now
        )
        self.ring = Rings()
        detectors = (
            *(NicDetector(), TransceiverDetector(), RailDetector()),
            *(SwitchSnmpDetector(), SwitchSensorsDetector()),
        )
        doors = replace(Site(nodes=0).world, slurm=self.slurm)
        watch = Watch(simulated_transports(self.world), detectors)
        self.pipeline = Pipeline(doors, None, self.ring, lambda: self.now, catalog.load(), watch)  # type: ignore[arg-type]

    def minutes(self, count: int) -> None:
        for _ in range(count * 4):
            self.now += TICK
            self.pipeline.poll_due(TICK)
            while self.ring.polls:
                self.pipeline.poll(self.ring.polls.pop(0))
            self.pipeline.tick()

    def nic(self, node: str) -> SimulatedPort:
        return self.world.node(node).facet(NicFacet).port(RAIL)

    def port(self, node: str) -> MibPort:
        far = graphs.get_current().find_peer(f"node/{node}/nic/{DEVICE}")
        assert far is not None
        return self.world.switches[LEAF].mib.ports[far.rpartition("/")[2]]


@pytest.fixture
def house() -> House:
    house = House()
    house.minutes(6)
    assert not Incident.objects.exists()
    return house


def said() -> list[str]:
    return list(TimelineEntry.objects.filter(kind=KIND).values_list("text", flat=True))


def test_a_failing_laser_of_a_node_is_told_apart_from_the_leafs_and_said_once(house: House) -> None:
    house.slurm.add_job("4711", nodes=["gn001"])
    house.nic("gn001").optics.tx_dbm[2] = -7.5
    house.minutes(9)
    (text,) = said()
    assert f"gn001 NIC {DEVICE} sends too little light: its laser is failing." in text
    assert "replace the module in the node's NIC; the one in the switch stays plugged in." in text
    assert "gn001 runs job 4711: wait for the end" in text
    assert Notification.objects.filter(reason=KIND).count() == 1, (
        "people are told, in the incident's thread"
    )
    house.slurm.finish_job("4711")
    house.minutes(3)
    assert said() == [text]


def test_darkness_at_both_halves_of_a_module_is_the_modules_and_its_other_half_is_spared(
    house: House,
) -> None:
    house.slurm.add_job("4712", nodes=["gn002"])
    for node in ("gn001", "gn002"):
        house.nic(node).optics.rx_dbm[2] = -11.0
    house.minutes(9)
    (text,) = said()
    assert text.startswith(f"Both ends of all cables of {LEAF} module 1 compared: ")
    assert "the module is suspect, not one of the cables." in text
    assert "gn002 runs job 4712: wait for the end" in text


def test_a_port_that_somebody_shut_is_no_failing_laser(house: House) -> None:
    port = house.port("gn003")
    port.admin, port.oper = DOWN, DOWN
    port.rx_mw = dict.fromkeys(port.rx_mw, 0.0)
    house.nic("gn003").go_down()
    house.minutes(6)
    (text,) = said()
    assert f"{LEAF} port {port.name} is switched off by configuration" in text


def test_nothing_is_said_of_a_leaf_that_is_gone_as_a_whole(house: House) -> None:
    house.world.switches[LEAF].mib.is_answering = False
    for node in NODES:
        house.nic(node).go_down()
    house.minutes(6)
    assert Incident.objects.get().root_resource == f"switch/{LEAF}"
    assert said() == []


def slow_down(house: House) -> None:
    for node in NODES:
        house.nic(node).carry(0.4 * RAIL_BYTES_PER_S, house.now)


def agreed() -> set[str]:
    rows = Fault.objects.filter(fault_type="nic.rail.degraded", is_active=True)
    return {resource.split("/")[1] for resource in rows.values_list("resource", flat=True)}


def two_jobs(house: House) -> None:
    house.slurm.add_job("1", nodes=NODES[:2])
    house.slurm.add_job("2", nodes=NODES[2:])


def test_a_rail_that_is_slow_on_three_nodes_of_two_jobs_is_a_fault_until_it_is_not(
    house: House,
) -> None:
    two_jobs(house)
    slow_down(house)
    house.minutes(9)
    assert agreed() == set(NODES)
    incident = Incident.objects.get()
    assert incident.fault_type == "nic.rail.degraded"
    assert incident.root_fault is not None
    assert (
        f"{LEAF} is slow on 3 nodes in 2 jobs: look at it first"
        in incident.root_fault.evidence.latest("pk").excerpt
    )
    for node in NODES:
        house.nic(node).carry(RAIL_BYTES_PER_S, house.now)
    house.minutes(4)
    assert agreed() == set()


@pytest.mark.parametrize(
    "jobs",
    [
        lambda house: house.slurm.add_job("1", nodes=NODES),
        lambda house: two_jobs(house) or setattr(house.slurm, "is_answering", False),
    ],
    ids=["one job", "Slurm does not answer"],
)
def test_slow_rails_are_no_fault_without_two_jobs_that_agree(
    house: House, jobs: Callable[[House], None]
) -> None:
    jobs(house)
    slow_down(house)
    house.minutes(8)
    assert Fault.objects.filter(fault_type="nic.rail.slow", is_active=True).count() == len(NODES)
    assert agreed() == set()
