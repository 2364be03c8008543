"""Incidents that turn out to have one cause become one: in the database, with both timelines and
every decision."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from detectors.faults import FaultEvent
from incidents import services
from incidents.models import Decision, Incident, IncidentFault
from incidents.vocabulary.lifecycle import Trigger
from tests.builders import NOW, a_cable, a_node, a_switch, an_event

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
LEAF = "switch/leaf-05"
FIRST, SECOND_LINK = "node/gn001/nic/mlx5_5", "node/gn002/nic/mlx5_5"
# More links than a conclusion about the leaf needs would open its incident by themselves.
LINKS = 30


@pytest.fixture(autouse=True)
def pod() -> None:
    a_switch("leaf-05", pod="pod-a", rail=4)
    for number in range(1, LINKS + 1):
        a_node(f"gn{number:03}", gpus=())
        a_cable(f"node/gn{number:03}/nic/mlx5_5", f"{LEAF}/port/Ethernet{4 * number}")


def told(*events: FaultEvent) -> None:
    for event in events:
        services.ingest([event], now=event.observed_at)


def two_links() -> tuple[Incident, Incident]:
    """Two incidents of two links of one leaf, half a minute apart."""
    told(
        an_event("nic.link.errors", FIRST),
        an_event("nic.link.errors", SECOND_LINK, at=NOW + 30 * SECOND),
    )
    first, second = Incident.objects.order_by("pk")
    return first, second


def the_leaf() -> None:
    told(an_event("switch.rebooted", LEAF, at=NOW + 60 * SECOND))


def test_links_of_one_leaf_are_two_incidents_until_the_leaf_explains_them() -> None:
    two_links()
    the_leaf()
    stays, gone = Incident.objects.order_by("pk")
    assert (stays.state, stays.root_resource, stays.component) == (
        "open",
        LEAF,
        "interconnect_switch",
    )
    assert (gone.state, gone.duplicate_of_id, gone.root_fault_id) == ("duplicate", stays.pk, None)
    assert stays.members.count() == 3
    assert list(stays.members.filter(role="root").values_list("fault__fault_type", flat=True)) == [
        "switch.rebooted"
    ]
    assert not gone.members.exists()


def test_both_timelines_say_what_became_of_them_and_why() -> None:
    two_links()
    the_leaf()
    stays, gone = Incident.objects.order_by("pk")
    merged = stays.timeline.get(kind="merged").text
    assert merged.startswith(f"Incident #{gone.pk} is part of this one: ")
    assert merged.endswith("30 s before switch.rebooted on leaf-05: it runs over that switch.")
    ended = gone.timeline.get(kind="mark_duplicate").text
    assert (
        f"It was merged into #{stays.pk}: 30 s before switch.rebooted on leaf-05: it runs over that switch."
        in ended
    )


def test_decisions_tell_every_step_once() -> None:
    two_links()
    the_leaf()
    kinds = list(
        Decision.objects.exclude(kind__in=("silenced", "announced")).values_list("kind", "rule")
    )
    assert kinds.count(("opened", "")) == 2
    assert kinds.count(("rerooted", "behind_switch")) == 1
    assert kinds.count(("merged", "behind_switch")) == 2
    assert kinds.count(("joined", "behind_switch")) == 1
    told(an_event("switch.rebooted", LEAF, at=NOW + 70 * SECOND))
    assert Decision.objects.exclude(kind__in=("silenced", "announced")).count() == len(kinds)


def test_an_incident_whose_root_is_a_switch_calls_for_no_repair_of_a_node() -> None:
    told(an_event("nic.link.down", FIRST))
    services.sweep(now=NOW + 61 * SECOND)
    before = Incident.objects.get()
    assert (before.action, before.node_id is not None) == ("check_cable", True)
    told(an_event("switch.rebooted", LEAF, at=NOW + 80 * SECOND))
    after = Incident.objects.get()
    assert (after.pk, after.action, after.node_id) == (before.pk, "watch", None)
    assert after.title.startswith("leaf-05: ")


def test_what_a_person_placed_stays_when_a_cause_comes() -> None:
    first, second = two_links()
    Incident.objects.filter(pk=second.pk).update(is_root_by_person=True)
    the_leaf()
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.root_resource, second.state, second.root_resource) == (LEAF, "open", SECOND_LINK)


def test_a_fault_that_a_person_placed_as_root_stays_root() -> None:
    first, second = two_links()
    IncidentFault.objects.filter(incident=second).update(placed_by="sato")
    the_leaf()
    second.refresh_from_db()
    assert (second.state, second.root_resource) == ("open", SECOND_LINK)
    assert Incident.objects.get(pk=first.pk).root_resource == LEAF


def test_duplicates_of_a_merged_incident_are_duplicates_of_the_one_that_stays() -> None:
    first, second = two_links()
    told(an_event("gpu.xid.79", "node/gn009/gpu/0000:19:00.0", at=NOW + 40 * SECOND))
    third = Incident.objects.order_by("pk").last()
    assert third is not None
    services.act(
        third.pk, Trigger.MARK_DUPLICATE, actor="sato", now=NOW + 50 * SECOND, duplicate_of=second
    )
    the_leaf()
    third.refresh_from_db()
    assert third.duplicate_of_id == first.pk


def test_one_batch_opens_one_incident_whatever_its_order() -> None:
    links = [an_event("nic.link.errors", nic, at=NOW) for nic in (FIRST, SECOND_LINK)]
    services.ingest(
        [*links, an_event("switch.rebooted", LEAF, at=NOW + SECOND)], now=NOW + 2 * SECOND
    )
    incident = Incident.objects.get()
    assert incident.root_resource == LEAF
    assert incident.members.count() == 3
    assert incident.timeline.filter(kind="opened").count() == 1
    assert set(
        Decision.objects.filter(incident__isnull=False).values_list("incident_id", flat=True)
    ) == {incident.pk}


def test_a_rule_that_almost_fitted_is_told_with_the_incident_that_opens() -> None:
    told(
        an_event("nic.link.down", FIRST),
        an_event("nic.link.down", SECOND_LINK, at=NOW + 40 * SECOND),
    )
    services.sweep(now=NOW + 61 * SECOND)
    services.sweep(now=NOW + 101 * SECOND)
    first, second = Incident.objects.order_by("pk")
    nearly = Decision.objects.get(kind="nearly")
    assert nearly.incident_id == second.pk
    assert nearly.rule == "links_at_once"
    assert nearly.text.startswith(
        f"not joined to #{first.pk}, 40 s after nic.link.down on gn001 NIC mlx5_5: "
    )


def test_a_batch_reads_as_much_when_it_brings_one_fault_as_when_it_brings_many() -> None:
    counts = []
    for at, numbers in ((NOW, range(1, 2)), (NOW + timedelta(hours=2), range(3, LINKS, 2))):
        events = [
            an_event("nic.link.errors", f"node/gn{number:03}/nic/mlx5_5", at=at)
            for number in numbers
        ]
        with CaptureQueriesContext(connection) as asked:
            services.ingest(events, now=at + SECOND)
        counts.append(sum(query["sql"].startswith("SELECT") for query in asked.captured_queries))
    assert counts[1] <= counts[0] + 6
