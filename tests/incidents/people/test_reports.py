"""Users' reports and what engineers say of them: one fault is one incident."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services
from incidents.models import Fault, Incident
from incidents.vocabulary.changes import Acted, Refused
from incidents.vocabulary.lifecycle import State, Trigger
from tests.builders import GPU, NOW, a_clear, a_node, an_event, an_incident

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
TWIN = "node/gn043/gpu/0000:19:00.0"


def told(at: timedelta = timedelta(0), **values: str) -> Incident:
    arguments = {"author": "m.sato", "text": "My job hangs.", "resource": "node/gn042", **values}
    return services.report(occurred_at=NOW + at, now=NOW + at, **arguments)


def test_report_opens_an_incident_when_nothing_is_known() -> None:
    a_node()
    incident = told()
    assert (incident.state, incident.fault_type, incident.component) == (
        "open",
        "report.user",
        "unknown",
    )
    assert incident.channels == ["user"]
    assert [entry.kind for entry in incident.timeline.all()] == ["opened", "user_report"]


def test_report_joins_the_platforms_incident_on_the_same_node() -> None:
    services.ingest([an_event()], now=NOW)
    incident = told(5 * MINUTE)
    assert incident.pk == Incident.objects.get().pk
    assert incident.channels == ["platform", "user"]
    assert incident.members.get(role="symptom").rule == "user_report"
    assert incident.component == "gpu"


def test_platform_signal_becomes_the_root_of_a_users_incident() -> None:
    incident = told()
    services.ingest([an_event(at=NOW + 2 * MINUTE)], now=NOW + 2 * MINUTE)
    incident.refresh_from_db()
    assert Incident.objects.count() == 1
    assert (incident.fault_type, incident.root_resource, incident.component) == (
        "gpu.xid.79",
        GPU,
        "gpu",
    )
    assert (incident.severity, incident.channels) == ("critical", ["platform", "user"])
    assert incident.members.get(role="root").fault.fault_type == "gpu.xid.79"
    assert "root_changed" in [entry.kind for entry in incident.timeline.all()]


def test_report_long_before_the_signal_stays_apart() -> None:
    told()
    services.ingest([an_event(at=NOW + 60 * MINUTE)], now=NOW + 60 * MINUTE)
    assert Incident.objects.count() == 2


def test_second_report_of_one_node_joins_the_first() -> None:
    first = told()
    second = told(MINUTE, author="k.ito", text="Mine too.")
    assert second.pk == first.pk
    assert first.reports.count() == 2
    assert Fault.objects.get().count == 2


def test_reports_of_two_people_about_one_node_are_one_incident_whatever_they_chose() -> None:
    a_node()
    first = told()
    second = told(
        MINUTE, author="k.ito", text="GPU 0 is gone.", resource=GPU, fault_type="gpu.lost"
    )
    assert (second.pk, Incident.objects.count(), first.reports.count()) == (first.pk, 1, 2)


def test_report_after_a_false_positive_is_heard() -> None:
    first = told()
    services.act(
        first.pk, Trigger.MARK_FALSE_POSITIVE, actor="ada", note="test job", now=NOW + MINUTE
    )
    second = told(2 * MINUTE, author="k.ito", text="Mine hangs too.")
    assert (second.state, second.fault_type) == ("open", "report.user")
    assert second.pk != first.pk


def test_report_of_a_type_that_its_author_chose_is_still_told_by_people_alone() -> None:
    incident = told(resource="switch/leaf-14", fault_type="switch.mac_learning_anomaly")
    assert (incident.fault_type, incident.channels) == ("switch.mac_learning_anomaly", ["user"])


def test_report_joins_when_a_member_stands_though_the_root_has_cleared() -> None:
    services.ingest([an_event(), an_event(fault_type="gpu.lost")], now=NOW)
    Fault.objects.filter(fault_type="gpu.xid.79").update(is_active=False, cleared_at=NOW + MINUTE)
    assert told(90 * MINUTE).pk == Incident.objects.get().pk


def test_report_without_words_or_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(services.EventRefused, match="sentence"):
        told(text="  ")
    with pytest.raises(services.EventRefused, match="fault type"):
        told(fault_type="gpu.on_fire")
    assert not Incident.objects.exists()


def test_false_positive_needs_a_reason() -> None:
    incident = an_incident()
    refused = services.act(incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="ada", now=NOW)
    assert isinstance(refused, Refused)
    done = services.act(
        incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="ada", note="test line", now=NOW
    )
    assert done == Acted(State.FALSE_POSITIVE)


def test_duplicate_needs_another_open_or_resolved_incident() -> None:
    one, other = an_incident(), an_incident(resource=TWIN)
    for target in (None, one):
        refused = services.act(
            one.pk, Trigger.MARK_DUPLICATE, actor="ada", duplicate_of=target, now=NOW
        )
        assert isinstance(refused, Refused)
    done = services.act(
        one.pk, Trigger.MARK_DUPLICATE, actor="ada", duplicate_of_id=other.pk, now=NOW
    )
    assert done == Acted(State.DUPLICATE)
    back = services.act(
        other.pk, Trigger.MARK_DUPLICATE, actor="ada", duplicate_of_id=one.pk, now=NOW
    )
    assert isinstance(back, Refused)


def test_incident_of_record_waits_for_the_faults_of_its_duplicates() -> None:
    services.ingest([an_event("gpu.lost")], now=NOW)
    services.ingest([an_event("gpu.lost", TWIN)], now=NOW)
    record, twin = Incident.objects.order_by("pk")
    services.act(twin.pk, Trigger.MARK_DUPLICATE, actor="ada", duplicate_of=record, now=NOW)
    later = NOW + MINUTE
    services.ingest([a_clear("gpu.lost", GPU, at=later)], now=later)
    record.refresh_from_db()
    assert record.state == "open"
    services.ingest([a_clear("gpu.lost", TWIN, at=later)], now=later)
    record.refresh_from_db()
    assert record.state == "monitoring"
