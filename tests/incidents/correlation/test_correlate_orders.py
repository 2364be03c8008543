"""A cause explains its effects in whichever order they come: every rule as a pair, and whole storms
at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.faults import Role
from incidents.correlation import rule_file
from incidents.correlation.candidates import CandidateIndex
from incidents.correlation.engine import (
    Joins,
    Keeps,
    Merges,
    Opens,
    Setting,
    judge,
    list_symptoms,
    place,
)
from incidents.correlation.relations import Surroundings
from incidents.correlation.rules import Root
from incidents.faults.fault_views import FaultView, IncidentView
from incidents.topology.graph import Graph
from incidents.topology.topology import (
    CablePlace,
    ModulePlace,
    NodePlace,
    RackPlace,
    StoragePlace,
    SwitchPlace,
    Topology,
)
from incidents.vocabulary.lifecycle import State
from tests.builders import GPU, OTHER_GPU
from tests.incidents.correlation.test_correlate import SECOND, WINDOW, a_view, an_open

JOB = "site/slurm/job/17"
NODE, OTHER = "node/gn042", "node/gn043"
NIC, OTHER_NIC = f"{NODE}/nic/mlx5_0", f"{OTHER}/nic/mlx5_0"
LEAF, SPINE, STORE = "switch/leaf-01", "switch/spine-01", "switch/sto-01"
PORT, OTHER_PORT, THIRD_PORT = (
    f"{LEAF}/port/Ethernet0",
    f"{LEAF}/port/Ethernet4",
    f"{LEAF}/port/Ethernet8",
)
UPLINK, SPINE_PORT = f"{LEAF}/port/Ethernet256", f"{SPINE}/port/Ethernet0"
SWITCH_OF_MANAGEMENT = "switch/mgmt-01"
NVSWITCH = f"{NODE}/nvswitch/0000:06:00.0"
TOPOLOGY = Topology(
    nodes=(
        NodePlace("gn042", rack="r01"),
        NodePlace("gn043", rack="r01"),
        NodePlace("oss01", role="storage"),
    ),
    switches=(
        SwitchPlace("leaf-01", "leaf", pod="a", rail=0),
        SwitchPlace("leaf-02", "leaf", pod="a", rail=1),
        SwitchPlace("spine-01", "spine"),
        SwitchPlace("sto-01", "storage"),
        SwitchPlace("mgmt-01", "management"),
    ),
    cables=(
        CablePlace(NIC, PORT),
        CablePlace(OTHER_NIC, OTHER_PORT),
        CablePlace("node/gn044/nic/mlx5_0", THIRD_PORT),
        CablePlace(UPLINK, SPINE_PORT),
        CablePlace(f"{NODE}/nic/mlx5_8", f"{STORE}/port/Ethernet0"),
        CablePlace(f"{NODE}/nic/mlx5_1", "switch/leaf-02/port/Ethernet0"),
    ),
    modules=(ModulePlace("leaf-01", "Ethernet0", ("Ethernet0", "Ethernet4")),),
    racks=(RackPlace("r01", management_switch="mgmt-01"),),
    storage=(StoragePlace("/lustre", servers=("oss01",), switches=("sto-01",)),),
)
ON_BOTH = {NODE: frozenset({JOB}), OTHER: frozenset({JOB})}
AROUND = Surroundings(Graph(TOPOLOGY), jobs=ON_BOTH, machines={JOB: frozenset(ON_BOTH)}, windows={})
SETTING = Setting(AROUND, WINDOW)

CAUSES = [
    (
        "behind_management",
        ("network.management_unreachable", "site/management"),
        ("target.unreachable", NODE),
    ),
    ("silent_ill_switch", ("switch.rebooted", LEAF), ("target.unreachable", LEAF)),
    (
        "behind_management_switch",
        ("switch.rebooted", SWITCH_OF_MANAGEMENT),
        ("target.unreachable", NODE),
    ),
    ("power_input", ("facility.power.input_lost", NODE), ("node.redundancy_lost", NODE)),
    (
        "cooling",
        ("facility.inlet_temperature", NODE),
        ("gpu.slowdown.thermal", f"{OTHER}/gpu/0000:19:00.0"),
    ),
    ("nic_behind_its_link", ("nic.firmware.unhealthy", NIC), ("switch.port.down", PORT)),
    ("setting_of_link", ("config.port.fec", PORT), ("nic.link.down", NIC)),
    ("behind_switch", ("switch.rebooted", LEAF), ("nic.link.down", NIC)),
    ("behind_switch", ("switch.rebooted", SPINE), ("switch.port.down", UPLINK)),
    ("report_behind_switch", ("switch.rebooted", LEAF), ("nic.link.down", NODE)),
    ("stopped_behind_switch", ("switch.rebooted", LEAF), ("nic.tx_timeout", NIC)),
    ("stopped_behind_switch", ("switch.ports_lost", LEAF), ("nic.tx_timeout", NIC)),
    ("routing_behind_switch", ("switch.rebooted", LEAF), ("switch.bgp.down", SPINE)),
    ("optics_of_link", ("nic.transceiver.rx_power_low", NIC), ("switch.port.down", PORT)),
    ("routing_over_link", ("switch.port.down", UPLINK), ("switch.bgp.down", SPINE)),
    ("rail_behind_leaf", ("switch.mac_learning_anomaly", LEAF), ("nic.rail.degraded", NIC)),
    ("behind_storage_switch", ("switch.rebooted", STORE), ("storage.lustre.connection_lost", NODE)),
    (
        "behind_server",
        ("storage.lustre.server_bug", "node/oss01"),
        ("storage.lustre.connection_lost", NODE),
    ),
    ("pcie_of_lost_gpu", ("gpu.xid.79", GPU), ("pcie.aer.fatal", f"{NODE}/pci/0000:19:00.1")),
    ("line_without_address", ("gpu.xid.79", GPU), ("gpu.driver.lost", f"{NODE}/gpu/-")),
    ("ecc_cascade", ("gpu.xid.48", GPU), ("gpu.xid.64", GPU)),
    ("ecc_cascade", ("gpu.xid.48", GPU), ("gpu.xid.95", GPU)),
    ("firmware_cascade", ("gpu.xid.119", GPU), ("gpu.xid.109", GPU)),
    ("nic_firmware_cascade", ("nic.firmware.unhealthy", NIC), ("nic.tx_timeout", NIC)),
    ("nvswitch_and_lost_gpu", ("gpu.xid.79", GPU), ("nvlink.sxid.20034", NVSWITCH)),
    ("nvswitch_cascade", ("nvlink.sxid.22003", NVSWITCH), ("gpu.xid.74", OTHER_GPU)),
    ("follows_hardware", ("gpu.xid.48", GPU), ("gpu.xid.154", OTHER_GPU)),
    ("service_set_wrongly", ("config.slurm_refused", NODE), ("node.service.failed", NODE)),
]
# What has one order alone, or an effect that opens no incident which could be re-rooted.
ONE_WAY = [
    ("count_after_loss", ("gpu.xid.79", GPU), ("gpu.count_mismatch", NODE)),
    ("same_job", ("gpu.xid.79", GPU), ("gpu.xid.45", f"{OTHER}/gpu/0000:19:00.0")),
    ("restarted_switch", ("switch.asic.sdk_failed", LEAF), ("switch.rebooted", LEAF)),
]
PEERS = [
    ("confirms_report", ("report.user", NODE), ("gpu.xid.79", GPU)),
    ("user_report", ("gpu.xid.79", GPU), ("report.user", NODE)),
    ("ends_of_cable", ("nic.link.down", NIC), ("switch.port.down", PORT)),
    ("ports_of_module", ("nic.link.errors", NIC), ("nic.link.errors", OTHER_NIC)),
    ("links_of_node", ("nic.link.down", NIC), ("nic.link.down", f"{NODE}/nic/mlx5_1")),
    ("links_at_once", ("nic.link.down", NIC), ("nic.link.down", "node/gn044/nic/mlx5_0")),
    ("rails_of_leaf", ("nic.rail.degraded", NIC), ("nic.rail.degraded", "node/gn044/nic/mlx5_0")),
    ("same_part", ("gpu.xid.79", GPU), ("gpu.xid.154", GPU)),
    ("settings_of_switch", ("config.port.fec", PORT), ("config.port.fec", THIRD_PORT)),
    ("same_switch", ("switch.asic.sdk_failed", LEAF), ("switch.process_crash", LEAF)),
    ("same_node", ("gpu.xid.79", GPU), ("gpu.xid.48", OTHER_GPU)),
    ("same_node_beside_gpus", ("config.nic.mtu", NIC), ("config.nic.mtu", f"{NODE}/nic/mlx5_1")),
]
REPORTS = {"confirms_report", "user_report"}
# Tested in test_correlate.py (repairs) and below (maintenance).
ELSEWHERE = {"during_repair", "far_end_of_repair", "same_maintenance"}
CONCLUDED = "concluded.toml"


@pytest.mark.parametrize(("rule", "cause", "effect"), [*CAUSES, *ONE_WAY])
def test_an_effect_joins_its_cause(
    rule: str, cause: tuple[str, str], effect: tuple[str, str]
) -> None:
    found = place(a_view(*effect, after=2 * SECOND), [an_open(a_view(*cause))], SETTING)
    assert isinstance(found, Joins)
    assert (found.rule, found.role) == (rule, Role.SYMPTOM)


@pytest.mark.parametrize(("rule", "cause", "effect"), CAUSES)
def test_a_cause_that_comes_later_takes_the_root(
    rule: str, cause: tuple[str, str], effect: tuple[str, str]
) -> None:
    found = place(a_view(*cause, after=2 * SECOND), [an_open(a_view(*effect))], SETTING)
    assert isinstance(found, Joins)
    assert (found.rule, found.role) == (rule, Role.ROOT)


@pytest.mark.parametrize(("rule", "one", "other"), PEERS)
def test_peers_join_in_either_order(
    rule: str, one: tuple[str, str], other: tuple[str, str]
) -> None:
    for first, second in ((one, other), (other, one)):
        found = place(a_view(*second, after=2 * SECOND), [an_open(a_view(*first))], SETTING)
        assert isinstance(found, Joins)
        assert found.rule in ({rule} if rule not in REPORTS else REPORTS)


def test_every_shipped_rule_is_among_the_pairs() -> None:
    tried = {rule for rule, _, _ in [*CAUSES, *ONE_WAY, *PEERS]} | ELSEWHERE
    shipped = [rule for rule in rule_file.load() if CONCLUDED not in rule.where]
    assert {rule.name for rule in shipped} == tried
    assert {rule.name for rule in shipped if rule.root is not Root.CAUSE} <= {
        rule for rule, _, _ in PEERS
    } | ELSEWHERE


def test_planned_work_joins_what_falls_silent_under_it() -> None:
    windows = {NODE: frozenset({"window/1"}), "node/gn099": frozenset({"window/1"})}
    setting = replace(SETTING, around=replace(AROUND, windows=windows))
    fault = a_view("target.unreachable", "node/gn099", after=SECOND)
    found = place(fault, [an_open(a_view("target.unreachable", NODE))], setting)
    assert isinstance(found, Joins)
    assert found.rule == "same_maintenance"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("nic.link.errors", NIC), ("nic.link.errors", "node/gn044/nic/mlx5_0")),
        (("nic.transceiver.rx_power_low", NIC), ("nic.link.down", "node/gn044/nic/mlx5_0")),
        (("switch.rebooted", LEAF), ("storage.lustre.connection_lost", NODE)),
        (("switch.rebooted", LEAF), ("nic.link.down", f"{NODE}/nic/mlx5_1")),
        (("switch.rebooted", SPINE), ("nic.link.down", NIC)),
        (("switch.rebooted", SWITCH_OF_MANAGEMENT), ("nic.link.down", NIC)),
        (("switch.fan", LEAF), ("nic.link.down", NIC)),
        (("gpu.xid.79", GPU), ("nic.link.down", NIC)),
    ],
)
def test_no_device_explains_what_is_out_of_its_reach(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    for first, second in ((one, other), (other, one)):
        assert isinstance(
            place(a_view(*second, after=SECOND), [an_open(a_view(*first))], SETTING), Opens
        )


def test_two_links_of_one_leaf_stay_two_when_a_minute_lies_between() -> None:
    later = a_view("nic.link.down", "node/gn044/nic/mlx5_0", after=40 * SECOND)
    found = place(later, [an_open(a_view("nic.link.down", NIC))], SETTING)
    assert isinstance(found, Opens)
    (near_misses,) = found.near_misses
    assert (near_misses.incident, near_misses.rule) == (1, "links_at_once")
    assert (
        near_misses.reason
        == "40 s after nic.link.down on gn042 NIC mlx5_0: too far apart in time for this rule"
    )


def test_a_cause_merges_every_incident_whose_root_it_explains() -> None:
    links = [
        replace(
            an_open(a_view("nic.link.down", nic), key=key),
            opened_at=a_view("gpu.xid.79").observed_at - key * SECOND,
        )
        for key, nic in enumerate((NIC, OTHER_NIC, "node/gn044/nic/mlx5_0"), 1)
    ]
    found = place(a_view("switch.rebooted", LEAF, after=60 * SECOND), links, SETTING)
    assert isinstance(found, Merges)
    assert found.incident == 3
    assert set(found.others) == {1, 2}
    assert (found.joins.role, found.root_of) == (Role.ROOT, None)
    assert {one.rule for one in found.explained} == {"behind_switch"}


def test_what_the_new_fault_explains_goes_under_the_cause_of_the_fault_itself() -> None:
    spine, routing = (
        an_open(a_view("switch.rebooted", SPINE), key=1),
        an_open(a_view("switch.bgp.down", LEAF), key=2),
    )
    found = place(a_view("switch.port.down", UPLINK, after=SECOND), [spine, routing], SETTING)
    assert isinstance(found, Merges)
    assert ({found.incident, *found.others}, found.root_of) == ({1, 2}, 1)
    assert found.joins.role is Role.SYMPTOM


def test_a_root_that_a_person_chose_is_never_taken() -> None:
    fixed = replace(an_open(a_view("nic.link.down", NIC)), is_fixed=True)
    found = place(a_view("switch.rebooted", LEAF, after=SECOND), [fixed], SETTING)
    assert isinstance(found, Opens)
    assert [one.reason.partition(": ")[2] for one in found.near_misses] == [
        "a person chose the root of that incident"
    ]


def test_what_opens_no_incident_explains_none() -> None:
    echo = a_view("gpu.xid.45", after=SECOND)
    follower = an_open(a_view("gpu.count_mismatch", NODE))
    found = place(echo, [follower], SETTING)
    assert not (isinstance(found, Joins) and found.role is Role.ROOT)


# Random orders
# ---------------------------------------------------------------------------


@dataclass(eq=False)
class Group:
    """An incident of the sketch below."""

    key: int
    root: FaultView
    members: list[FaultView] = field(default_factory=list)

    def view(self) -> IncidentView:
        return IncidentView(
            self.key, State.OPEN, self.root, tuple(self.members), opened_at=self.root.observed_at
        )


class Sketch:
    """The batch of ingest without a database: what `judge` and `effects` say is done to plain
    lists."""

    def __init__(self) -> None:
        self.index = CandidateIndex(SETTING.rules, AROUND)
        self.groups: dict[int, Group] = {}
        self.unassigned: list[FaultView] = []

    def take(self, fault: FaultView) -> None:
        placed = judge(fault, self.index, SETTING)
        if isinstance(placed, Keeps):
            self.unassigned.append(fault)
            self.index.assign(fault, None)
        elif isinstance(placed, Opens):
            group = self.groups[len(self.groups) + 1000] = Group(
                len(self.groups) + 1000, fault, [fault]
            )
            self.index.enter(group.key, group, root=fault, members=[fault])
            self.absorb(fault, group)
        else:
            self.add(fault, placed)

    def add(self, fault: FaultView, placed: Joins | Merges) -> None:
        group = self.groups[placed.incident]
        role = placed.role if isinstance(placed, Joins) else placed.joins.role
        if isinstance(placed, Merges):
            root = self.groups[placed.root_of].root if placed.root_of is not None else fault
            for key in placed.others:
                group.members += self.groups[key].members
                self.groups[key].members = []
                self.index.merge(key, group.key)
            group.root = root
            self.index.replace_root(group.key, root)
        group.members.append(fault)
        self.index.assign(fault, group.key)
        if role is Role.ROOT:
            group.root = fault
            self.index.replace_root(group.key, fault)
        self.absorb(fault, group)

    def absorb(self, fault: FaultView, group: Group) -> None:
        found = list(
            list_symptoms(
                fault, self.index, SETTING, incident=group.view(), is_root=fault is group.root
            )
        )
        for candidate, joins in found:
            unassigned = candidate.seen.view()
            if unassigned in self.unassigned:
                self.unassigned.remove(unassigned)
                self.add(unassigned, joins)

    @property
    def partition(self) -> set[tuple[str, frozenset[str]]]:
        """Each incident's root and members, by their types and places."""
        return {
            (format_fault(group.root), frozenset(map(format_fault, group.members)))
            for group in self.groups.values()
            if group.members
        }


