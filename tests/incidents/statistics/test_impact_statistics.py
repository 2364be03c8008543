"""What incidents cost over a time: no job twice, nothing that is not known as nothing, and owners
told in minutes."""

from __future__ import annotations

import io
import json
from datetime import timedelta

import pytest
from django.core.management import call_command

from detectors import resources
from incidents.models import Incident, IncidentJob
from incidents.statistics import impact_statistics
from incidents.statistics.impact_statistics import Told
from incidents.vocabulary.lifecycle import State
from tests.incidents.builders import T0
from tests.incidents.impact.test_impact import a_fault, gpu_lost_on, incident_on, listed
from tests.incidents.jobs.test_jobs import ended

pytestmark = pytest.mark.django_db
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def figures() -> impact_statistics.ImpactFigures:
    return impact_statistics.compute_figures(T0 - DAY, T0 + DAY)


def told_after(*minutes: float) -> None:
    for row, each in zip(IncidentJob.objects.order_by("job__job_id", "pk"), minutes, strict=False):
        IncidentJob.objects.filter(pk=row.pk).update(owner_told_at=T0 + each * MINUTE)


def test_a_loss_is_shared_and_counted_once_when_two_incidents_touched_the_job() -> None:
    gpu_lost_on("gn001")
    incident_on(
        a_fault("node/gn002/nic/mlx5_0", "nic.link.down", severity="major"), component="nic"
    )
    listed(ended(at=T0 + 6 * MINUTE), at=T0 + 7 * MINUTE)
    found = figures()
    assert IncidentJob.objects.filter(is_harmed=True).count() == 2
    assert (found.jobs_lost, found.people, found.least) == (1, 1, 1)
    assert found.gpu_hours_lost == pytest.approx(1.6)
    assert found.by_component == pytest.approx({"gpu": 0.8, "nic": 0.8})


def test_a_loss_is_not_known_when_no_jobs_is() -> None:
    gpu_lost_on()
    listed(ended(gpus=0), at=T0 + MINUTE)
    assert (figures().jobs_lost, figures().gpu_hours_lost, figures().unknown) == (1, None, 1)


@pytest.mark.parametrize("state", [State.FALSE_POSITIVE, State.DUPLICATE])
def test_what_was_no_failure_cost_nothing(state: State) -> None:
    gpu_lost_on()
    listed(ended(), at=T0 + MINUTE)
    Incident.objects.update(state=state)
    assert figures() == impact_statistics.ImpactFigures()


def test_owners_are_told_once_an_incident_and_those_not_told_stand_beside() -> None:
    faults = [
        a_fault(resources.gpu("gn001", "0000:9b:00.0")),
        a_fault(resources.gpu("gn002", "0000:9b:00.0")),
    ]
    incident_on(*faults)
    users = ("alice", "alice", "bob", "carol", "dave")
    records = [ended(str(number), user=user, nodes=("gn001",)) for number, user in enumerate(users)]
    listed(*records, at=T0 + MINUTE)
    told_after(4, 2, 10, 20)
    assert figures().told == Told(median=10.0, p90=18.0, count=3, untold=1)


def test_nobody_told_is_no_time_of_nought() -> None:
    gpu_lost_on()
    listed(ended(), at=T0 + MINUTE)
    assert figures().told == Told(None, None, 0, 1)
    assert ("owners told", "Nobody yet; 1 not told.") in impact_statistics.format_sentences(
        figures()
    )


def test_the_command_says_what_it_cost_in_words_and_as_json() -> None:
    gpu_lost_on()
    listed(ended(at=T0 + 6 * MINUTE), at=T0 + 7 * MINUTE)
    told_after(3)
    span = {"since": "2025-01-14T00:00+00:00", "until": "2025-01-16T00:00+00:00"}
    words, wire = io.StringIO(), io.StringIO()
    call_command("reliability", stdout=words, **span)
    call_command("reliability", "--json", stdout=wire, **span)
    assert "1 of 1 people." in words.getvalue()
    assert "3.0 min after the fault in the median" in words.getvalue()
    told = json.loads(wire.getvalue())["impact"]
    assert told["gpu_hours_lost"] == pytest.approx(1.6)
    assert told["told"] == {"median_minutes": 3.0, "p90_minutes": 3.0, "count": 1, "untold": 0}
