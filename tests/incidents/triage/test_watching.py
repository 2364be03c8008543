"""What an incident that is watched after its repair takes in, and what alone brings it back."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from detectors.faults import FaultEvent
from incidents import services
from incidents.models import Fault, Incident
from incidents.vocabulary.changes import Acted
from incidents.vocabulary.lifecycle import Trigger
from tests.builders import GPU, NOW, OTHER_GPU, a_cable, a_clear, a_node, a_switch, an_event

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
QUIET = timedelta(minutes=30)
NIC = "node/gn042/nic/mlx5_5"
LEAF = "switch/leaf-05"


@pytest.fixture(autouse=True)
def site() -> None:
    a_switch("leaf-05")
    for number in (41, 42, 43):
        a_node(f"gn0{number}")
        a_cable(f"node/gn0{number}/nic/mlx5_5", f"{LEAF}/port/Ethernet{number}")


def told(event: FaultEvent) -> None:
    services.ingest([event], now=event.observed_at)
    services.sweep(now=event.observed_at)


def act(incident: Incident, trigger: Trigger, at: timedelta) -> None:
    assert isinstance(services.act(incident.pk, trigger, actor="kintsugi", now=NOW + at), Acted)


def repaired(*during: FaultEvent) -> Incident:
    """A GPU that fell off the bus; the node booted at +3 min, and is watched from +4 min on."""
    services.ingest([an_event()], now=NOW)
    incident = Incident.objects.get()
    act(incident, Trigger.REPAIR_STARTED, MINUTE)
    for event in during:
        told(event)
    services.record_node_restart(
        "gn042", booted_at=NOW + 3 * MINUTE, boot_id="b2", now=NOW + 3 * MINUTE
    )
    act(incident, Trigger.REPAIR_SUCCEEDED, 4 * MINUTE)
    return incident


def state_of(incident: Incident) -> str:
    return Incident.objects.get(pk=incident.pk).state


def leaf_reboots(at: timedelta) -> None:
    for number in (41, 42, 43):
        told(an_event("nic.link.down", f"node/gn0{number}/nic/mlx5_5", at=NOW + at))
    services.sweep(now=NOW + at + 61 * SECOND)
    told(an_event("switch.rebooted", LEAF, at=NOW + at + 80 * SECOND))
    for number in (41, 42, 43):
        told(a_clear("nic.link.down", f"node/gn0{number}/nic/mlx5_5", at=NOW + at + 85 * SECOND))


def told_by_devices(incident: Incident) -> int:
    """Without what is concluded from them: that the leaf lost its ports."""
    return incident.members.exclude(fault__fault_type="switch.ports_lost").count()


def test_the_leafs_incident_stands_alone_when_it_reboots_after_a_repair() -> None:
    incident = repaired()
    leaf_reboots(6 * MINUTE)
    other = Incident.objects.exclude(pk=incident.pk).get()
    assert (other.root_resource, told_by_devices(other)) == (LEAF, 4)
    assert (state_of(incident), incident.members.count()) == ("monitoring", 1)


def test_a_link_that_went_down_in_the_repair_is_no_return_when_it_goes_down_again() -> None:
    incident = repaired(
        an_event("nic.link.down", NIC, at=NOW + 2 * MINUTE),
        a_clear("nic.link.down", NIC, at=NOW + 3 * MINUTE),
    )
    assert incident.members.count() == 2
    leaf_reboots(6 * MINUTE)
    other = Incident.objects.exclude(pk=incident.pk).get()
    assert (other.root_resource, told_by_devices(other)) == (LEAF, 4)
    assert state_of(incident) == "monitoring"


def test_a_link_that_ends_and_goes_down_again_within_one_batch_is_a_fault_of_its_own() -> None:
    incident = repaired(an_event("nic.link.down", NIC, at=NOW + 2 * MINUTE))
    assert ends_and_comes_again("nic.link.down", NIC, NOW + 20 * MINUTE, after=10 * SECOND) == [
        False,
        True,
    ]
    assert state_of(incident) == "monitoring"


def test_what_never_had_an_incident_and_comes_again_hours_later_in_one_backlog_is_a_fault_of_its_own() -> (
    None
):
    services.ingest([an_event("pcie.aer.corrected", GPU, at=NOW)], now=NOW)
    assert not Incident.objects.exists()
    assert ends_and_comes_again("pcie.aer.corrected", GPU, NOW + MINUTE, after=4 * QUIET) == [
        False,
        True,
    ]


def ends_and_comes_again(
    fault_type: str, resource: str, at: datetime, *, after: timedelta
) -> list[bool]:
    """In one batch, none of which may break: whether each of the faults stands."""
    batch = [a_clear(fault_type, resource, at=at), an_event(fault_type, resource, at=at + after)]
    with CaptureQueriesContext(connection) as asked:
        services.ingest(batch, now=at + after + SECOND)
    assert not [row["sql"] for row in asked if row["sql"].startswith("ROLLBACK TO SAVEPOINT")]
    return list(
        Fault.objects.filter(resource=resource).order_by("pk").values_list("is_active", flat=True)
    )


@pytest.mark.parametrize("fault_type", ["gpu.xid.79", "gpu.lost"])
def test_the_repaired_gpu_brings_its_incident_back_when_it_calls_for_as_much_again(
    fault_type: str,
) -> None:
    incident = repaired()
    told(an_event(fault_type, at=NOW + 6 * MINUTE))
    assert Incident.objects.count() == 1
    assert state_of(incident) == "open"


def test_the_repaired_gpu_has_a_second_incident_when_it_calls_for_less() -> None:
    incident = repaired()
    told(an_event("gpu.xid.119", at=NOW + 6 * MINUTE))
    assert state_of(incident) == "monitoring"
    assert Incident.objects.exclude(pk=incident.pk).get().fault_type == "gpu.xid.119"


def test_another_gpu_of_the_node_has_an_incident_of_its_own_after_a_repair() -> None:
    incident = repaired()
    told(an_event(resource=OTHER_GPU, at=NOW + 6 * MINUTE))
    assert state_of(incident) == "monitoring"
    assert Incident.objects.exclude(pk=incident.pk).get().root_resource == OTHER_GPU


def test_another_gpu_that_was_part_of_the_repair_brings_it_back() -> None:
    incident = repaired(an_event(resource=OTHER_GPU, at=NOW + 2 * MINUTE))
    assert incident.members.count() == 2
    told(an_event(resource=OTHER_GPU, at=NOW + 6 * MINUTE))
    assert (Incident.objects.count(), state_of(incident)) == (1, "open")


def test_a_symptom_that_ends_after_the_repair_is_no_return_of_another_that_stands() -> None:
    incident = repaired(
        an_event("nic.link.down", NIC, at=NOW + 2 * MINUTE),
        an_event("target.unreachable", "node/gn042", at=NOW + 2 * MINUTE),
    )
    told(a_clear("target.unreachable", "node/gn042", at=NOW + 5 * MINUTE))
    assert state_of(incident) == "monitoring"


def test_a_link_that_still_stands_after_the_repair_is_told_by_itself() -> None:
    incident = repaired(an_event("nic.link.down", NIC, at=NOW + 2 * MINUTE))
    services.sweep(now=NOW + 5 * MINUTE + QUIET)
    assert Incident.objects.exclude(pk=incident.pk).get().root_resource == NIC
    assert state_of(incident) == "resolved"


def test_a_person_is_asked_when_what_a_person_placed_still_stands_after_the_quiet_period() -> None:
    incident = repaired(an_event("nic.link.down", NIC, at=NOW + 2 * MINUTE))
    incident.members.filter(role="symptom").update(placed_by="yuki")
    services.sweep(now=NOW + 5 * MINUTE + QUIET)
    services.sweep(now=NOW + 6 * MINUTE + QUIET)
    incident.refresh_from_db()
    assert (incident.state, incident.needs_human) == (
        "monitoring",
        "Look at gn042 NIC mlx5_5: nic.link.down still stands. Then resolve.",
    )
    assert incident.timeline.filter(kind="still_standing").count() == 1


def test_nobody_is_asked_any_more_once_what_still_stood_has_ended() -> None:
    incident = repaired(an_event("nic.link.down", NIC, at=NOW + 2 * MINUTE))
    incident.members.filter(role="symptom").update(placed_by="yuki")
    services.sweep(now=NOW + 5 * MINUTE + QUIET)
    ended = NOW + 10 * MINUTE + QUIET
    told(a_clear("nic.link.down", NIC, at=ended))
    incident.refresh_from_db()
    assert (incident.state, incident.needs_human) == ("monitoring", "")
    services.sweep(now=ended + SECOND)
    assert incident.timeline.filter(kind="standing_over").count() == 1
    assert state_of(incident) == "monitoring"
    services.sweep(now=ended + QUIET + SECOND)
    assert state_of(incident) == "resolved"


def test_another_question_of_a_watched_incident_stands_whatever_ends() -> None:
    incident = repaired(an_event("nic.link.down", NIC, at=NOW + 2 * MINUTE))
    told(a_clear("nic.link.down", NIC, at=NOW + 3 * MINUTE))
    Incident.objects.filter(pk=incident.pk).update(needs_human="Resume gn042 when it is well.")
    services.sweep(now=NOW + 5 * MINUTE)
    incident.refresh_from_db()
    assert incident.needs_human == "Resume gn042 when it is well."


def test_nobody_is_asked_about_a_symptom_that_ends_by_going_quiet() -> None:
    incident = repaired(an_event("pcie.aer.nonfatal", OTHER_GPU, at=NOW + 2 * MINUTE))
    services.sweep(now=NOW + 5 * MINUTE + QUIET)
    assert state_of(incident) == "monitoring"
    services.sweep(now=NOW + 3 * MINUTE + timedelta(days=1))
    incident.refresh_from_db()
    assert (incident.state, incident.needs_human) == ("resolved", "")


def link_incident() -> Incident:
    """One node's link, down for two minutes and up again."""
    told(an_event("nic.link.down", NIC))
    services.sweep(now=NOW + 61 * SECOND)
    told(a_clear("nic.link.down", NIC, at=NOW + 2 * MINUTE))
    return Incident.objects.get()


