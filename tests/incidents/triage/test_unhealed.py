"""When the parent heals and a child does not, the child is told as an incident of its own."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services
from incidents.models import Decision, Incident
from incidents.people import edit
from incidents.vocabulary.lifecycle import Trigger
from tests.builders import GPU, NOW, a_cable, a_clear, a_node, a_switch, an_event

pytestmark = pytest.mark.django_db

LEAF = "switch/leaf-05"
NODES = 12
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
STAYS = "node/gn007/nic/mlx5_5"


def card(number: int) -> str:
    return f"node/gn{number:03}/nic/mlx5_5"


@pytest.fixture
def storm() -> Incident:
    """A leaf that boots, and the links of twelve nodes behind it."""
    a_switch("leaf-05", pod="pod-a", rail=4)
    for number in range(1, NODES + 1):
        a_node(f"gn{number:03}")
        a_cable(card(number), f"{LEAF}/port/Ethernet{4 * number}")
    services.ingest([an_event("switch.rebooted", LEAF)], now=NOW)
    links = [an_event("nic.link.down", card(n), at=NOW + 2 * SECOND) for n in range(1, NODES + 1)]
    services.ingest(links, now=NOW + 2 * SECOND)
    return Incident.objects.get()


def back(*numbers: int, after: timedelta) -> None:
    at = NOW + after
    services.ingest([a_clear("nic.link.down", card(number), at=at) for number in numbers], now=at)


ALL_BUT_ONE = [number for number in range(1, NODES + 1) if number != 7]


def swept(after: timedelta) -> None:
    services.sweep(now=NOW + after)


def test_one_link_that_stays_down_when_the_leaf_is_back_is_told_by_itself(storm: Incident) -> None:
    back(*ALL_BUT_ONE, after=4 * MINUTE)
    swept(15 * MINUTE)
    child = Incident.objects.exclude(pk=storm.pk).get()
    assert (child.root_resource, child.fault_type, child.state) == (STAYS, "nic.link.down", "open")
    assert storm.members.count() == NODES
    told = child.timeline.get(kind="split_off").text
    assert f"It was a symptom of incident #{storm.pk}" in told
    assert f"incident #{child.pk}" in storm.timeline.get(kind="split").text
    made = Decision.objects.filter(kind="split", rule="unhealed_child")
    assert {row.incident_id for row in made} == {storm.pk, child.pk}
    assert child.notifications.exists()


def test_nothing_is_told_by_itself_while_links_still_come_back(storm: Incident) -> None:
    back(*ALL_BUT_ONE[:-1], after=4 * MINUTE)
    back(ALL_BUT_ONE[-1], after=13 * MINUTE)
    swept(15 * MINUTE)
    assert Incident.objects.count() == 1
    swept(24 * MINUTE)
    assert Incident.objects.count() == 2


def test_nothing_is_told_by_itself_while_most_links_are_down(storm: Incident) -> None:
    back(1, 2, 3, after=4 * MINUTE)
    swept(25 * MINUTE)
    assert Incident.objects.count() == 1


def test_all_that_stand_are_told_when_a_root_that_says_so_itself_has_cleared() -> None:
    a_node()
    services.ingest([an_event("gpu.lost", GPU)], now=NOW)
    services.ingest(
        [an_event("gpu.count_mismatch", "node/gn042", at=NOW + SECOND)], now=NOW + SECOND
    )
    parent = Incident.objects.get()
    at = NOW + MINUTE
    services.ingest([a_clear("gpu.lost", GPU, at=at)], now=at)
    swept(10 * MINUTE)
    assert Incident.objects.count() == 1
    swept(12 * MINUTE)
    assert Incident.objects.exclude(pk=parent.pk).get().fault_type == "gpu.count_mismatch"
    parent.refresh_from_db()
    assert parent.state == "monitoring"


def test_the_parent_goes_on_to_its_end_without_the_child(storm: Incident) -> None:
    back(*ALL_BUT_ONE, after=4 * MINUTE)
    for hours in range(1, 6):
        swept(hours * timedelta(hours=1))
    storm.refresh_from_db()
    assert storm.state == "resolved"
    assert Incident.objects.exclude(pk=storm.pk).get().state == "open"


def test_no_child_parts_while_its_parent_is_under_repair(storm: Incident) -> None:
    services.act(storm.pk, Trigger.REPAIR_STARTED, actor="kintsugi", now=NOW + MINUTE)
    back(*ALL_BUT_ONE, after=4 * MINUTE)
    swept(15 * MINUTE)
    assert Incident.objects.count() == 1


def test_what_a_person_placed_stays_there(storm: Incident) -> None:
    a_node("gn900")
    services.ingest(
        [an_event("nic.firmware.unhealthy", "node/gn900/nic/mlx5_5", at=NOW + SECOND)],
        now=NOW + SECOND,
    )
    other = Incident.objects.exclude(pk=storm.pk).get()
    edit.merge(other.pk, storm.pk, actor="yuki", now=NOW + MINUTE)
    back(*range(1, NODES + 1), after=4 * MINUTE)
    swept(15 * MINUTE)
    assert storm.members.filter(fault__fault_type="nic.firmware.unhealthy").exists()
    assert Incident.objects.count() == 2


def test_a_child_that_parted_is_not_told_again_at_the_next_sweep(storm: Incident) -> None:
    back(*ALL_BUT_ONE, after=4 * MINUTE)
    swept(15 * MINUTE)
    swept(16 * MINUTE)
    assert Incident.objects.count() == 2
    assert storm.timeline.filter(kind="split").count() == 1
