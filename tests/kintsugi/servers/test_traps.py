"""What notifications do to incidents and repairs: they are remembered and told, and nothing is done
because of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from detectors.catalog import catalog
from detectors.faults import event_id, to_wire
from detectors.receivers.snmptrap import TrapSenders, build_events
from detectors.switch import traps
from incidents.models import Fault, Incident
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY
from runbooks.models import Mode, Run, RunbookMode
from tests.kintsugi.test_pipeline import START, House

pytestmark = pytest.mark.django_db
KNOWN = TrapSenders(ports={"leaf-01": frozenset({"Ethernet64"})})
INDEX = "1.3.6.1.2.1.2.2.1.1.65"


@pytest.fixture
def house(tmp_path: Path) -> House:
    made = House(tmp_path)
    RunbookMode.objects.create(
        runbook=DRAIN_REBOOT_VERIFY, mode=Mode.ARMED, set_by="test", set_at=START
    )
    return made


def tell(house: House, *oids: str, host: str = "leaf-01") -> None:
    wires = []
    for number, oid in enumerate(oids):
        said = traps.parse_oids([(traps.TRAP_OID, oid), (INDEX, 65)])
        assert said is not None
        found = build_events(said, host, KNOWN, catalog.load(), house.now)
        wires += [
            to_wire(replace(event, event_id=event_id("trap", house.now, number))) for event in found
        ]
    house.pipeline.ingest(wires)
    house.answer()


def test_every_notification_that_is_known_starts_no_repair(house: House) -> None:
    tell(house, *sorted(traps.NOTIFICATIONS))
    assert Fault.objects.count() > 5
    assert not Run.objects.exclude(
        node=None
    ).exists()  # switches are watched, which touches nothing


def test_a_port_that_goes_down_and_comes_back_is_one_fault_that_is_cleared(house: House) -> None:
    tell(house, "1.3.6.1.6.3.1.1.5.3")
    fault = Fault.objects.get(fault_type="switch.port.down")
    assert fault.resource == "switch/leaf-01/port/Ethernet64"
    assert fault.cleared_at is None
    house.now += timedelta(seconds=40)
    tell(house, "1.3.6.1.6.3.1.1.5.4")
    fault.refresh_from_db()
    assert fault.cleared_at is not None


def test_an_agent_that_started_opens_no_incident(house: House) -> None:
    tell(house, "1.3.6.1.6.3.1.1.5.1")
    assert Fault.objects.filter(fault_type="switch.agent.started").exists()
    assert Incident.objects.count() == 0