def test_a_link_is_back_only_after_its_hold_down() -> None:
    incident = link_incident()
    down = NOW + 5 * MINUTE
    told(an_event("nic.link.down", NIC, at=down))
    services.sweep(now=down + 30 * SECOND)
    assert state_of(incident) == "monitoring"
    services.sweep(now=down + 61 * SECOND)
    assert state_of(incident) == "open"


def test_a_link_that_is_up_again_within_its_hold_down_brings_nothing_back() -> None:
    incident = link_incident()
    down = NOW + 5 * MINUTE
    told(an_event("nic.link.down", NIC, at=down))
    told(a_clear("nic.link.down", NIC, at=down + 5 * SECOND))
    services.sweep(now=down + 61 * SECOND)
    assert state_of(incident) == "monitoring"
    assert not Fault.objects.filter(is_active=True).exists()


def test_an_incident_waits_for_a_whole_quiet_period_after_a_loss_that_its_hold_down_outlasted() -> (
    None
):
    incident = link_incident()
    down = NOW + 29 * MINUTE
    told(an_event("nic.link.down", NIC, at=down))
    told(a_clear("nic.link.down", NIC, at=down + 5 * SECOND))
    services.sweep(now=down + QUIET)
    assert state_of(incident) == "monitoring"
    services.sweep(now=down + 5 * SECOND + QUIET)
    incident.refresh_from_db()
    assert (incident.state, incident.restored_at) == ("resolved", NOW + 2 * MINUTE)


