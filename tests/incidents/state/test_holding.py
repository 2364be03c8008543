"""Repairs that wait while a wider cause is suspected, from the events to the node that is not
drained."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors import resources
from detectors.provenance import UNKNOWN, Forger, Provenance, Transport
from incidents.models import Decision, Fault, Incident
from incidents.state.holds import LONGEST
from tests.builders import NOW
from tests.incidents.sites import NODES, a_site, happen, nics
from tests.incidents.triage.test_aggregation import a_job

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
GPU = "node/gn009/gpu/0000:19:00.0"

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _site(db: None) -> None:
    a_site()


def of(resource: str) -> Incident:
    return Incident.objects.get(root_resource=resource)


def test_a_repair_behind_a_switch_waits_when_three_of_its_ports_alarm() -> None:
    happen("gpu.xid.79", [GPU])
    assert of(GPU).held_until is None

    happen("nic.link.down", nics(1, NODES[:3]), at=NOW + 30 * SECOND)

    held = of(GPU)
    assert held.held_until == NOW + 32 * SECOND + 2 * MINUTE
    assert held.held_reason == (
        "3 of 12 behind leaf-02 show the same kind of fault within 1 min: leaf-02 itself may be the cause."
    )
    decision = Decision.objects.get(kind="held")
    assert (decision.rule, decision.incident_id, decision.until) == (
        "leaf",
        held.pk,
        held.held_until,
    )
    assert held.timeline.filter(kind="repair_held").count() == 1


def test_a_repair_waits_when_it_comes_after_the_ports() -> None:
    happen("nic.link.down", nics(1, NODES[:3]))
    happen("gpu.xid.79", [GPU], at=NOW + 20 * SECOND)

    assert of(GPU).held_until == NOW + 22 * SECOND + 2 * MINUTE


def test_no_repair_waits_when_two_ports_alarm() -> None:
    happen("gpu.xid.79", [GPU])
    happen("nic.link.down", nics(1, NODES[:2]), at=NOW + 30 * SECOND)

    assert of(GPU).held_until is None


def test_no_repair_waits_when_the_ports_alarmed_minutes_ago() -> None:
    happen("nic.link.down", nics(1, NODES[:3]))
    happen("gpu.xid.79", [GPU], at=NOW + 5 * MINUTE)

    assert of(GPU).held_until is None


def test_a_hold_is_told_once_when_more_ports_follow() -> None:
    happen("gpu.xid.79", [GPU])
    for number in range(4):
        happen(
            "nic.link.down", nics(1, NODES[number : number + 1]), at=NOW + (10 + number) * SECOND
        )

    held = of(GPU)
    assert held.timeline.filter(kind="repair_held").count() == 1
    assert held.held_until == NOW + 15 * SECOND + 2 * MINUTE


def test_no_incident_is_held_for_longer_than_the_longest_time() -> None:
    happen("gpu.xid.79", [GPU])
    opened_at = of(GPU).opened_at
    happen("nic.link.down", nics(1, NODES[:3]), at=NOW + MINUTE)
    happen("nic.link.errors", nics(1, NODES[:3]), at=NOW + LONGEST - MINUTE)

    assert of(GPU).held_until == opened_at + LONGEST


def test_the_vendor_is_not_called_when_the_first_of_many_supplies_fails() -> None:
    happen("node.power_supply.failed", ["node/gn001"])
    assert of("node/gn001").held_until is not None

    happen("node.power_supply.failed", [f"node/{name}" for name in NODES[1:]], at=NOW + MINUTE)

    incident = Incident.objects.exclude(state="duplicate").get()
    assert (incident.fault_type, incident.node) == ("facility.power.degraded", None)


def test_the_node_with_the_hardware_fault_is_repaired_when_its_job_fails_everywhere() -> None:
    a_job("7", NODES[:8])
    happen("gpu.xid.45", [resources.gpu(name, "0000:19:00.0") for name in NODES[:6]])
    happen("gpu.xid.79", ["node/gn008/gpu/0000:19:00.0"], at=NOW + 5 * SECOND)

    incident = Incident.objects.exclude(state="duplicate").get()
    assert (incident.fault_type, incident.held_until) == ("gpu.xid.79", None)


MEASURED = Provenance("gn009", Transport.SSH, "its SSH host key", forger=Forger.ROOT)


ALARMS = {
    "a switch": ("nic.link.down", nics(1, NODES[:3])),
    "a supply": ("node.power_supply.failed", [f"node/{name}" for name in NODES[9:]]),
    "a file system": ("storage.lustre.connection_lost", [f"node/{name}" for name in NODES]),
}


@pytest.mark.parametrize("suspected", sorted(ALARMS))
@pytest.mark.parametrize("is_measured", [False, True], ids=["texts", "measured"])
def test_texts_that_anybody_may_have_written_hold_no_repair_that_was_measured(
    suspected: str, is_measured: bool
) -> None:
    fault_type, places = ALARMS[suspected]
    happen("gpu.lost", [GPU], told_by=MEASURED)
    told_by = MEASURED if is_measured else UNKNOWN
    happen(fault_type, places, at=NOW + 30 * SECOND, told_by=told_by)
    assert (of(GPU).held_until is not None) is is_measured


def test_what_was_measured_behind_a_switch_holds_a_repair_that_was_measured() -> None:
    happen("gpu.lost", [GPU], told_by=MEASURED)
    happen("nic.link.down", nics(1, NODES[:3]), at=NOW + 30 * SECOND, told_by=MEASURED)
    assert of(GPU).held_until == NOW + 32 * SECOND + 2 * MINUTE


SUPPLY = "node.power_supply.failed"


def test_a_place_that_texts_alone_suspect_takes_no_repair_that_was_measured() -> None:
    happen(SUPPLY, [f"node/{name}" for name in NODES[1:]])
    concluded = Fault.objects.get(fault_type="facility.power.degraded")
    assert Forger(concluded.forger) is Forger.ANYONE
    happen(SUPPLY, ["node/gn001"], at=NOW + MINUTE, told_by=MEASURED)
    own = of("node/gn001")
    assert own.fault_type == SUPPLY
    nearly = Decision.objects.filter(kind="nearly", incident=own)
    assert any("a text alone has told of that cause" in one.text for one in nearly)


def test_a_place_that_measurements_suspect_takes_them_all() -> None:
    happen(SUPPLY, [f"node/{name}" for name in NODES], told_by=MEASURED)
    concluded = Fault.objects.get(fault_type="facility.power.degraded")
    assert Forger(concluded.forger) is Forger.ROOT
    assert Incident.objects.exclude(state="duplicate").get().node is None
