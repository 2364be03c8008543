"""Who told of a fault is kept with it: the best and the last, in whichever order they come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from detectors.catalog import catalog
from detectors.faults import EventKind, FaultEvent
from detectors.provenance import Forger, Provenance, Transport, from_wire
from incidents import services as incidents
from incidents.models import Fault, IncidentFault
from incidents.people import explain
from incidents.people.report import report
from incidents.text import account

pytestmark = pytest.mark.django_db
_BY_UDP = Provenance("10.66.6.6", Transport.UDP, program="kernel", facility=0)
_BY_RELAY = Provenance("10.0.0.9", Transport.RELP, is_relay=True, program="kernel", facility=0)
_BY_SSH = Provenance("gn001", Transport.SSH, "its SSH host key", forger=Forger.ROOT)
_START = datetime.now(UTC) - timedelta(minutes=10)


def told(by: Provenance, second: int, kind: EventKind = EventKind.RAISED) -> None:
    row = catalog.load()["gpu.lost"]
    at = _START + timedelta(seconds=second)
    event = FaultEvent(
        event_id=f"e{second}",
        fault_type=row.id,
        event=kind,
        resource="node/gn001/gpu/0000:19:00.0",
        source="test",
        occurred_at=at,
        observed_at=at,
        severity=row.severity,
        action=row.action,
        component=row.component,
        excerpt="nvidia-smi shows 7 of 8",
        provenance=by,
    )
    incidents.ingest([event], now=at)


def known() -> tuple[str, Provenance, Provenance]:
    fault = Fault.objects.get(is_active=True)
    return fault.forger, from_wire(fault.best_provenance), from_wire(fault.last_provenance)


def test_the_best_of_those_who_told_is_kept_and_the_last() -> None:
    told(_BY_UDP, 1)
    assert known() == ("anyone", _BY_UDP, _BY_UDP)
    told(_BY_SSH, 2)
    assert known() == ("root", _BY_SSH, _BY_SSH)
    told(_BY_RELAY, 3)
    assert known() == ("root", _BY_SSH, _BY_RELAY)


def test_who_told_of_a_fault_before_it_ended_vouches_for_nothing_after() -> None:
    told(_BY_SSH, 1)
    told(_BY_SSH, 2, EventKind.CLEARED)
    told(_BY_UDP, 3)
    assert known() == ("anyone", _BY_UDP, _BY_UDP)


def test_a_fault_is_counted_whoever_tells_of_it() -> None:
    for second, by in enumerate([_BY_UDP, _BY_RELAY, _BY_SSH, _BY_UDP, _BY_SSH], start=1):
        told(by, second)
    assert Fault.objects.get().count == 5


def test_why_says_who_told_and_who_could_have_written_it() -> None:
    told(_BY_UDP, 1)
    told(_BY_SSH, 2)
    told(_BY_UDP, 3)
    incident = IncidentFault.objects.values_list("incident_id", flat=True).get()
    explanation = explain.build_account(incident)
    assert explanation is not None
    text = account.format_text(explanation)
    best = (
        "Told by a look over SSH from gn001, proved by its SSH host key: only root of the machine"
    )
    last = "Told by syslog over UDP from 10.66.6.6, kernel (kern): anyone on the network could"
    assert -1 < text.index(best) < text.index(last)


def test_a_person_vouches_with_their_name() -> None:
    now = datetime.now(UTC)
    report(author="ada", text="it is slow", resource="node/gn001", occurred_at=now, now=now)
    forger, best, _ = known()
    assert (forger, best.sender, best.transport) == ("nobody", "ada", Transport.PERSON)
