"""What is older than a confirmed repair reopens nothing; what comes in a repair is judged after
it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.faults import FaultEvent, Observation
from incidents import services
from incidents.inventory import services as inventory
from incidents.models import Fault, Incident
from incidents.triage.clock_check import CLOCK_DOUBTED
from incidents.vocabulary.changes import Acted
from incidents.vocabulary.lifecycle import Trigger
from tests.builders import GPU, NOW, OTHER_GPU, a_clear, a_node, an_event

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
NIC = "node/gn042/nic/mlx5_5"


@pytest.fixture(autouse=True)
def node() -> None:
    a_node()


def told(event: FaultEvent) -> None:
    services.ingest([event], now=event.observed_at)
    services.sweep(now=event.observed_at)


def reasons(event: FaultEvent) -> str:
    return " ".join(change.text for change in services.ingest([event], now=event.observed_at))


def act(trigger: Trigger, at: timedelta) -> None:
    incident = Incident.objects.earliest("pk")
    assert isinstance(services.act(incident.pk, trigger, actor="ada", now=NOW + at), Acted)


def repaired(*during: FaultEvent) -> Incident:
    """A GPU that fell off the bus, repaired from +1 to +10 min without a restart that we saw."""
    services.ingest([an_event()], now=NOW)
    act(Trigger.REPAIR_STARTED, MINUTE)
    for event in during:
        told(event)
    act(Trigger.REPAIR_SUCCEEDED, 10 * MINUTE)
    return Incident.objects.earliest("pk")


def state() -> str:
    return Incident.objects.earliest("pk").state


def late(seen: timedelta, behind: timedelta, resource: str = GPU) -> FaultEvent:
    return an_event(resource=resource, at=NOW + seen - behind, observed_at=NOW + seen)


def test_an_old_line_opens_nothing_after_a_person_has_resolved() -> None:
    services.ingest([an_event()], now=NOW)
    act(Trigger.RESOLVE, 20 * MINUTE)
    assert "before the repair that incident #" in reasons(
        late(21 * MINUTE, 20 * MINUTE + 30 * SECOND)
    )
    assert Incident.objects.count() == 1
    assert not Fault.objects.filter(is_active=True).exists()


def test_a_line_of_the_seconds_before_the_repair_reopens_nothing_when_it_comes_after_it() -> None:
    services.ingest([an_event()], now=NOW)
    act(Trigger.RESOLVE, 20 * MINUTE)
    told(late(20 * MINUTE + 5 * SECOND, 10 * SECOND))
    assert (Incident.objects.count(), state()) == (1, "resolved")


def test_the_fault_is_new_when_it_is_dated_after_the_repair() -> None:
    services.ingest([an_event()], now=NOW)
    act(Trigger.RESOLVE, 20 * MINUTE)
    told(an_event(at=NOW + 21 * MINUTE))
    assert Incident.objects.count() == 2


def test_an_old_line_does_not_undo_a_verified_repair() -> None:
    repaired()
    event = late(11 * MINUTE, 10 * MINUTE)
    assert "before the repair" in reasons(event)
    services.sweep(now=NOW + 12 * MINUTE)
    assert state() == "monitoring"
    assert Fault.objects.get().count == 1


def test_a_repair_makes_nothing_stale_of_another_part_of_the_machine() -> None:
    repaired()
    told(late(10 * MINUTE + 5 * SECOND, 10 * SECOND, OTHER_GPU))
    assert Fault.objects.filter(resource=OTHER_GPU, is_active=True).exists()


def test_an_old_line_of_a_part_that_was_replaced_opens_nothing() -> None:
    inventory.store_observations([Observation(GPU, "gpu.serial", "1650001", NOW)], NOW)
    inventory.store_observations(
        [Observation(GPU, "gpu.serial", "1650002", NOW)], NOW + 20 * MINUTE
    )
    services.ingest([an_event(resource=OTHER_GPU)], now=NOW)
    event = late(21 * MINUTE, 20 * MINUTE)
    assert "before the gpu there was replaced" in reasons(event)
    assert not Fault.objects.filter(resource=GPU).exists()


def test_the_first_sight_of_a_part_makes_nothing_stale() -> None:
    inventory.store_observations(
        [Observation(GPU, "gpu.serial", "1650001", NOW)], NOW + 20 * MINUTE
    )
    told(late(21 * MINUTE, 20 * MINUTE))
    assert Fault.objects.get().is_active


def test_a_person_looks_at_the_clock_when_an_unknown_line_is_dated_before_the_repair() -> None:
    """It may be old, or live on a machine whose clock is behind: it is not counted, and not lost in
    silence."""
    repaired(an_event(resource=OTHER_GPU, at=NOW + 9 * MINUTE))
    told(late(30 * MINUTE, 25 * MINUTE, OTHER_GPU))
    assert Fault.objects.get(fault_type=CLOCK_DOUBTED).is_active


def test_the_root_brings_its_incident_back_when_it_is_seen_again_after_the_repair() -> None:
    repaired()
    told(an_event(at=NOW + 12 * MINUTE))
    assert (state(), Incident.objects.count()) == ("open", 1)


def test_a_fault_that_came_in_the_repair_brings_it_back_when_it_still_stands_after_it() -> None:
    repaired(an_event(resource=OTHER_GPU, at=NOW + 5 * MINUTE))
    services.sweep(now=NOW + 11 * MINUTE)
    assert state() == "monitoring"
    told(an_event(resource=OTHER_GPU, at=NOW + 12 * MINUTE))
    assert (state(), Incident.objects.count()) == ("open", 1)


def test_a_link_that_went_down_in_the_repair_has_an_incident_of_its_own_when_it_stays_down() -> (
    None
):
    """The repaired fault is over, and what it does not explain is told by itself."""
    repaired(an_event("nic.link.down", NIC, at=NOW + 5 * MINUTE))
    Fault.objects.filter(fault_type="gpu.xid.79").update(
        is_active=False, cleared_at=NOW + 9 * MINUTE
    )
    for minute in range(11, 25):
        told(an_event("nic.link.down", NIC, at=NOW + minute * MINUTE))
    other = Incident.objects.latest("pk")
    assert (state(), other.fault_type, other.is_open) == ("monitoring", "nic.link.down", True)


def test_a_transient_of_the_repair_is_kept_and_told_when_it_is_over_before_the_end() -> None:
    incident = repaired(
        an_event("nic.link.down", NIC, at=NOW + 5 * MINUTE),
        a_clear("nic.link.down", NIC, at=NOW + 6 * MINUTE),
    )
    fault = Fault.objects.get(fault_type="nic.link.down")
    assert (fault.is_active, fault.membership.incident_id) == (False, incident.pk)
    assert incident.timeline.filter(kind="joined", text__contains="nic.link.down").exists()
    services.sweep(now=NOW + 12 * MINUTE)
    assert state() == "monitoring"
