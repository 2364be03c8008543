"""What many machines show within minutes is one incident of what they share; what else fails on one
of them stays an incident of its own."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest

from detectors.faults import EventKind
from detectors.provenance import UNKNOWN, Forger, Provenance, Transport
from fixtures.replay.reader import TOPOLOGIES
from incidents.inventory import graphs, services
from incidents.models import Fault, Incident
from incidents.triage import aggregation
from incidents.triage.ingest import ingest
from incidents.triage.sweep import sweep
from tests.builders import NOW
from tests.incidents.sites import LEAFS, NODES, a_site, happen, open_incidents

pytestmark = pytest.mark.django_db

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
POLL = Provenance("kintsugi", Transport.SSH, forger=Forger.ROOT)
LOST_GPU = ("gpu.xid.79", f"node/{NODES[3]}/gpu/0000:19:00.0")
STORAGE_NICS = ("mlx5_8", "mlx5_9")


@pytest.fixture
def site(db: None) -> None:
    a_site()


@pytest.fixture
def model_site(db: None) -> None:
    """SAKURAONE, which has eight spines."""
    services.apply(services.load(TOPOLOGIES / "sakuraone.toml"), NOW)


def sweep_at(after: timedelta) -> None:
    """What the pipeline does every few seconds."""
    now = NOW + after
    events = aggregation.find_ended(now)
    if events:
        ingest(events, now=now)
    sweep(now=now)


def on_nodes(names: Iterable[str] = NODES, part: str = "") -> list[str]:
    return [f"node/{name}{part}" for name in names]


def on_switches(names: Iterable[str] = LEAFS, part: str = "") -> list[str]:
    return [f"switch/{name}{part}" for name in names]


NODES_SHARE = [
    ("nvlink.fabric_manager.failed", "", UNKNOWN, "node.service_lost_on_many"),
    ("nvlink.imex.failed", "", UNKNOWN, "node.service_lost_on_many"),
    ("node.service.down", "", POLL, "node.service_lost_on_many"),
    ("storage.filesystem.full", "/storage/sda1", UNKNOWN, "storage.full_on_many"),
    ("storage.filesystem.filling", "/storage/root", POLL, "storage.full_on_many"),
]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(("fault_type", "part", "told_by", "conclusion"), NODES_SHARE)
def test_what_ends_or_fills_up_on_many_nodes_is_one_incident_beside_a_lost_gpu(
    fault_type: str, part: str, told_by: Provenance, conclusion: str
) -> None:
    happen(fault_type, on_nodes(NODES[:9], part), told_by=told_by)
    assert len(open_incidents()) == 9

    happen(fault_type, on_nodes(NODES[9:], part), at=NOW + SECOND, told_by=told_by)
    assert open_incidents() == [(conclusion, "site/nodes")]

    happen(LOST_GPU[0], [LOST_GPU[1]], at=NOW + MINUTE, told_by=POLL)
    assert sorted(open_incidents()) == sorted([(conclusion, "site/nodes"), LOST_GPU])


@pytest.mark.usefixtures("site")
def test_a_gpu_that_was_lost_before_a_service_ends_everywhere_keeps_its_incident() -> None:
    happen(LOST_GPU[0], [LOST_GPU[1]], told_by=POLL)
    happen("nvlink.fabric_manager.failed", on_nodes(), at=NOW + SECOND)

    conclusion = ("node.service_lost_on_many", "site/nodes")
    assert sorted(open_incidents()) == sorted([LOST_GPU, conclusion])
    assert Incident.objects.get(fault_type="gpu.xid.79").node is not None


@pytest.mark.usefixtures("site")
def test_ten_gpus_that_are_lost_within_a_minute_stay_ten_incidents() -> None:
    lost = on_nodes(NODES[:10], "/gpu/0000:19:00.0")
    for number, gpu in enumerate(lost):
        happen("gpu.xid.79", [gpu], at=NOW + 5 * number * SECOND, told_by=POLL)

    assert sorted(open_incidents()) == [("gpu.xid.79", gpu) for gpu in lost]


@pytest.mark.usefixtures("site")
def test_services_that_restart_within_their_hold_down_are_no_incident() -> None:
    happen("node.service.failed", on_nodes())
    happen("node.service.failed", on_nodes(), at=NOW + 20 * SECOND, kind=EventKind.CLEARED)
    sweep_at(2 * MINUTE)

    assert open_incidents() == []


@pytest.mark.usefixtures("site")
def test_a_fabric_manager_of_another_release_is_one_incident_of_the_software() -> None:
    happen("config.gpu_driver", on_nodes())
    happen("nvlink.fabric_manager.failed", on_nodes(), at=NOW + SECOND)
    happen("node.service.down", on_nodes(), at=NOW + MINUTE, told_by=POLL)

    assert open_incidents() == [("config.software_on_many", "site/nodes")]


@pytest.mark.usefixtures("site")
def test_services_that_end_since_disks_are_full_are_of_the_same_incident() -> None:
    happen("storage.filesystem.filling", on_nodes(part="/storage/root"), told_by=POLL)
    happen("node.service.down", on_nodes(), at=NOW + 20 * MINUTE, told_by=POLL)

    assert open_incidents() == [("storage.full_on_many", "site/nodes")]


@pytest.mark.usefixtures("site")
def test_texts_alone_conclude_and_take_nothing_that_was_measured_until_enough_is_measured() -> None:
    happen("nvlink.fabric_manager.failed", on_nodes())
    conclusion = ("node.service_lost_on_many", "site/nodes")
    assert open_incidents() == [conclusion]

    happen("node.service.down", on_nodes(NODES[:9]), at=NOW + MINUTE, told_by=POLL)
    alone = [("node.service.down", path) for path in on_nodes(NODES[:9])]
    assert sorted(open_incidents()) == sorted([*alone, conclusion])

    happen("node.service.down", on_nodes(NODES[9:]), at=NOW + 2 * MINUTE, told_by=POLL)
    assert open_incidents() == [conclusion]


@pytest.mark.usefixtures("site")
def test_settings_of_many_switches_are_one_incident_beside_a_switch_that_fails() -> None:
    ports = on_switches(LEAFS, "/port/Ethernet0")
    happen("config.switch.pfc", ports[:2], told_by=POLL)
    assert len(open_incidents()) == 2

    happen("config.switch.pfc", ports[2:], at=NOW + MINUTE, told_by=POLL)
    conclusion = ("config.switch_on_many", "site/switches")
    assert open_incidents() == [conclusion]

    happen("switch.asic.sdk_failed", ["switch/leaf-02"], at=NOW + 2 * MINUTE, told_by=POLL)
    happen(LOST_GPU[0], [LOST_GPU[1]], at=NOW + 2 * MINUTE, told_by=POLL)
    own = [("switch.asic.sdk_failed", "switch/leaf-02"), LOST_GPU]
    assert sorted(open_incidents()) == sorted([conclusion, *own])


@pytest.mark.usefixtures("site")
def test_a_switch_that_is_set_otherwise_hours_later_is_an_incident_of_its_own() -> None:
    happen("config.switch.ecn", on_switches(LEAFS[:3]), told_by=POLL)
    happen("config.switch.ecn", on_switches(LEAFS[3:]), at=NOW + timedelta(hours=2), told_by=POLL)

    own = ("config.switch.ecn", f"switch/{LEAFS[3]}")
    assert open_incidents() == [("config.switch_on_many", "site/switches"), own]


@pytest.mark.usefixtures("site")
def test_clocks_of_switches_and_of_nodes_are_one_incident_in_either_order() -> None:
    happen("config.clock_unsynchronised", on_switches(LEAFS[:3]))
    assert open_incidents() == [("facility.time_lost", "site/switches")]

    happen("config.clock_unsynchronised", on_nodes(), at=NOW + 5 * MINUTE)
    happen("config.clock_unsynchronised", on_switches(LEAFS[3:]), at=NOW + 6 * MINUTE)
    assert open_incidents() == [("facility.time_lost", "site/switches")]


@pytest.mark.usefixtures("site")
def test_the_clock_of_one_switch_is_of_the_incident_of_the_nodes_clocks() -> None:
    happen("config.clock_unsynchronised", on_nodes())
    happen("config.clock_unsynchronised", on_switches(LEAFS[:1]), at=NOW + MINUTE)

    assert open_incidents() == [("facility.time_lost", "site/nodes")]


def storage_links() -> list[str]:
    return [f"node/{name}/nic/{device}" for device in STORAGE_NICS for name in NODES]


@pytest.mark.usefixtures("site")
def test_storage_switches_that_go_dark_together_are_one_incident_with_their_clients() -> None:
    happen("nic.link.down", storage_links(), told_by=POLL)
    happen("storage.lustre.rpc_timeout", on_nodes(), at=NOW + 40 * SECOND)
    sweep_at(61 * SECOND)
    happen("storage.lustre.connection_lost", on_nodes(), at=NOW + 3 * MINUTE)
    happen("target.unreachable", ["switch/sto-01"], at=NOW + 3 * MINUTE, told_by=POLL)

    assert open_incidents() == [("switch.storage_lost", "site/storage-switches")]


@pytest.mark.usefixtures("site")
def test_storage_switches_that_reboot_together_are_one_incident_beside_a_lost_disk() -> None:
    happen("nic.link.down", storage_links(), told_by=POLL)
    happen("storage.lustre.connection_lost", on_nodes(), at=NOW + 40 * SECOND)
    happen("switch.rebooted", on_switches(("sto-01", "sto-02")), at=NOW + MINUTE, told_by=POLL)
    disk = f"node/{NODES[5]}/storage/nvme0"
    happen("storage.nvme.lost", [disk], at=NOW + 2 * MINUTE, told_by=POLL)

    lost_disk = ("storage.nvme.lost", disk)
    conclusion = ("switch.storage_lost", "site/storage-switches")
    assert sorted(open_incidents()) == sorted([lost_disk, conclusion])


@pytest.mark.usefixtures("site")
def test_one_storage_switch_that_reboots_is_its_own_incident() -> None:
    happen("switch.rebooted", ["switch/sto-01"], told_by=POLL)
    happen("switch.rebooted", ["switch/sto-02"], at=NOW + 20 * MINUTE, told_by=POLL)

    roots = [("switch.rebooted", f"switch/sto-0{number}") for number in (1, 2)]
    assert open_incidents() == roots


def list_far_ends(switches: Iterable[str]) -> list[str]:
    """What is cabled to these switches, one port of each neighbour."""
    graph = graphs.get_current()
    ports: dict[tuple[str, str], str] = {}
    for switch in switches:
        for far_end in sorted(graph.get_far_ends(switch).values()):
            ports.setdefault((switch, far_end.partition("/port/")[0]), far_end)
    return list(ports.values())


SIX_SPINES = on_switches(f"spine-{number:02}" for number in range(1, 7))


@pytest.mark.usefixtures("model_site")
def test_spines_that_go_dark_together_are_one_incident_beside_a_link_of_a_spine_that_runs() -> None:
    happen("switch.port.down", list_far_ends(SIX_SPINES), told_by=POLL)
    conclusion = ("switch.spines_lost", "site/spines")
    assert open_incidents() == [conclusion]

    other_link = list_far_ends(["switch/spine-08"])[0]
    happen("switch.port.down", [other_link], at=NOW + 2 * MINUTE, told_by=POLL)
    sweep_at(4 * MINUTE)
    assert open_incidents() == [conclusion, ("switch.port.down", other_link)]


@pytest.mark.usefixtures("model_site")
def test_spines_that_reboot_within_a_minute_are_one_incident_and_two_are_two() -> None:
    happen("switch.rebooted", SIX_SPINES[:2], told_by=POLL)
    assert len(open_incidents()) == 2

    happen("switch.rebooted", SIX_SPINES[2:], at=NOW + 20 * SECOND, told_by=POLL)
    assert open_incidents() == [("switch.spines_lost", "site/spines")]


@pytest.mark.usefixtures("site")
def test_leafs_that_say_nothing_make_no_spine_lost() -> None:
    """Their row has no power: the spines alone tell of it."""
    ports_of_spines = [
        far_end
        for leaf in on_switches()
        for far_end in list_far_ends([leaf])
        if far_end.startswith("switch/spine-")
    ]
    happen("switch.port.down", ports_of_spines, told_by=POLL)

    lost = Fault.objects.filter(fault_type="switch.ports_lost").order_by("resource")
    assert list(lost.values_list("resource", flat=True)) == on_switches()