def dead_leaf_is_back() -> Incident:
    """Links of the leaf that went together and came back, concluded as the leaf, which has said
    nothing."""
    for number in (41, 42, 43):
        told(an_event("nic.link.down", f"node/gn0{number}/nic/mlx5_5", at=NOW))
    for number in (41, 42, 43):
        told(a_clear("nic.link.down", f"node/gn0{number}/nic/mlx5_5", at=NOW + 80 * SECOND))
    services.ingest(services.conclusions_ended(NOW + 85 * SECOND), now=NOW + 85 * SECOND)
    incident = Incident.objects.get()
    assert (incident.fault_type, incident.state) == ("switch.ports_lost", "monitoring")
    return incident


def test_a_switch_that_tells_late_of_its_reboot_explains_what_was_and_brings_nothing_back() -> None:
    incident = dead_leaf_is_back()
    told(an_event("switch.rebooted", LEAF, at=NOW + 2 * MINUTE))
    incident.refresh_from_db()
    assert (incident.fault_type, incident.state) == ("switch.rebooted", "monitoring")
    assert not incident.timeline.filter(kind="fault_returned").exists()
    services.sweep(now=NOW + 2 * MINUTE + QUIET)
    services.sweep(now=NOW + 2 * MINUTE + 2 * QUIET)
    assert state_of(incident) == "resolved"


def test_a_switch_whose_chip_software_has_died_opens_the_incident_of_its_links_again() -> None:
    """That stands: it tells of no moment that has passed."""
    incident = dead_leaf_is_back()
    told(an_event("switch.asic.sdk_failed", LEAF, at=NOW + 2 * MINUTE))
    assert (Incident.objects.count(), state_of(incident)) == (1, "open")
