"""Users see a fault that many machines share from their own node: their reports belong to its
incident."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.faults import EventKind
from incidents import services
from incidents.models import Fault, Incident
from tests.builders import NOW
from tests.incidents.sites import NODES, RAILS, a_site, happen, nics, open_incidents

pytestmark = pytest.mark.django_db

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
LEAF = "switch/leaf-01"
STORAGE = "switch/sto-01"


@pytest.fixture(autouse=True)
def site() -> None:
    a_site()


def told(
    node: str, fault_type: str = "report.user", *, at: timedelta, resource: str = ""
) -> Incident:
    moment = NOW + at
    where = resource or f"node/{node}"
    text = "NCCL timeout, the job hangs."
    return services.report(
        author="sato",
        text=text,
        resource=where,
        fault_type=fault_type,
        occurred_at=moment,
        now=moment,
    )


def a_silent_leaf() -> Incident:
    """Its links go down, it says nothing, and that stays so."""
    happen("nic.link.down", nics(0))
    services.sweep(now=NOW + 70 * SECOND)
    incident = Incident.objects.get()
    assert (incident.fault_type, incident.root_resource) == ("switch.ports_lost", LEAF)
    return incident


@pytest.mark.parametrize("fault_type", ["report.user", "nic.link.down", "nic.rail.degraded"])
@pytest.mark.parametrize("late", [2 * MINUTE, timedelta(hours=3)], ids=["at once", "hours later"])
def test_report_joins_the_switch_that_took_a_link_of_its_node(
    fault_type: str, late: timedelta
) -> None:
    leaf = a_silent_leaf()
    found = told("gn003", fault_type, at=late)
    assert (found.pk, found.channels) == (leaf.pk, ["platform", "user"])
    assert found.root_resource == LEAF


def test_reports_from_many_nodes_behind_a_leaf_that_reboots_are_its_incident() -> None:
    happen("switch.rebooted", [LEAF])
    happen("nic.link.down", nics(0), at=NOW + 2 * SECOND)
    told("gn001", at=30 * SECOND)
    told("gn002", "nic.rail.degraded", at=40 * SECOND)
    happen("nic.link.down", nics(0), at=NOW + 75 * SECOND, kind=EventKind.CLEARED)
    told("gn004", at=3 * MINUTE)
    assert open_incidents() == [("switch.rebooted", LEAF)]
    assert Incident.objects.get().reports.count() == 3


def test_report_of_a_hang_joins_the_storage_switch_that_took_the_nodes_file_system() -> None:
    happen("switch.rebooted", [STORAGE])
    happen(
        "storage.lustre.connection_lost", [f"node/{name}" for name in NODES], at=NOW + 10 * SECOND
    )
    assert told("gn010", at=40 * SECOND).root_resource == STORAGE


def test_report_that_came_before_its_nodes_link_is_part_of_the_switchs_incident_once_that_is_known() -> (
    None
):
    happen("switch.rebooted", [LEAF])
    told("gn003", at=SECOND)
    happen("nic.link.down", nics(0), at=NOW + 2 * SECOND)
    services.sweep(now=NOW + 70 * SECOND)
    assert open_incidents() == [("switch.rebooted", LEAF)]


@pytest.mark.parametrize(
    ("fault_type", "root"), [("nic.link.down", "switch.ports_lost"), ("gpu.xid.48", "gpu.xid.79")]
)
def test_of_two_incidents_on_its_node_a_report_joins_that_of_the_sort_its_author_chose(
    fault_type: str, root: str
) -> None:
    a_silent_leaf()
    happen("gpu.xid.79", ["node/gn003/gpu/0000:9b:00.0"], at=NOW + 2 * MINUTE)
    assert told("gn003", fault_type, at=3 * MINUTE).fault_type == root


@pytest.mark.parametrize("leaf_first", [True, False])
def test_of_two_incidents_on_its_node_a_report_in_words_alone_joins_the_nearest_in_time(
    leaf_first: bool,
) -> None:
    late = NOW + 30 * MINUTE
    happen("gpu.xid.79", ["node/gn003/gpu/0000:9b:00.0"], at=late if leaf_first else NOW)
    happen("nic.link.down", nics(0), at=NOW if leaf_first else late)
    services.sweep(now=late + 70 * SECOND)
    assert told("gn003", at=32 * MINUTE).fault_type == (
        "gpu.xid.79" if leaf_first else "switch.ports_lost"
    )


@pytest.mark.parametrize("fault_type", ["gpu.lost", "storage.lustre.connection_lost"])
def test_report_of_what_a_leaf_cannot_bring_about_stays_apart_from_it(fault_type: str) -> None:
    leaf = a_silent_leaf()
    assert told("gn003", fault_type, at=2 * MINUTE).pk != leaf.pk


def test_report_stays_apart_from_the_network_over_which_its_node_is_only_watched() -> None:
    happen("network.management_unreachable", ["site/management"])
    happen("target.unreachable", [f"node/{name}" for name in NODES], at=NOW + SECOND)
    services.sweep(now=NOW + 5 * MINUTE)
    management = Incident.objects.get()
    assert management.members.filter(fault__owner="node/gn003").exists()
    assert told("gn003", at=6 * MINUTE).pk != management.pk


def test_report_of_a_nodes_link_joins_a_silent_switch_though_nothing_was_polled_on_that_node() -> (
    None
):
    happen("nic.link.down", nics(0, NODES[1:]))
    services.sweep(now=NOW + 70 * SECOND)
    found = told("gn001", "nic.link.down", at=5 * MINUTE)
    assert (found.root_resource, found.members.get(fault__resource="node/gn001").rule) == (
        LEAF,
        "report_behind_switch",
    )


def test_what_only_people_told_does_not_keep_a_switchs_incident_open() -> None:
    happen("switch.rebooted", [LEAF])
    happen("nic.link.down", nics(0), at=NOW + 2 * SECOND)
    incident = told("gn002", "nic.rail.degraded", at=40 * SECOND)
    happen("nic.link.down", nics(0), at=NOW + 75 * SECOND, kind=EventKind.CLEARED)
    services.sweep(now=NOW + timedelta(hours=1))
    incident.refresh_from_db()
    assert not incident.is_open


# Who told
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
def test_platform_that_repeats_what_a_person_told_is_a_channel_of_the_incident(times: int) -> None:
    gpu = "node/gn003/gpu/0000:9b:00.0"
    incident = told("gn003", "gpu.lost", at=timedelta(0), resource=gpu)
    assert incident.channels == ["user"]
    for number in range(1, times + 1):
        happen("gpu.lost", [gpu], at=NOW + number * MINUTE)
    incident.refresh_from_db()
    assert (incident.channels, Fault.objects.get().count) == (["platform", "user"], 1 + times)


def test_person_who_repeats_what_the_platform_saw_is_a_channel_of_the_incident() -> None:
    gpu = "node/gn003/gpu/0000:9b:00.0"
    happen("gpu.lost", [gpu])
    incident = told("gn003", "gpu.lost", at=MINUTE, resource=gpu)
    assert (incident.channels, Fault.objects.get().count) == (["platform", "user"], 2)


def test_second_report_of_another_type_is_no_sight_of_the_platform() -> None:
    told("gn003", at=timedelta(0))
    incident = told("gn003", "nic.link.down", at=MINUTE, resource=f"node/gn003/nic/{RAILS[1]}")
    assert incident.channels == ["user"]


def test_what_people_told_alone_stays_so_when_it_is_split_off() -> None:
    happen("gpu.xid.79", ["node/gn003/gpu/0000:9b:00.0"])
    incident = told("gn003", "nic.link.down", at=MINUTE)
    fault = Fault.objects.get(fault_type="nic.link.down")
    services.split(incident.pk, [fault.pk], actor="ada", note="another story", now=NOW + 2 * MINUTE)
    assert Incident.objects.latest("pk").channels == ["user"]


@pytest.mark.parametrize(
    ("switch", "component"), [("sto-01", "storage_switch"), ("leaf-01", "interconnect_switch")]
)
def test_class_of_a_report_is_that_of_the_switchs_role(switch: str, component: str) -> None:
    incident = told("", "switch.rebooted", at=timedelta(0), resource=f"switch/{switch}")
    assert incident.component == component
    happen("switch.rebooted", [f"switch/{switch}"], at=NOW + MINUTE)
    incident.refresh_from_db()
    assert (incident.component, incident.channels) == (component, ["platform", "user"])