def format_fault(fault: FaultView) -> str:
    return f"{fault.fault_type} on {fault.resource}"


LEAF_STORM = [
    ("switch.rebooted", LEAF),
    ("nic.link.down", NIC),
    ("nic.link.down", OTHER_NIC),
    ("nic.link.down", "node/gn044/nic/mlx5_0"),
    ("switch.port.down", PORT),
    ("switch.port.down", SPINE_PORT),
    ("switch.bgp.down", SPINE),
]
LOST_GPU = [
    ("gpu.xid.79", GPU),
    ("gpu.xid.154", GPU),
    ("gpu.xid.45", OTHER_GPU),
    ("nvlink.sxid.20034", NVSWITCH),
    ("gpu.xid.45", f"{OTHER}/gpu/0000:19:00.0"),
]
SPINE_STORM = [
    ("switch.rebooted", SPINE),
    ("switch.port.down", UPLINK),
    ("switch.port.down", SPINE_PORT),
    ("switch.bgp.down", LEAF),
]
STORAGE = [
    ("switch.rebooted", STORE),
    ("switch.port.down", f"{STORE}/port/Ethernet0"),
    ("storage.lustre.connection_lost", NODE),
]


def played(
    storms: Sequence[Sequence[tuple[str, str]]], order: Sequence[int]
) -> set[tuple[str, frozenset[str]]]:
    faults = [
        a_view(fault_type, resource, after=number * SECOND / 10)
        for number, (fault_type, resource) in enumerate(one for storm in storms for one in storm)
    ]
    sketch = Sketch()
    for number in order:
        sketch.take(faults[number])
    return sketch.partition


