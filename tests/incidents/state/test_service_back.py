"""When service counts as back: as a person says, or else as Slurm showed it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from incidents.console.forms import ResolveForm
from incidents.models import Incident
from incidents.state.transitions import act
from incidents.vocabulary.changes import Acted
from incidents.vocabulary.lifecycle import Trigger
from tests.builders import NOW, an_incident, an_interval

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
CLOSED_AT = NOW + 5 * HOUR


def resolve(incident: Incident, **changes: datetime) -> tuple[datetime | None, str]:
    """When service counts as back, and what the timeline says."""
    acted = act(incident.pk, Trigger.RESOLVE, actor="ada", now=CLOSED_AT, **changes)
    assert isinstance(acted, Acted)
    incident.refresh_from_db()
    return incident.restored_at, incident.timeline.latest("pk").text


def test_a_node_that_a_person_resumed_is_back_since_slurm_gave_it_jobs_again() -> None:
    incident = an_incident(out_of_service_at=NOW)
    an_interval(at=NOW, holder="kintsugi", until=NOW + HOUR)
    an_interval(at=NOW + HOUR, until=NOW + 2 * HOUR)
    an_interval(at=NOW + 2 * HOUR, state="MIXED")
    restored_at, text = resolve(incident)
    assert restored_at == NOW + HOUR
    assert "Service is back since 2025-" in text


def test_a_node_that_was_drained_again_is_back_since_it_was_given_back_last() -> None:
    incident = an_incident(out_of_service_at=NOW)
    an_interval(at=NOW + HOUR, until=NOW + 2 * HOUR)
    an_interval(at=NOW + 2 * HOUR, holder="grace", until=NOW + 3 * HOUR)
    an_interval(at=NOW + 3 * HOUR)
    assert resolve(incident)[0] == NOW + 3 * HOUR


def test_what_a_person_says_wins() -> None:
    incident = an_incident(out_of_service_at=NOW)
    an_interval(at=NOW + HOUR)
    assert resolve(incident, restored_at=NOW + 4 * HOUR)[0] == NOW + 4 * HOUR


def test_a_node_that_takes_no_jobs_is_back_when_its_incident_is_resolved() -> None:
    incident = an_incident(out_of_service_at=NOW)
    an_interval(at=NOW + HOUR, until=NOW + 2 * HOUR)
    an_interval(at=NOW + 2 * HOUR, holder="grace")
    restored_at, text = resolve(incident)
    assert restored_at == CLOSED_AT
    assert "back since" not in text


def test_a_node_that_was_never_taken_out_is_back_when_its_incident_is_resolved() -> None:
    incident = an_incident()
    an_interval(at=NOW + HOUR)
    assert resolve(incident)[0] == CLOSED_AT


def test_the_form_says_since_when_service_counts_as_back() -> None:
    incident = an_incident(out_of_service_at=NOW)
    assert "Empty: now." in ResolveForm(incident=incident).fields["back_since"].help_text
    an_interval(at=NOW + HOUR)
    words = ResolveForm(incident=incident).fields["back_since"].help_text
    assert "since when Slurm gives the node jobs again" in words
