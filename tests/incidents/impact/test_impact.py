"""What an incident costs: its jobs are counted as they end, each owner is named once, and severity
rises with harm."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from detectors import resources
from detectors.catalog import catalog
from detectors.faults import Role
from incidents.impact import impact
from incidents.jobs import job_source, jobs
from incidents.models import Fault, Incident, IncidentFault, IncidentJob, Node, Notification
from incidents.state.batch import build_fault
from incidents.state.outbox import CONSOLE
from incidents.vocabulary.lifecycle import State
from tests.incidents.builders import T0, an_incident
from tests.incidents.jobs.test_jobs import a_record, ended

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
GPU_LOST = "gpu.xid.79"


def a_fault(
    resource: str, fault_type: str = GPU_LOST, *, at: datetime = T0, **changes: Any
) -> Fault:
    kind = catalog.load()[fault_type]
    row = build_fault(
        kind, fingerprint=f"{fault_type} {resource}"[:32], resource=resource, qualifier=""
    )
    row.component, row.severity, row.action = (
        str(kind.component),
        str(kind.severity),
        str(kind.action),
    )
    row.raised_at = row.observed_at = row.recorded_at = row.last_seen_at = at
    for name, value in changes.items():
        setattr(row, name, value)
    row.save()
    return row


def incident_on(*faults: Fault, **changes: Any) -> Incident:
    """The first fault is its root."""
    root = faults[0]
    values = {
        "root_fault": root,
        "root_resource": root.resource,
        "owner": root.owner,
        "severity": root.severity,
    }
    row = an_incident(**{**values, **changes})
    for fault in faults:
        role = Role.ROOT if fault is root else Role.SYMPTOM
        IncidentFault.objects.create(
            incident=row, fault=fault, role=str(role), rule="root", reason="", joined_at=T0
        )
    return row


def listed(*records: Any, at: datetime = T0) -> None:
    """Slurm has listed these jobs, and what open incidents cost is counted."""
    job_source.record_question(at)
    jobs.store_jobs(records, at)
    job_source.record_answer(at, has_accounts=True)
    impact.assess(at)


def gpu_lost_on(name: str = "gn001", **changes: Any) -> Incident:
    return incident_on(a_fault(resources.gpu(name, "0000:9b:00.0"), **changes))


def the(incident: Incident) -> Incident:
    incident.refresh_from_db()
    return incident


def test_nothing_is_said_of_jobs_before_slurm_has_listed_them() -> None:
    incident = gpu_lost_on()
    impact.assess(T0)
    assert the(incident).impact_at is None
    assert impact.get_tally(incident) is None
    assert "Slurm has not been asked" in job_source.get_notice()


def test_a_jobs_loss_grows_while_it_hangs_and_is_final_when_it_ends() -> None:
    incident = gpu_lost_on()
    listed(a_record(), at=T0 + MINUTE)
    assert (the(incident).jobs_touched, incident.nodes_touched) == (1, 1)
    assert incident.gpu_hours_lost == pytest.approx(16 / 60)
    listed(ended(at=T0 + 30 * MINUTE, state="CANCELLED"), at=T0 + 31 * MINUTE)
    listed(at=T0 + 60 * MINUTE)
    row = IncidentJob.objects.get()
    assert (row.outcome, row.is_harmed, row.fault_at) == ("CANCELLED", True, T0)
    assert the(incident).gpu_hours_lost == pytest.approx(8)
    assert impact.get_tally(incident).format_words() == (  # type: ignore[union-attr]
        "1 job of 1 person, 1 node, 1 lost or hanging; at least 8.0 GPU-hours lost"
    )


def test_the_work_since_the_last_checkpoint_is_lost_when_the_job_said_when_that_was() -> None:
    incident = gpu_lost_on()
    listed(ended(at=T0 + MINUTE, checkpoint_at=T0 - 59 * MINUTE), at=T0 + 2 * MINUTE)
    assert the(incident).gpu_hours_lost == pytest.approx(16)
    assert not IncidentJob.objects.get().is_estimate


def test_a_loss_is_not_known_when_slurm_says_no_gpus() -> None:
    incident = gpu_lost_on()
    listed(ended(gpus=0), at=T0 + MINUTE)
    assert the(incident).gpu_hours_lost is None
    assert "not known" in impact.get_tally(incident).format_words()  # type: ignore[union-attr]


def test_a_job_that_shares_its_node_is_at_risk_and_not_said_to_hang() -> None:
    Node.objects.create(name="gn001", gpu_count=8)
    incident = gpu_lost_on()
    listed(a_record(nodes=("gn001",), gpus=2), at=T0 + MINUTE)
    assert the(incident).jobs_touched == 1
    assert not IncidentJob.objects.get().is_harmed


def test_jobs_of_other_machines_are_not_touched() -> None:
    incident = gpu_lost_on("gn009")
    listed(ended(), at=T0 + MINUTE)
    assert (the(incident).jobs_touched, incident.gpu_hours_lost) == (0, None)
    assert impact.get_tally(incident).format_words() == "no job ran on it"  # type: ignore[union-attr]


def test_jobs_on_symptoms_machines_and_those_of_a_duplicate_count() -> None:
    root, symptom = (a_fault(resources.gpu(name, "0000:9b:00.0")) for name in ("gn001", "gn005"))
    incident = incident_on(root, symptom)
    other = a_fault(resources.gpu("gn007", "0000:9b:00.0"))
    incident_on(other, state=State.DUPLICATE, duplicate_of=incident)
    listed(
        *(ended(str(number), nodes=(f"gn00{number}",)) for number in (1, 5, 7, 8)), at=T0 + MINUTE
    )
    assert set(incident.jobs.values_list("job__job_id", flat=True)) == {"1", "5", "7"}


def test_a_fault_of_the_monitoring_touches_no_job() -> None:
    incident = incident_on(a_fault("node/gn001", "target.unreachable"))
    listed(ended(), at=T0 + MINUTE)
    assert (the(incident).jobs_touched, incident.nodes_touched) == (0, 0)


def test_a_fault_of_a_job_touches_that_job_alone() -> None:
    incident = incident_on(a_fault(jobs.get_path("slurm", "2"), "job.stalled"))
    listed(ended("1"), ended("2", state="TIMEOUT", user="bob"), at=T0 + MINUTE)
    assert [row.job.job_id for row in incident.jobs.all()] == ["2"]


def test_each_owner_is_named_once_when_their_jobs_were_lost() -> None:
    incident = gpu_lost_on()
    listed(ended("1", state="NODE_FAIL"), at=T0 + MINUTE)
    listed(ended("2"), ended("3", user="bob", nodes=("gn001",)), at=T0 + 2 * MINUTE)
    listed(at=T0 + 3 * MINUTE)
    first, second = incident.timeline.filter(kind=impact.KIND).order_by("pk")
    assert first.text.startswith(
        "Jobs lost or hanging: alice (1 NODE_FAIL, 2 nodes). In all: 1 job of 1 person"
    )
    assert second.text.startswith(
        "Jobs lost or hanging: bob (3 FAILED, 1 node). In all: 3 jobs of 2 people"
    )


def test_an_owner_is_told_when_the_first_message_that_names_them_was_sent() -> None:
    incident = gpu_lost_on()
    listed(ended(), at=T0 + MINUTE)
    assert IncidentJob.objects.get().owner_told_at is None
    message = Notification.objects.get(incident=incident, reason=impact.KIND)
    Notification.objects.filter(pk=message.pk).update(
        state="sent", sent_at=T0 + 2 * MINUTE, channel=CONSOLE
    )
    listed(at=T0 + 5 * MINUTE)
    assert IncidentJob.objects.get().owner_told_at == T0 + 2 * MINUTE


def test_a_person_marks_the_owners_told_once() -> None:
    incident = gpu_lost_on()
    listed(ended(), at=T0 + MINUTE)
    assert impact.mark_told(incident.pk, actor="bob", now=T0 + 3 * MINUTE) == 1
    assert impact.mark_told(incident.pk, actor="eve", now=T0 + 4 * MINUTE) == 0
    entry = incident.timeline.get(kind="owner_told")
    assert (entry.actor, entry.text) == ("bob", "Told the owners of 1 job: alice.")


def test_severity_rises_and_the_timeline_says_why_when_a_large_job_is_lost() -> None:
    incident = incident_on(a_fault("node/gn001/gpu/0000:9b:00.0", "gpu.xid.94"), severity="minor")
    own = incident.root_fault.severity  # type: ignore[union-attr]
    Fault.objects.update(severity="minor")
    listed(ended(nodes=tuple(f"gn{number:03d}" for number in range(1, 18))), at=T0 + MINUTE)
    assert (the(incident).severity, incident.own_severity) == ("major", "minor"), own
    entry = incident.timeline.get(kind=impact.LIFTED)
    assert entry.text == (
        "Severity is now major, before minor: a job on 17 nodes or more was lost or hangs (rule large_job)."
    )
    listed(at=T0 + 2 * MINUTE)
    assert incident.timeline.filter(kind=impact.LIFTED).count() == 1


def test_severity_is_critical_when_a_tenth_of_a_partition_is_out() -> None:
    Node.objects.bulk_create(
        Node(name=f"gn{number:03d}", partitions=["gpu"]) for number in range(1, 21)
    )
    faults = [a_fault(f"node/gn00{number}", "slurm.node_down") for number in (1, 2)]
    incident = incident_on(*faults)
    listed(at=T0 + MINUTE)
    assert the(incident).severity == "critical"


def test_a_row_goes_when_its_fault_is_no_longer_of_the_incident() -> None:
    root, symptom = (a_fault(resources.gpu(name, "0000:9b:00.0")) for name in ("gn001", "gn005"))
    incident = incident_on(root, symptom)
    listed(ended("1", nodes=("gn001",)), ended("5", nodes=("gn005",)), at=T0 + MINUTE)
    IncidentFault.objects.filter(fault=symptom).delete()
    listed(at=T0 + 2 * MINUTE)
    assert set(incident.jobs.values_list("job__job_id", flat=True)) == {"1"}


def test_a_closed_incident_is_counted_for_an_hour_and_then_left() -> None:
    incident = gpu_lost_on(is_active=False, cleared_at=T0)
    Incident.objects.filter(pk=incident.pk).update(state=State.RESOLVED, closed_at=T0)
    listed(ended(), at=T0 + 59 * MINUTE)
    assert the(incident).jobs_touched == 1
    assert not impact.get_due(T0 + 61 * MINUTE).exists()


def test_questions_to_the_database_do_not_grow_with_the_jobs(
    django_assert_max_num_queries: Any,
) -> None:
    gpu_lost_on()
    records = [ended(str(number), nodes=("gn001", f"gn{number:03d}")) for number in range(2, 200)]
    jobs.store_jobs(records, T0)
    job_source.record_question(T0)
    job_source.record_answer(T0, has_accounts=True)
    with django_assert_max_num_queries(60):
        impact.assess(T0 + MINUTE)
    assert IncidentJob.objects.count() == 198
