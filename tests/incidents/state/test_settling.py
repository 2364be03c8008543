"""When the faults of an incident have cleared, and when they are back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services
from incidents.models import Fault, Incident
from incidents.vocabulary.changes import Acted
from incidents.vocabulary.lifecycle import Trigger
from tests.builders import GPU, NOW, a_clear, a_node, an_event

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def repaired(at: timedelta) -> Incident:
    incident = Incident.objects.get()
    for trigger in (Trigger.REPAIR_STARTED, Trigger.REPAIR_SUCCEEDED):
        assert isinstance(services.act(incident.pk, trigger, actor="kintsugi", now=NOW + at), Acted)
    return incident


def test_a_fault_that_was_last_seen_before_the_repair_has_not_returned_when_others_clear() -> None:
    a_node()
    services.ingest([an_event(), an_event(fault_type="gpu.lost")], now=NOW)
    incident = repaired(10 * MINUTE)
    services.ingest([a_clear("gpu.lost", GPU, at=NOW + 11 * MINUTE)], now=NOW + 11 * MINUTE)
    incident.refresh_from_db()
    assert incident.state == "monitoring"


def test_an_incident_that_asks_a_person_stays_open_when_its_faults_clear() -> None:
    a_node()
    services.ingest([an_event(fault_type="gpu.lost")], now=NOW)
    Incident.objects.update(needs_human="Examine gn042: it did not pass after its reboot.")
    services.ingest([a_clear("gpu.lost", GPU, at=NOW + 11 * MINUTE)], now=NOW + 11 * MINUTE)
    incident = Incident.objects.get()
    assert not Fault.objects.get().is_active
    assert (incident.state, incident.restored_at) == ("open", None)
