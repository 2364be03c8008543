"""One leaf reboot is one incident, in whichever order fifty nodes and the leaf tell of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.faults import FaultEvent
from incidents import services
from incidents.models import Fault, Incident
from incidents.vocabulary.lifecycle import State
from tests.builders import NOW, a_cable, a_clear, a_node, a_switch, an_event

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
LEAF = "switch/leaf-05"
NODES = 8
# That so many links of one switch fail together is a fault of its own, until the switch says what
# it was.
CONCLUDED = 1


@pytest.fixture(autouse=True)
def pod() -> None:
    a_switch("leaf-05", pod="pod-a", rail=4)
    for number in range(1, NODES + 1):
        a_node(f"gn{number:03}")
        a_cable(f"node/gn{number:03}/nic/mlx5_5", f"{LEAF}/port/Ethernet{4 * number}")


def links(at: timedelta) -> list[FaultEvent]:
    return [
        an_event(
            "nic.link.down", f"node/gn{number:03}/nic/mlx5_5", at=NOW + at + number * SECOND / 10
        )
        for number in range(1, NODES + 1)
    ]


def ports(at: timedelta) -> list[FaultEvent]:
    return [
        an_event("switch.port.down", f"{LEAF}/port/Ethernet{4 * n}", at=NOW + at)
        for n in range(1, NODES + 1)
    ]


def rebooted(at: timedelta) -> list[FaultEvent]:
    return [an_event("switch.rebooted", LEAF, at=NOW + at)]


def play(*batches: list[FaultEvent], sweeping: bool = True) -> None:
    for batch in batches:
        for event in batch:
            now = event.observed_at
            services.ingest([event], now=now)
            if sweeping:
                services.sweep(now=now)


def the_incident() -> Incident:
    incident = Incident.objects.exclude(state=State.DUPLICATE).get()
    assert (incident.root_resource, incident.component) == (LEAF, "interconnect_switch")
    assert incident.members.filter(role="root").count() == 1
    assert incident.node is None
    return incident


def test_one_incident_when_the_leaf_speaks_first() -> None:
    play(rebooted(timedelta(0)), links(2 * SECOND), ports(3 * SECOND))
    assert the_incident().members.count() == 1 + 2 * NODES


def test_one_incident_when_the_leaf_speaks_within_the_hold_down() -> None:
    play(links(timedelta(0)), rebooted(30 * SECOND))
    assert the_incident().members.count() == CONCLUDED + 1 + NODES


def test_one_incident_when_the_leaf_speaks_minutes_later() -> None:
    play(links(timedelta(0)), ports(SECOND))
    services.sweep(now=NOW + 70 * SECOND)
    before = Incident.objects.get()
    assert before.fault_type == "switch.ports_lost"
    play(rebooted(180 * SECOND))
    incident = the_incident()
    assert incident.pk == before.pk
    assert incident.members.count() == CONCLUDED + 1 + 2 * NODES
    told = incident.timeline.get(kind="root_changed").text
    assert "switch.rebooted" in told
    assert "switch.ports_lost" in told


def test_one_incident_when_everything_comes_in_one_batch() -> None:
    events = [*links(timedelta(0)), *rebooted(SECOND), *ports(2 * SECOND)]
    services.ingest(events, now=NOW + 3 * SECOND)
    incident = the_incident()
    assert incident.members.count() == 1 + 2 * NODES
    joins = incident.timeline.filter(kind="joined")
    assert joins.count() <= 2


def test_ends_of_symptoms_are_told_once_when_all_have_ended_however_they_come() -> None:
    play(rebooted(timedelta(0)), links(2 * SECOND))
    services.sweep(now=NOW + timedelta(hours=3))  # the leaf's own fault has been quiet
    for number in range(1, NODES + 1):
        at = NOW + timedelta(hours=3) + number * SECOND
        services.ingest([a_clear("nic.link.down", f"node/gn{number:03}/nic/mlx5_5", at=at)], now=at)
    told = (
        the_incident()
        .timeline.filter(kind__in=("cleared", "faults_cleared"))
        .values_list("text", flat=True)
    )
    assert len(told) == 2
    assert told[0].startswith("Switch rebooted (switch.rebooted) on leaf-05 has cleared: ")
    assert told[1].endswith(f"There were {NODES + 1}; the last ended at 06:00:08 UTC.")
    assert Fault.objects.filter(cleared_at__isnull=False).count() == NODES + 1


@pytest.mark.parametrize(
    ("fault_type", "resource"),
    [
        ("nic.link.down", "node/gn003"),
        ("nic.link.down", "node/gn003/nic/mlx5_5"),
    ],
)
def test_report_joins_the_switchs_incident_when_its_type_is_of_the_network(
    fault_type: str, resource: str
) -> None:
    play(rebooted(timedelta(0)))
    at = NOW + 60 * SECOND
    found = services.report(
        author="sato",
        text="No file system.",
        resource=resource,
        fault_type=fault_type,
        occurred_at=at,
        now=at,
    )
    assert found.pk == the_incident().pk
    assert found.members.get(role="symptom").rule in ("behind_switch", "report_behind_switch")


def test_report_of_a_file_system_stays_apart_from_a_compute_leaf() -> None:
    play(rebooted(timedelta(0)))
    services.report(
        author="sato",
        text="No file system.",
        resource="node/gn003",
        fault_type="storage.lustre.connection_lost",
        occurred_at=NOW,
        now=NOW + SECOND,
    )
    assert Incident.objects.count() == 2


def test_report_in_words_alone_stays_the_nodes_own_beside_its_switchs_incident() -> None:
    play(rebooted(timedelta(0)))
    services.report(
        author="sato", text="Slow.", resource="node/gn003", occurred_at=NOW, now=NOW + SECOND
    )
    assert Incident.objects.count() == 2


def test_short_flap_of_a_link_opens_nothing() -> None:
    play([an_event("nic.link.down", "node/gn001/nic/mlx5_5")])
    services.ingest(
        [a_clear("nic.link.down", "node/gn001/nic/mlx5_5", at=NOW + 5 * SECOND)],
        now=NOW + 5 * SECOND,
    )
    services.sweep(now=NOW + 120 * SECOND)
    assert not Incident.objects.exists()
    assert Fault.objects.get().is_active is False


def test_link_that_flaps_within_its_hold_down_is_told_all_the_same() -> None:
    nic = "node/gn001/nic/mlx5_5"
    for number in range(4):
        down = NOW + 20 * number * SECOND
        services.ingest([an_event("nic.link.down", nic, at=down)], now=down)
        services.ingest(
            [a_clear("nic.link.down", nic, at=down + 5 * SECOND)], now=down + 5 * SECOND
        )
    fault = Fault.objects.get()
    assert fault.is_flapping
    assert Incident.objects.count() == 1
    services.sweep(now=NOW + timedelta(hours=2))
    fault.refresh_from_db()
    assert (fault.is_active, fault.is_flapping) == (False, False)


def test_link_that_stays_down_opens_an_incident_after_its_hold_down() -> None:
    play([an_event("nic.link.down", "node/gn001/nic/mlx5_5")])
    assert not Incident.objects.exists()
    services.sweep(now=NOW + 61 * SECOND)
    incident = Incident.objects.get()
    assert incident.fault_type == "nic.link.down"
    assert incident.node is not None


@pytest.mark.parametrize(
    "when", [-SECOND, 9 * SECOND, 100 * SECOND], ids=["before", "in the storm", "after"]
)
def test_queues_that_stop_while_their_leaf_is_silent_are_its_symptoms(when: timedelta) -> None:
    stopped = [
        an_event("nic.tx_timeout", f"node/gn{number:03}/nic/mlx5_5", at=NOW + when)
        for number in (1, 4, 7)
    ]
    batches = [links(timedelta(0)), ports(SECOND), rebooted(180 * SECOND)]
    play(*sorted([*batches, stopped], key=lambda batch: batch[0].observed_at))
    assert the_incident().members.count() == CONCLUDED + 1 + 2 * NODES + len(stopped)


def test_a_queue_that_stops_on_another_rail_is_an_incident_of_its_own() -> None:
    play(
        rebooted(timedelta(0)),
        links(2 * SECOND),
        [an_event("nic.tx_timeout", "node/gn001/nic/mlx5_6", at=NOW)],
    )
    assert Incident.objects.count() == 2
