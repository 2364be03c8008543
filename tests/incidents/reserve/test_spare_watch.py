"""Spares that are lent longer than their case is open are asked about, once a day, and not taken
back by themselves."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services
from incidents.models import Incident, Notification, Spare
from incidents.reserve import spares
from incidents.vendor import cases, deadlines
from incidents.vendor.cases import Opened
from incidents.vocabulary.lifecycle import Trigger
from incidents.vocabulary.vendor_states import Move
from tests.builders import NOW, a_node, an_incident

pytestmark = pytest.mark.django_db
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def lent() -> tuple[Incident, Spare]:
    """gn099 stands in for gn042."""
    a_node()
    a_node("gn099")
    incident = an_incident(at=NOW)
    spare = spares.add("gn099", partitions=["gpu"], is_reserved=False, now=NOW)
    assert isinstance(spare, Spare)
    assert spares.claim(spare, stands_for="gn042", incident_id=incident.pk, now=NOW)
    spares.serves(spare, NOW)
    return incident, spare


def closed(incident: Incident) -> None:
    assert incident.root_fault is not None
    services.act(incident.pk, Trigger.RESOLVE, actor="ada", note="done", now=NOW)


def test_people_are_asked_once_a_day_after_the_incident_is_closed() -> None:
    incident, spare = lent()
    assert deadlines.check_deadlines(NOW + DAY) == []
    closed(incident)
    assert deadlines.check_deadlines(NOW + HOUR / 2) == []
    (told,) = deadlines.check_deadlines(NOW + HOUR)
    assert told.startswith("gn099 stands in for gn042 since 2025-01-15 03:00 UTC, and incident #")
    assert "`kintsugi spare return gn099`" in told
    assert deadlines.check_deadlines(NOW + 2 * HOUR) == []
    assert deadlines.check_deadlines(NOW + HOUR + DAY) == [told]
    assert incident.timeline.filter(kind="spare_late").count() == 2
    assert Notification.objects.filter(reason="spare_late").exists()
    spare.refresh_from_db()
    assert spare.state == Spare.State.SERVING


def test_a_spare_that_went_back_is_asked_about_no_more() -> None:
    incident, spare = lent()
    closed(incident)
    spares.begin_leaving(spare, NOW)
    assert len(deadlines.check_deadlines(NOW + HOUR)) == 1
    spares.is_back(spare, NOW)
    assert deadlines.check_deadlines(NOW + 3 * DAY) == []


def test_a_vendor_case_that_is_closed_asks_although_the_incident_is_open() -> None:
    incident, _ = lent()
    opened = cases.open_case(incident.pk, actor="ada", now=NOW)
    assert isinstance(opened, Opened)
    assert deadlines.check_deadlines(NOW + HOUR) == []
    cases.move(opened.case_id, Move.CLOSE, actor="ada", note="Out of warranty.", now=NOW)
    (told,) = deadlines.check_deadlines(NOW + HOUR)
    assert "and its vendor case is closed" in told
    incident.refresh_from_db()
    assert incident.needs_human == "Give gn099 back once gn042 serves: kintsugi spare return."