def expected(storm: Sequence[tuple[str, str]]) -> tuple[str, frozenset[str]]:
    return " on ".join(storm[0]), frozenset(" on ".join(one) for one in storm)


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(len(LEAF_STORM))))
def test_a_leafs_storm_is_one_incident_with_the_leaf_as_root_in_any_order(order: list[int]) -> None:
    assert played([LEAF_STORM], order) == {expected(LEAF_STORM)}


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(len(LOST_GPU))))
def test_a_lost_gpu_is_one_incident_in_any_order(order: list[int]) -> None:
    assert played([LOST_GPU], order) == {expected(LOST_GPU)}


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(len(SPINE_STORM) + len(LOST_GPU) + len(STORAGE))))
def test_three_causes_at_one_moment_are_three_incidents_in_any_order(order: list[int]) -> None:
    storms = [SPINE_STORM, LOST_GPU, STORAGE]
    assert played(storms, order) == {expected(storm) for storm in storms}


@given(st.permutations(range(4)))
def test_the_order_of_the_open_incidents_changes_nothing(order: list[int]) -> None:
    nics = (NIC, OTHER_NIC, "node/gn044/nic/mlx5_0", f"{NODE}/nic/mlx5_1")
    incidents = [an_open(a_view("nic.link.down", nic), key=key) for key, nic in enumerate(nics, 1)]
    fault = a_view("switch.rebooted", LEAF, after=timedelta(seconds=5))
    found = place(fault, [incidents[number] for number in order], SETTING)
    first = place(fault, incidents, SETTING)
    assert isinstance(found, Merges)
    assert isinstance(first, Merges)
    assert (found.incident, set(found.others), found.root_of) == (
        first.incident,
        set(first.others),
        first.root_of,
    )
