"""What a repair waits for: wider causes that are not restored, and that may bring about such a
fault."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.catalog import catalog
from detectors.faults import EventKind
from incidents.inventory import graphs
from incidents.models import Incident
from incidents.people import wider_incidents
from incidents.state import site_rules
from incidents.vocabulary.relations import Side
from tests.builders import NOW
from tests.incidents.correlation.test_correlate import a_view
from tests.incidents.sites import NODES, a_site, happen, nics

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
NODE, LEAF, RACK = "gn009", "switch/leaf-02", "rack/r03"
GPU, NIC, NIC_ELSEWHERE = (
    f"node/{NODE}/gpu/0000:19:00.0",
    f"node/{NODE}/nic/mlx5_1",
    f"node/{NODE}/nic/mlx5_2",
)


@pytest.fixture(autouse=True)
def _site(db: None) -> None:
    a_site()


def waits_for(fault_type: str, part: str, *, after: timedelta = MINUTE) -> list[str]:
    graph, at = graphs.get_current(), NOW + after
    wider = wider_incidents.list_wider_incidents(NODE, fault_type, part, graph, at)
    return [incident.resource for incident in wider]


@pytest.mark.parametrize(
    "fault_type",
    [
        "gpu.xid.79",
        "gpu.lost",
        "gpu.unresponsive",
        "gpu.xid.48",
        "node.kernel.panic",
        "nvlink.sxid.12020",
    ],
)
def test_nothing_inside_a_node_waits_for_a_leaf_that_is_down(fault_type: str) -> None:
    happen("switch.asic.sdk_failed", [LEAF])

    assert waits_for(fault_type, GPU) == []


def test_a_link_waits_for_its_own_leaf_and_for_no_other() -> None:
    happen("switch.asic.sdk_failed", [LEAF])

    assert waits_for("nic.link.down", NIC) == [LEAF]
    assert waits_for("nic.link.down", NIC_ELSEWHERE) == []


def test_a_link_waits_for_its_leaf_when_it_goes_hours_after_it() -> None:
    happen("switch.asic.sdk_failed", [LEAF])

    assert waits_for("nic.link.down", NIC, after=timedelta(hours=3)) == [LEAF]


def test_silence_waits_for_whatever_stands_between() -> None:
    happen("switch.asic.sdk_failed", [LEAF])

    assert waits_for("target.unreachable", f"node/{NODE}") == [LEAF]
    assert waits_for("slurm.node_not_responding", f"node/{NODE}") == [LEAF]


def test_every_part_of_a_machine_waits_while_its_rack_is_without_power() -> None:
    happen("facility.power.degraded", [RACK])
    assert waits_for("gpu.xid.79", GPU) == [RACK]
    graph, elsewhere = graphs.get_current(), ("gn001", "gpu.xid.79", "node/gn001")
    assert wider_incidents.list_wider_incidents(*elsewhere, graph, NOW + MINUTE) == []

    happen("facility.power.degraded", [RACK], at=NOW + 2 * MINUTE, kind=EventKind.CLEARED)
    assert waits_for("gpu.xid.79", GPU, after=3 * MINUTE) == []


@pytest.mark.parametrize(
    "shared", ["facility.directory_lost", "facility.time_lost", "config.software_on_many"]
)
def test_a_lost_gpu_does_not_wait_for_a_service_or_a_setting_that_many_share(shared: str) -> None:
    happen(shared, ["site/nodes"])

    assert waits_for("gpu.lost", GPU) == []


def test_what_a_lost_service_brings_about_waits_for_it() -> None:
    happen("facility.directory_lost", ["site/nodes"])

    assert waits_for("node.identity.failed", f"node/{NODE}") == ["site/nodes"]


def test_nothing_waits_for_a_leaf_that_rebooted_once_its_links_are_back() -> None:
    links = nics(1, NODES[:3])
    happen("switch.rebooted", [LEAF])
    happen("nic.link.down", links, at=NOW + SECOND)
    assert waits_for("nic.link.down", NIC) == [LEAF]

    happen("nic.link.down", links, at=NOW + 90 * SECOND, kind=EventKind.CLEARED)
    assert (
        Incident.objects.get(root_resource=LEAF).state == "open"
    )  # until the leaf has been quiet for half an hour
    assert waits_for("nic.link.down", NIC, after=2 * MINUTE) == []


def test_a_leaf_that_rebooted_without_a_link_is_waited_for_as_long_as_its_links_may_still_fail() -> (
    None
):
    happen("switch.rebooted", [LEAF])

    assert waits_for("nic.link.down", NIC, after=9 * MINUTE) == [LEAF]
    assert waits_for("nic.link.down", NIC, after=11 * MINUTE) == []


@pytest.mark.parametrize(
    ("fault_type", "part"),
    [
        ("nic.transceiver.rx_power_low", NIC),
        ("nic.link.errors", NIC),
        ("switch.transceiver.rx_power_low", f"{LEAF}/port/Ethernet32"),
    ],
)
def test_what_is_bad_behind_a_leaf_that_is_merely_not_heard_has_an_incident_of_its_own(
    fault_type: str, part: str
) -> None:
    happen("target.unreachable", [LEAF])
    happen("network.management_unreachable", ["site/management"], at=NOW + MINUTE)

    happen(fault_type, [part], at=NOW + 7 * MINUTE)

    assert Incident.objects.filter(root_resource=part, state="open").exists()
    assert waits_for(fault_type, part, after=8 * MINUTE) == []


@pytest.mark.parametrize("place", [LEAF, "switch/sto-01", "switch/mgmt-01", "switch/spine-01"])
def test_no_rule_makes_the_silence_of_a_switch_the_cause_of_anything_but_silence(
    place: str,
) -> None:
    rules = site_rules.load_joining_rules()
    silence = a_view("target.unreachable", place)
    causing = [
        rule
        for rule, side in rules.get_sides(silence)
        if side is Side.CAUSE and not rule.is_of_peers
    ]
    causing = [
        rule for rule in causing if not rule.states
    ]  # during a repair silence is what is expected
    explained = {
        row.id
        for row in catalog.load()
        for rule in causing
        if rules.get_classes(rule, Side.EFFECT, row.id)
    }

    assert explained == {"target.unreachable"}
