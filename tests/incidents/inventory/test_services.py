"""What ingest makes of events, through the database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from detectors.faults import Severity
from incidents import services
from incidents.models import Evidence, Fault, Incident, Node, QuarantinedEvent
from incidents.vocabulary.changes import Acted, ChangeKind, Refused
from incidents.vocabulary.lifecycle import State, Trigger
from tests.builders import GPU, NOW, OTHER_GPU, a_clear, a_node, an_event, an_incident

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
NIC = "node/gn042/nic/mlx5_0"


def kinds(changes: list[services.Change]) -> list[ChangeKind]:
    return [change.kind for change in changes]


def test_incident_opens_when_a_gpu_falls_off_the_bus() -> None:
    a_node()
    changes = services.ingest([an_event()], now=NOW)
    incident = Incident.objects.get()
    assert kinds(changes) == [ChangeKind.OPENED]
    assert changes[0].incident_id == incident.pk
    assert (incident.state, incident.component, incident.severity) == ("open", "gpu", "critical")
    assert incident.node is not None
    assert incident.node.name == "gn042"
    assert [entry.kind for entry in incident.timeline.all()] == ["opened"]
    assert incident.notifications.count() >= 1


def test_repeat_raises_the_count_and_opens_nothing() -> None:
    services.ingest([an_event(count=3)], now=NOW)
    changes = services.ingest([an_event(at=NOW + SECOND, count=4)], now=NOW + SECOND)
    fault = Fault.objects.get()
    assert kinds(changes) == [ChangeKind.REPEATED]
    assert (fault.count, fault.last_seen_at) == (7, NOW + SECOND)
    assert Incident.objects.count() == 1


def test_events_that_come_twice_count_once() -> None:
    events = [an_event(), an_event(at=NOW + SECOND)]
    services.ingest(events, now=NOW)
    changes = services.ingest(events, now=NOW)
    assert {change.kind for change in changes} == {ChangeKind.IGNORED}
    assert Fault.objects.get().count == 2


def test_line_counts_once_when_it_comes_by_syslog_and_by_journal() -> None:
    services.ingest([an_event(source_key="gn042|b|12.5|text")], now=NOW)
    services.ingest([an_event(source_key="gn042|b|12.5|text", source="journal")], now=NOW)
    assert Fault.objects.get().count == 1


def test_the_copy_of_a_second_log_host_is_put_aside_before_any_fault_or_incident_is_read() -> None:
    """It is no mere repeat: a line that ends a fault travels in the same batch."""
    lines = [
        an_event(source_key="gn042|b|12.5|a"),
        a_clear("nic.link.down", NIC, at=NOW, source_key="gn042|b|12.6|b"),
    ]
    services.ingest(lines, now=NOW)
    with CaptureQueriesContext(connection) as asked:
        changes = services.ingest(
            [replace(line, event_id=f"{index:032x}") for index, line in enumerate(lines)], now=NOW
        )
    assert [change.text for change in changes] == [
        "2 x the same line came by another path: counted once"
    ]
    assert not [
        query["sql"] for query in asked.captured_queries if "incidents_incident" in query["sql"]
    ]
    assert Fault.objects.get().count == 1


def test_what_is_new_in_a_batch_of_copies_counts() -> None:
    services.ingest([an_event(source_key="gn042|b|12.5|a")], now=NOW)
    both = [
        an_event(source_key="gn042|b|12.5|a"),
        an_event(resource=OTHER_GPU, source_key="gn042|b|12.6|b"),
    ]
    services.ingest(both, now=NOW)
    assert dict(Fault.objects.values_list("resource", "count")) == {GPU: 1, OTHER_GPU: 1}


def test_two_identical_lines_of_one_second_count_two() -> None:
    services.ingest([an_event(), an_event()], now=NOW)
    assert Fault.objects.get().count == 2


def test_broken_event_is_put_aside_and_the_rest_commits() -> None:
    bad = an_event(resource="gn042 without a path")
    events = [an_event(), bad, an_event(resource=OTHER_GPU)]
    changes = services.ingest(events, now=NOW)
    assert ChangeKind.QUARANTINED in kinds(changes)
    assert Fault.objects.filter(fault_type="gpu.xid.79").count() == 2
    assert "resource path" in QuarantinedEvent.objects.get().error
    told = Incident.objects.get(fault_type="kintsugi.event_quarantined")
    assert told.notifications.exists()


def test_first_and_last_five_excerpts_are_kept() -> None:
    for number in range(23):
        at = NOW + number * SECOND
        services.ingest([an_event(at=at, excerpt=f"line {number}")], now=at)
    kept = [evidence.excerpt for evidence in Evidence.objects.order_by("occurred_at")]
    assert kept == [f"line {n}" for n in (0, 1, 2, 3, 4, 18, 19, 20, 21, 22)]


def test_unknown_machine_becomes_a_provisional_node() -> None:
    services.ingest([an_event(resource="node/stranger/gpu/0000:19:00.0")], now=NOW)
    node = Node.objects.get(name="stranger")
    assert node.is_provisional
    assert Incident.objects.get().node == node


def test_names_of_one_gpu_are_one_fault() -> None:
    a_node(address="10.0.0.42")
    Node.objects.get().gpus.filter(index=0).update(uuid="GPU-1", serial="165")
    paths = (
        GPU,
        "node/gn042/gpu/index:0",
        "node/gn042/gpu/GPU-1",
        "node/10.0.0.42/gpu/165",
        "node/gn042.x/gpu/19:00.0",
    )
    services.ingest([an_event(resource=path) for path in paths], now=NOW)
    fault = Fault.objects.get()
    assert (fault.resource, fault.count) == (GPU, 5)


def test_second_gpu_within_the_window_joins() -> None:
    services.ingest(
        [an_event(), an_event(resource=OTHER_GPU, at=NOW + 60 * SECOND)], now=NOW + 60 * SECOND
    )
    incident = Incident.objects.get()
    member = incident.members.get(role="symptom")
    assert member.rule == "same_node"
    assert (
        member.reason
        == "1 min after gpu.xid.79 on gn042 GPU 0000:19:00.0: the same node within the join window"
    )


def test_worse_event_escalates_fault_and_incident() -> None:
    services.ingest([an_event("gpu.xid.154", severity=Severity.MINOR)], now=NOW)
    changes = services.ingest([an_event("gpu.xid.154", severity=Severity.CRITICAL)], now=NOW)
    assert kinds(changes) == [ChangeKind.ESCALATED]
    assert Incident.objects.get().severity == "critical"


def test_incident_is_watched_when_its_fault_has_cleared() -> None:
    services.ingest([an_event("gpu.lost", GPU)], now=NOW)
    end = NOW + 30 * SECOND
    changes = services.ingest([a_clear("gpu.lost", GPU, at=end)], now=end)
    incident = Incident.objects.get()
    assert kinds(changes) == [ChangeKind.CLEARED, ChangeKind.MONITORING]
    assert (incident.state, incident.restored_at) == ("monitoring", end)
    services.ingest([an_event("gpu.lost", GPU, at=end + SECOND)], now=end + SECOND)
    incident.refresh_from_db()
    assert (incident.state, incident.restored_at) == ("open", None)
    assert Fault.objects.count() == 1


def test_action_moves_the_incident_and_writes_its_timeline() -> None:
    incident = an_incident()
    assert services.act(incident.pk, Trigger.ACKNOWLEDGE, actor="ada", now=NOW) == Acted(
        State.ACKNOWLEDGED
    )
    entry = incident.timeline.get()
    assert (entry.kind, entry.actor) == ("acknowledge", "ada")


def test_action_is_refused_with_a_reason_when_the_state_does_not_allow_it() -> None:
    incident = an_incident(state=State.RESOLVED)
    refused = services.act(incident.pk, Trigger.ACKNOWLEDGE, actor="ada", now=NOW)
    assert isinstance(refused, Refused)
    assert "resolved" in refused.reason
