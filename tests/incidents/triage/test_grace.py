"""What a boot or planned work brings opens no incident; what still stands after it does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from detectors.faults import FaultEvent
from incidents import services
from incidents.inventory import graphs
from incidents.maintenance import slurm_windows
from incidents.models import Cable, Fault, Incident, Node, Silence, Switch
from incidents.polling import polling
from tests.builders import NOW, a_cable, a_clear, a_node, a_switch, an_event

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
NIC = "node/gn042/nic/mlx5_0"
LEAF_PORT = "switch/leaf-01/port/Ethernet0"
FABRIC = "node/gn042/gpu/0000:19:00.0"


def told(*events: FaultEvent) -> None:
    services.ingest(events, now=max(event.observed_at for event in events))


def swept(until: datetime, since: datetime = NOW) -> None:
    """A sweep each minute."""
    for minute in range((until - since) // MINUTE + 1):
        services.sweep(now=since + minute * MINUTE)


def booted(at: timedelta, name: str = "gn042") -> None:
    services.record_node_restart(name, booted_at=NOW + at, boot_id=f"b{at}", now=NOW + at + MINUTE)


@pytest.fixture
def cabled() -> None:
    a_node()
    a_switch("leaf-01")
    a_cable(NIC, LEAF_PORT)


def maintained(*owners: str) -> Silence:
    return Silence.objects.create(
        kind="maintenance", machines=list(owners), reason="firmware", author="ada", starts_at=NOW - MINUTE,
        ends_at=NOW + 30 * MINUTE, recorded_at=NOW,
    )  # fmt: skip


@pytest.mark.usefixtures("cabled")
def test_a_link_that_is_down_after_a_boot_opens_an_incident_only_after_the_grace() -> None:
    booted(timedelta(0))
    told(an_event("nic.link.down", NIC, at=NOW + MINUTE))
    swept(NOW + 4 * MINUTE)
    assert Fault.objects.get().is_active
    assert not Incident.objects.exists()
    swept(NOW + 6 * MINUTE)
    assert Incident.objects.get().fault_type == "nic.link.down"


@pytest.mark.usefixtures("cabled")
def test_the_switchs_port_waits_for_the_node_that_boots_behind_it() -> None:
    booted(timedelta(0))
    told(an_event("switch.port.down", LEAF_PORT, at=NOW + MINUTE))
    swept(NOW + 4 * MINUTE)
    assert not Incident.objects.exists()


@pytest.mark.usefixtures("cabled")
def test_the_nodes_link_waits_for_the_switch_that_has_booted() -> None:
    told(an_event("switch.rebooted", "switch/leaf-01", at=NOW))
    Incident.objects.update(state="false_positive", closed_at=NOW)
    told(an_event("nic.link.down", NIC, at=NOW + MINUTE))
    swept(NOW + 4 * MINUTE)
    assert not Incident.objects.filter(fault_type="nic.link.down").exists()


@pytest.mark.usefixtures("cabled")
def test_a_fault_that_no_boot_brings_opens_its_incident_at_once() -> None:
    booted(timedelta(0))
    told(an_event(at=NOW + MINUTE))
    assert Incident.objects.get().fault_type == "gpu.xid.79"


@pytest.mark.usefixtures("cabled")
def test_a_line_of_the_boot_waits_by_its_kernels_stamp_when_no_poll_has_seen_the_boot() -> None:
    line = an_event(
        "storage.lustre.error",
        "node/gn042/storage/lustre",
        source_key="gn042||40.250000|LustreError",
    )
    told(line)
    assert not Incident.objects.exists()


@pytest.mark.usefixtures("cabled")
def test_a_line_opens_its_incident_when_the_kernel_has_run_for_longer_than_the_grace() -> None:
    told(
        an_event(
            "storage.lustre.error",
            "node/gn042/storage/lustre",
            source_key="gn042||86400.25|LustreError",
        )
    )
    assert Incident.objects.exists()


@pytest.mark.usefixtures("cabled")
def test_what_never_tells_its_end_is_over_when_it_was_seen_only_while_the_node_started() -> None:
    booted(timedelta(0))
    told(an_event("storage.lustre.error", "node/gn042/storage/lustre", at=NOW + MINUTE))
    swept(NOW + 15 * MINUTE)
    fault = Fault.objects.get()
    assert (fault.is_active, fault.cleared_reason) == (False, "seen only while its machine started")
    assert not Incident.objects.exists()


@pytest.mark.usefixtures("cabled")
def test_it_opens_an_incident_when_it_is_seen_again_after_the_start() -> None:
    booted(timedelta(0))
    told(an_event("storage.lustre.error", "node/gn042/storage/lustre", at=NOW + MINUTE))
    swept(NOW + 11 * MINUTE)
    told(an_event("storage.lustre.error", "node/gn042/storage/lustre", at=NOW + 12 * MINUTE))
    assert Incident.objects.get().fault_type == "storage.lustre.error"


@pytest.mark.usefixtures("cabled")
def test_links_of_a_machine_under_maintenance_wait_for_its_end() -> None:
    maintained("node/gn042")
    told(an_event("nic.link.down", NIC, at=NOW), an_event("switch.port.down", LEAF_PORT, at=NOW))
    swept(NOW + 29 * MINUTE)
    assert not Incident.objects.exists()
    swept(NOW + 46 * MINUTE)
    assert Incident.objects.count() == 1


def maintenance_ends() -> None:
    """Half an hour in: by the sweep, as on a site."""
    swept(NOW + 29 * MINUTE)
    services.end_silences(NOW + 30 * MINUTE)


@pytest.mark.usefixtures("cabled")
def test_what_is_well_again_minutes_after_a_maintenance_is_told_to_nobody() -> None:
    """The line that said so was lost, and a poll sees the port up after the end."""
    maintained("node/gn042")
    told(an_event("switch.port.down", LEAF_PORT, at=NOW + 20 * MINUTE))
    maintenance_ends()
    swept(NOW + 37 * MINUTE, since=NOW + 30 * MINUTE)
    told(a_clear("switch.port.down", LEAF_PORT, at=NOW + 38 * MINUTE))
    swept(NOW + 60 * MINUTE, since=NOW + 38 * MINUTE)
    assert not Incident.objects.exists()


@pytest.mark.usefixtures("cabled")
def test_a_link_that_goes_down_minutes_after_a_maintenance_waits_as_those_within_it() -> None:
    maintained("node/gn042")
    maintenance_ends()
    told(an_event("nic.link.down", NIC, at=NOW + 33 * MINUTE))
    swept(NOW + 39 * MINUTE, since=NOW + 33 * MINUTE)
    assert not Incident.objects.exists()
    swept(NOW + 50 * MINUTE, since=NOW + 39 * MINUTE)
    assert Incident.objects.exists()


@pytest.mark.usefixtures("cabled")
def test_a_fault_that_no_boot_brings_is_told_at_once_when_the_maintenance_is_over() -> None:
    maintained("node/gn042")
    maintenance_ends()
    told(an_event("gpu.xid.79", at=NOW + 31 * MINUTE))
    assert Incident.objects.get().silence is None


@pytest.mark.usefixtures("cabled")
def test_a_link_that_flaps_under_maintenance_waits_for_its_end() -> None:
    """A machine that is restarted again and again takes its links down each time."""
    maintained("node/gn042")
    for number in range(4):
        told(an_event("switch.port.down", LEAF_PORT, at=NOW + number * 4 * MINUTE))
        told(a_clear("switch.port.down", LEAF_PORT, at=NOW + (number * 4 + 2) * MINUTE))
    assert Fault.objects.get().is_flapping
    swept(NOW + 29 * MINUTE)
    assert not Incident.objects.exists()


@pytest.mark.usefixtures("cabled")
def test_links_of_other_machines_do_not_wait_for_a_maintenance() -> None:
    maintained("node/gn001")
    told(an_event("nic.link.down", NIC, at=NOW))
    swept(NOW + 2 * MINUTE)
    assert Incident.objects.exists()


NODES = [f"gn{number:03}" for number in range(288)]
BROKEN = "gn007"


@pytest.fixture
def fleet() -> None:
    """288 nodes behind twelve leafs, as the site that condemned 214 of them for planned reboots."""
    Node.objects.bulk_create([Node(name=name, role="compute", pod="pod-a") for name in NODES])
    Switch.objects.bulk_create([Switch(name=f"leaf-{leaf:02}", role="leaf") for leaf in range(12)])
    Cable.objects.bulk_create([Cable(a=nic(name), b=port(name)) for name in NODES])
    graphs.mark_changed()


def nic(name: str) -> str:
    return f"node/{name}/nic/mlx5_0"


def port(name: str) -> str:
    number = NODES.index(name)
    return f"switch/leaf-{number // 24:02}/port/Ethernet{number % 24}"


def gpu(name: str) -> str:
    return f"node/{name}/gpu/0000:19:00.0"


def going_down(name: str, at: datetime) -> Sequence[FaultEvent]:
    return (
        an_event("switch.port.down", port(name), at=at),
        an_event("nic.link.down", nic(name), at=at),
        an_event("target.unreachable", f"node/{name}", at=at + 90 * SECOND),
    )


def coming_up(name: str, at: datetime) -> Sequence[FaultEvent]:
    """Lines of the kernel with its stamp, as syslog brings them before any poll knows of the boot;
    and a poll."""
    return (
        an_event("nic.link.down", nic(name), at=at, source_key=f"{name}||21.5|mlx5_core Link down"),
        an_event(
            "storage.lustre.error",
            f"node/{name}/storage/scratch",
            at=at,
            source_key=f"{name}||44.1|LustreError",
        ),
        an_event("pcie.replays", gpu(name), at=at, source_key=f"{name}||9.0|replays"),
        an_event("nvlink.link_inactive", gpu(name), at=at + 30 * SECOND),
        a_clear("target.unreachable", f"node/{name}", at=at + 40 * SECOND),
    )


def well_again(name: str, at: datetime) -> Sequence[FaultEvent]:
    return (
        a_clear("switch.port.down", port(name), at=at),
        a_clear("nic.link.down", nic(name), at=at),
        a_clear("nvlink.link_inactive", gpu(name), at=at),
    )


@pytest.mark.usefixtures("fleet")
def test_288_nodes_that_are_rebooted_for_maintenance_raise_nothing_but_the_one_that_stays_broken() -> (
    None
):
    polling.store_plans(dict.fromkeys(NODES, "reboot"), NOW)
    slurm_windows.sweep(NOW)
    told(*(event for name in NODES for event in going_down(name, NOW + 30 * SECOND)))
    swept(NOW + 4 * MINUTE)
    told(*(event for name in NODES for event in coming_up(name, NOW + 5 * MINUTE)))
    for name in NODES:
        booted(4 * MINUTE + 30 * SECOND, name)
    told(
        *(event for name in NODES if name != BROKEN for event in well_again(name, NOW + 7 * MINUTE))
    )
    polling.store_plans(dict.fromkeys(NODES, ""), NOW + 8 * MINUTE)
    slurm_windows.sweep(NOW + 8 * MINUTE)
    swept(NOW + 9 * MINUTE, since=NOW + 5 * MINUTE)
    assert not Incident.objects.exists()
    for minute in range(10, 24):
        told(an_event("nvlink.link_inactive", gpu(BROKEN), at=NOW + minute * MINUTE))
        slurm_windows.sweep(NOW + minute * MINUTE)
        services.sweep(now=NOW + minute * MINUTE)
    broken = {nic(BROKEN), port(BROKEN), gpu(BROKEN)}
    assert Incident.objects.count() == 2
    assert set(Incident.objects.values_list("members__fault__resource", flat=True)) == broken
    assert set(Fault.objects.filter(is_active=True).values_list("resource", flat=True)) == broken
