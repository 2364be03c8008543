"""What time does: quiet faults, hold-downs, quiet periods, restarts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.catalog import catalog
from detectors.faults import ClearRule
from incidents import services
from incidents.models import Fault, Incident, Node, SeenEvent
from incidents.vocabulary.changes import ChangeKind
from incidents.vocabulary.lifecycle import State, Trigger
from tests.builders import GPU, NOW, a_clear, a_node, an_event, an_incident

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
QUIET = timedelta(minutes=30)


def a_type(clears: ClearRule, *, opens: bool = True, is_sympathetic: bool = False) -> str:
    """Some Xid of the catalogue that clears this way."""
    return next(
        row.id
        for row in catalog.load()
        if row.clears is clears
        and row.opens_incident is opens
        and row.is_sympathetic is is_sympathetic
        and row.family == "xid"
        and row.code is not None
    )


def test_fault_clears_when_it_has_been_quiet_for_its_period() -> None:
    fault_type = a_type(ClearRule.AFTER_QUIET, opens=False)
    quiet = catalog.load()[fault_type].quiet
    assert quiet is not None
    services.ingest([an_event(fault_type)], now=NOW)
    assert services.sweep(now=NOW + quiet - SECOND) == []
    services.ingest([an_event(fault_type, at=NOW + SECOND)], now=NOW + SECOND)
    assert services.sweep(now=NOW + quiet + SECOND / 2) == []
    changes = services.sweep(now=NOW + quiet + 2 * SECOND)
    assert [change.kind for change in changes] == [ChangeKind.CLEARED]
    fault = Fault.objects.get()
    assert (fault.is_active, fault.cleared_at) == (False, NOW + SECOND)


def test_incident_resolves_as_self_cleared_when_nobody_repaired_it() -> None:
    services.ingest([an_event("gpu.lost")], now=NOW)
    end = NOW + 60 * SECOND
    services.ingest([a_clear("gpu.lost", GPU, at=end)], now=end)
    assert services.sweep(now=end + QUIET - SECOND) == []
    changes = services.sweep(now=end + QUIET)
    assert [change.kind for change in changes] == [ChangeKind.RESOLVED]
    incident = Incident.objects.get()
    assert (incident.state, incident.recovery, incident.restored_at) == (
        "resolved",
        "self_cleared",
        end,
    )
    assert incident.closed_at == end + QUIET


def test_incident_waits_for_the_answer_when_a_person_is_asked() -> None:
    incident = an_incident(state=State.MONITORING, restored_at=NOW, needs_human="look at gn042")
    Fault.objects.update(is_active=False, cleared_at=NOW)
    assert services.sweep(now=NOW + 2 * QUIET) == []
    incident.refresh_from_db()
    assert incident.state == "monitoring"


def test_restart_clears_what_a_reboot_ends_and_makes_older_events_stale() -> None:
    a_node()
    services.ingest([an_event()], now=NOW)
    booted = NOW + 600 * SECOND
    changes = services.record_node_restart(
        "gn042", booted_at=booted, boot_id="b2", now=booted + SECOND
    )
    assert [change.kind for change in changes] == [ChangeKind.CLEARED, ChangeKind.MONITORING]
    incident = Incident.objects.get()
    assert (incident.state, incident.recovery) == ("monitoring", "node_restart")
    late = services.ingest([an_event(at=NOW + SECOND)], now=booted + 2 * SECOND)
    assert [change.kind for change in late] == [ChangeKind.IGNORED]
    assert "before the node's last boot" in late[0].text
    incident.refresh_from_db()
    assert incident.state == "monitoring"


def test_restart_told_twice_changes_nothing() -> None:
    a_node()
    services.record_node_restart("gn042", booted_at=NOW, boot_id="b1", now=NOW)
    services.ingest([an_event(at=NOW + SECOND)], now=NOW + SECOND)
    assert (
        services.record_node_restart(
            "gn042", booted_at=NOW + 2 * SECOND, boot_id="b1", now=NOW + 3 * SECOND
        )
        == []
    )
    assert Fault.objects.get().is_active
    assert Node.objects.get().boot_seen_at == NOW


def test_incident_of_a_withdrawn_repair_is_watched_when_its_faults_have_cleared_meanwhile() -> None:
    a_node()
    services.ingest([an_event()], now=NOW)
    incident = Incident.objects.get()
    services.act(incident.pk, Trigger.REPAIR_STARTED, actor="kintsugi", now=NOW)
    services.record_node_restart(
        "gn042", booted_at=NOW + SECOND, boot_id="b2", now=NOW + 2 * SECOND
    )
    services.act(incident.pk, Trigger.REPAIR_WITHDRAWN, actor="kintsugi", now=NOW + 3 * SECOND)
    changes = services.sweep(now=NOW + 4 * SECOND)
    assert [change.kind for change in changes] == [ChangeKind.MONITORING]


def test_same_fault_after_resolution_opens_an_incident_that_names_the_earlier_one() -> None:
    services.ingest([an_event()], now=NOW)
    first = Incident.objects.get()
    services.act(first.pk, Trigger.RESOLVE, actor="ada", now=NOW + SECOND)
    services.ingest([an_event(at=NOW + 60 * SECOND)], now=NOW + 60 * SECOND)
    second = Incident.objects.exclude(pk=first.pk).get()
    assert second.follows == first
    assert any(f"#{first.pk}" in entry.text for entry in second.timeline.all())


def test_ids_are_forgotten_after_seven_days() -> None:
    services.ingest([an_event()], now=NOW)
    services.sweep(now=NOW + timedelta(days=7))
    assert SeenEvent.objects.exists()
    services.sweep(now=NOW + timedelta(days=7, hours=2))
    assert not SeenEvent.objects.exists()
