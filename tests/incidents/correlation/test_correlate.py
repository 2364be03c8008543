"""Which incident a new fault belongs to: one rule each, in both orders, and what must stay
apart."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest

from detectors.catalog import catalog
from detectors.faults import Role
from incidents.correlation.engine import Joins, Keeps, Opens, Placement, Setting, place
from incidents.correlation.relations import Surroundings
from incidents.faults.fault_views import SILENCES, USER_REPORT, FaultView, IncidentView
from incidents.topology.graph import Graph
from incidents.topology.topology import CablePlace, Topology
from incidents.vocabulary.lifecycle import State
from tests.builders import GPU, NOW, OTHER_GPU

SECOND = timedelta(seconds=1)
WINDOW = timedelta(minutes=10)
NVSWITCH = "node/gn042/nvswitch/0000:06:00.0"
NIC = "node/gn042/nic/mlx5_0"
OTHER_NIC = "node/gn043/nic/mlx5_0"
DISK = "node/gn042/disk/nvme0n1"
LEAF, PORT, OTHER_PORT = (
    "switch/leaf-01",
    "switch/leaf-01/port/Ethernet0",
    "switch/leaf-01/port/Ethernet4",
)
UPLINK, SPINE_PORT = "switch/leaf-01/port/Ethernet256", "switch/spine-01/port/Ethernet0"
TOPOLOGY = Topology(
    cables=(
        CablePlace(NIC, PORT),
        CablePlace(OTHER_NIC, OTHER_PORT),
        CablePlace(UPLINK, SPINE_PORT),
    )
)
SETTING = Setting(Surroundings(Graph(TOPOLOGY)), WINDOW)


def a_view(fault_type: str, resource: str = GPU, *, after: timedelta = timedelta(0)) -> FaultView:
    row = catalog.load()[fault_type]
    return FaultView(
        fault_type=fault_type,
        resource=resource,
        component=row.component,
        severity=row.severity,
        action=row.action,
        occurred_at=NOW + after,
        observed_at=NOW + after + SECOND / 50,
        opens_incident=row.opens_incident,
        is_sympathetic=row.is_sympathetic,
    )


def an_open(
    root: FaultView, *members: FaultView, state: State = State.OPEN, key: int = 1
) -> IncidentView:
    return IncidentView(
        key, state, root, (root, *members), has_platform_signal=root.fault_type != "report.user"
    )


def placed(fault: FaultView, *incidents: IncidentView) -> Placement:
    return place(fault, incidents, SETTING)


def joined(fault: FaultView, *incidents: IncidentView) -> tuple[str, Role]:
    found = placed(fault, *incidents)
    assert isinstance(found, Joins), found
    return found.rule, found.role


MINUTE = 60 * SECOND


@pytest.mark.parametrize(
    ("root", "fault", "rule", "role"),
    [
        # One GPU.
        (("gpu.xid.79", GPU), ("gpu.xid.154", GPU), "same_part", Role.SYMPTOM),
        (("gpu.xid.48", GPU), ("gpu.xid.45", GPU), "same_part", Role.SYMPTOM),
        (("gpu.xid.154", GPU), ("gpu.xid.79", GPU), "same_part", Role.ROOT),
        (("gpu.lost", GPU), ("gpu.xid.79", GPU), "same_part", Role.SYMPTOM),
        # One node.
        (
            ("gpu.xid.79", GPU),
            ("gpu.count_mismatch", "node/gn042"),
            "count_after_loss",
            Role.SYMPTOM,
        ),
        (("gpu.count_mismatch", "node/gn042"), ("gpu.lost", GPU), "follows_hardware", Role.ROOT),
        (("gpu.xid.79", GPU), ("gpu.xid.45", OTHER_GPU), "follows_hardware", Role.SYMPTOM),
        (("gpu.xid.79", GPU), ("gpu.xid.154", OTHER_GPU), "follows_hardware", Role.SYMPTOM),
        (("gpu.xid.79", GPU), ("gpu.xid.79", OTHER_GPU), "same_node", Role.SYMPTOM),
        (
            ("gpu.xid.79", GPU),
            ("nvlink.sxid.20034", NVSWITCH),
            "nvswitch_and_lost_gpu",
            Role.SYMPTOM,
        ),
        (("nvlink.sxid.20034", NVSWITCH), ("gpu.xid.79", GPU), "nvswitch_and_lost_gpu", Role.ROOT),
        (("target.unreachable", "node/gn042"), ("gpu.xid.79", GPU), "node_stopped", Role.ROOT),
        (
            ("nic.firmware.unhealthy", NIC),
            ("nic.firmware.command_timeout", NIC),
            "nic_firmware_cascade",
            Role.SYMPTOM,
        ),
        # The network, in whichever order it is told.
        (("switch.rebooted", LEAF), ("nic.link.down", NIC), "behind_switch", Role.SYMPTOM),
        (("nic.link.down", NIC), ("switch.rebooted", LEAF), "behind_switch", Role.ROOT),
        (("nic.link.down", NIC), ("nic.link.down", OTHER_NIC), "links_at_once", Role.SYMPTOM),
        (("nic.link.down", NIC), ("switch.port.down", PORT), "ends_of_cable", Role.SYMPTOM),
        (("switch.port.down", PORT), ("switch.rebooted", LEAF), "behind_switch", Role.ROOT),
        (
            ("switch.rebooted", LEAF),
            ("switch.port.down", SPINE_PORT),
            "behind_switch",
            Role.SYMPTOM,
        ),
        (
            ("switch.rebooted", LEAF),
            ("switch.bgp.down", "switch/spine-01"),
            "routing_behind_switch",
            Role.SYMPTOM,
        ),
        (
            ("switch.bgp.down", "switch/spine-01"),
            ("switch.rebooted", LEAF),
            "routing_behind_switch",
            Role.ROOT,
        ),
        (
            ("switch.asic.sdk_failed", LEAF),
            ("switch.process_crash", LEAF),
            "same_switch",
            Role.SYMPTOM,
        ),
        # A restart that mends what was before it.
        (
            ("switch.asic.sdk_failed", LEAF),
            ("switch.rebooted", LEAF),
            "restarted_switch",
            Role.SYMPTOM,
        ),
        (
            ("nic.firmware.unhealthy", NIC),
            ("node.links_lost", "node/gn042"),
            "restarted_for_card",
            Role.SYMPTOM,
        ),
    ],
)
def test_fault_joins(root: tuple[str, str], fault: tuple[str, str], rule: str, role: Role) -> None:
    assert joined(a_view(*fault, after=12 * SECOND), an_open(a_view(*root))) == (rule, role)


@pytest.mark.parametrize(
    ("root", "fault"),
    [
        (("gpu.xid.79", GPU), ("gpu.xid.79", "node/gn043/gpu/0000:19:00.0")),
        (("nic.link.down", NIC), ("nic.link.down", "node/gn044/nic/mlx5_0")),
        # One node, but neither can be the other's cause.
        (("gpu.xid.79", GPU), ("nic.link.down", NIC)),
        (("nic.link.down", NIC), ("gpu.xid.79", GPU)),
        (("nvlink.sxid.20034", NVSWITCH), ("nic.firmware.unhealthy", NIC)),
        (("gpu.xid.79", GPU), ("storage.lustre.connection_lost", "node/gn042")),
        (("switch.rebooted", LEAF), ("gpu.xid.79", GPU)),
        (("nic.link.down", NIC), ("switch.rebooted", "switch/leaf-02")),
        # A file system's word about the node, and a disk in it: either could hide the other.
        (("storage.lustre.evicted", "node/gn042"), ("storage.nvme.lost", DISK)),
        (("storage.nvme.lost", DISK), ("storage.lustre.evicted", "node/gn042")),
        # A compute leaf reaches no file system.
        (("switch.rebooted", LEAF), ("storage.lustre.connection_lost", "node/gn042")),
    ],
)
def test_faults_of_machines_that_share_nothing_stay_apart(
    root: tuple[str, str], fault: tuple[str, str]
) -> None:
    assert isinstance(placed(a_view(*fault, after=SECOND), an_open(a_view(*root))), Opens)


def test_window_decides_for_two_gpus_of_one_node() -> None:
    incident = an_open(a_view("gpu.xid.79"))
    assert isinstance(placed(a_view("gpu.xid.79", OTHER_GPU, after=WINDOW), incident), Joins)
    assert isinstance(
        placed(a_view("gpu.xid.79", OTHER_GPU, after=WINDOW + SECOND), incident), Opens
    )


@pytest.mark.parametrize(
    ("after", "is_one"),
    [(37 * MINUTE, True), (timedelta(hours=10), True), (timedelta(days=2), False)],
)
def test_a_switch_is_restarted_for_its_dead_software_within_a_day(
    after: timedelta, is_one: bool
) -> None:
    incident = an_open(a_view("switch.asic.sdk_failed", LEAF))
    assert isinstance(
        placed(a_view("switch.rebooted", LEAF, after=after), incident), Joins if is_one else Opens
    )


def test_a_failed_power_supply_is_no_reason_for_a_reboot_hours_later() -> None:
    late = a_view("switch.rebooted", LEAF, after=timedelta(hours=2))
    assert isinstance(placed(late, an_open(a_view("switch.power", LEAF))), Opens)


def test_a_node_is_restarted_for_its_broken_card_however_late() -> None:
    late = a_view("node.links_lost", "node/gn042", after=timedelta(hours=7))
    assert joined(late, an_open(a_view("nic.firmware.unhealthy", NIC)))[0] == "restarted_for_card"


def test_same_gpu_joins_its_open_incident_however_late() -> None:
    late = a_view("gpu.xid.48", after=timedelta(days=3))
    assert (
        joined(late, an_open(a_view("gpu.xid.79"), state=State.AWAITING_VENDOR))[0] == "same_part"
    )


@pytest.mark.parametrize("fault_type", ["gpu.xid.13", "gpu.xid.31", "gpu.xid.43", "gpu.xid.45"])
def test_echo_of_a_program_never_condemns_hardware(fault_type: str) -> None:
    assert isinstance(placed(a_view(fault_type)), Keeps)


def test_fault_that_a_user_reported_becomes_the_root() -> None:
    report = a_view("report.user", "node/gn042")
    assert joined(a_view("gpu.xid.79", after=MINUTE), an_open(report)) == (
        "confirms_report",
        Role.ROOT,
    )
    assert joined(a_view("gpu.xid.45", after=MINUTE), an_open(report)) == (
        "confirms_report",
        Role.SYMPTOM,
    )


def test_report_joins_what_still_stands_and_what_just_happened() -> None:
    late = a_view("report.user", "node/gn042", after=3 * WINDOW)
    incident = an_open(a_view("gpu.xid.79"))
    assert joined(late, incident) == ("user_report", Role.SYMPTOM)
    ended = replace(incident.root, is_active=False)
    assert isinstance(placed(late, replace(incident, root=ended, members=(ended,))), Opens)


def test_report_joins_by_a_member_that_stands_on_its_machine_whatever_the_root() -> None:
    link = a_view("nic.link.down", NIC)
    leaf = an_open(a_view("switch.rebooted", LEAF), link)
    late = a_view("report.user", "node/gn042", after=3 * WINDOW)
    assert joined(late, leaf) == ("user_report", Role.SYMPTOM)


def test_transients_of_a_repair_join_it_and_a_second_broken_gpu_does_not() -> None:
    repair = an_open(a_view("gpu.xid.79"), state=State.REPAIRING)
    late = 3 * WINDOW
    assert joined(a_view("nic.link.down", NIC, after=late), repair)[0] == "during_repair"
    assert (
        joined(a_view("target.unreachable", "node/gn042", after=late), repair)[0] == "node_stopped"
    )
    assert joined(a_view("switch.port.down", PORT, after=late), repair)[0] == "far_end_of_repair"
    assert isinstance(placed(a_view("gpu.xid.79", OTHER_GPU, after=late), repair), Opens)


def test_gpu_fault_on_a_node_of_a_leafs_incident_is_its_own() -> None:
    links = an_open(a_view("nic.link.down", NIC), a_view("nic.link.down", OTHER_NIC))
    assert isinstance(placed(a_view("gpu.xid.79", after=SECOND), links), Opens)


def test_stronger_fault_on_the_same_gpu_takes_the_root_from_a_warning() -> None:
    watch = next(
        row
        for row in catalog.load()
        if row.family == "xid" and row.opens_incident and row.action == "watch"
    )
    weak = replace(a_view("gpu.xid.48"), fault_type=watch.id, action=watch.action)
    assert joined(a_view("gpu.xid.79", after=SECOND), an_open(weak)) == ("same_part", Role.ROOT)
    assert joined(weak, an_open(a_view("gpu.xid.79"))) == ("same_part", Role.SYMPTOM)


def test_clocks_of_two_machines_may_differ() -> None:
    rebooted = replace(a_view("switch.rebooted", LEAF), occurred_at=NOW - timedelta(hours=5))
    assert joined(a_view("nic.link.down", NIC), an_open(rebooted))[0] == "behind_switch"


def test_nearest_incident_wins_when_two_fit() -> None:
    first = an_open(a_view("gpu.xid.79"), key=1)
    second = an_open(a_view("gpu.xid.79", "node/gn042/gpu/0000:4c:00.0", after=8 * MINUTE), key=2)
    found = placed(a_view("gpu.xid.45", OTHER_GPU, after=9 * MINUTE), first, second)
    assert isinstance(found, Joins)
    assert found.incident == 2


def test_reason_says_when_after_what_and_why() -> None:
    found = placed(
        a_view("nvlink.sxid.20034", NVSWITCH, after=12 * SECOND), an_open(a_view("gpu.xid.79"))
    )
    assert isinstance(found, Joins)
    assert (
        found.reason
        == "12 s after gpu.xid.79 on gn042 GPU 0000:19:00.0: NVSwitches see the links of the lost GPU"
    )


def test_reason_says_at_the_same_moment_when_less_than_a_second_lies_between() -> None:
    for after in (-SECOND / 2, SECOND / 2):
        found = placed(a_view("gpu.xid.154", after=after), an_open(a_view("gpu.xid.79")))
        assert isinstance(found, Joins)
        assert found.reason.startswith(
            "at the same moment as gpu.xid.79 on gn042 GPU 0000:19:00.0: "
        )


SILENCES_AT = {
    "target.unreachable": ("node/gn042", LEAF),
    "network.management_unreachable": ("site/management",),
}
MEASURED = [
    row.id
    for row in catalog.load()
    if row.opens_incident and not row.is_sympathetic and row.id not in {*SILENCES, USER_REPORT}
]


@pytest.mark.parametrize("silence", SILENCES_AT)
def test_no_measured_fault_is_an_effect_of_unreachability(silence: str) -> None:
    """Whatever is measured beside a silence has an incident of its own, or explains the silence."""
    places = ("node/gn042", GPU, NIC, NVSWITCH, DISK, LEAF, PORT)
    swallowed = []
    for at in SILENCES_AT[silence]:
        incident = an_open(a_view(silence, at))
        for fault_type, place_of_fault in itertools.product(MEASURED, places):
            found = placed(a_view(fault_type, place_of_fault, after=SECOND), incident)
            if isinstance(found, Joins) and found.role is not Role.ROOT:
                swallowed.append((fault_type, place_of_fault, found.rule))
    assert swallowed == []
