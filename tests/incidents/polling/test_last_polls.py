"""When polls last saw what stands, and that nobody declares that a false alarm meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services
from incidents.models import Fault, Incident
from incidents.vocabulary.changes import Acted, Refused
from incidents.vocabulary.lifecycle import State, Trigger
from tests.builders import GPU, NOW, OTHER_GPU, a_clear, a_node, an_event

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def poll(minute: int, resource: str = GPU) -> None:
    at = NOW + minute * MINUTE
    services.ingest([an_event("gpu.lost", resource, at=at, source="poll")], now=at)


def declare(at: int) -> Acted | Refused:
    incident = Incident.objects.get()
    return services.act(
        incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="ada", note="a drill", now=NOW + at * MINUTE
    )


def test_the_last_poll_of_each_fault_is_known_and_lines_and_reports_are_none() -> None:
    a_node()
    services.ingest([an_event()], now=NOW)
    for minute in (1, 2, 9):
        poll(minute)
    services.ingest(
        [an_event("gpu.lost", at=NOW + 11 * MINUTE)], now=NOW + 11 * MINUTE
    )  # a line of the same fault
    faults = {fault.fault_type: fault.pk for fault in Fault.objects.all()}
    assert services.get_last_polls(list(faults.values())) == {faults["gpu.lost"]: NOW + 9 * MINUTE}
    assert services.get_last_polls([]) == {}


def test_a_false_positive_is_refused_while_its_root_is_polled_as_active() -> None:
    a_node()
    poll(1)
    poll(7)
    refused = declare(8)
    assert isinstance(refused, Refused)
    assert (
        f"gpu.lost on {GPU} was last polled as active at 2025-01-15 03:07:00 UTC" in refused.reason
    )
    assert "kintsugi silence add --shelf" in refused.reason
    assert Incident.objects.get().state == State.OPEN


def test_a_member_that_is_polled_as_active_stays_open_when_the_rest_is_a_false_positive() -> None:
    a_node()
    services.ingest([an_event()], now=NOW)
    poll(1, OTHER_GPU)
    outcome = declare(8)
    assert isinstance(outcome, Acted)
    left = Incident.objects.open().get()
    assert (left.fault_type, left.root_resource) == ("gpu.lost", OTHER_GPU)
    assert f"incident #{left.pk} now" in outcome.text


def test_a_false_positive_is_taken_when_polls_see_nothing_any_more() -> None:
    a_node()
    services.ingest([an_event()], now=NOW)
    poll(1)
    services.ingest([a_clear("gpu.lost", GPU, at=NOW + 2 * MINUTE)], now=NOW + 2 * MINUTE)
    assert declare(3) == Acted(State.FALSE_POSITIVE)


def test_a_false_positive_of_lines_alone_is_taken() -> None:
    a_node()
    services.ingest([an_event()], now=NOW)
    assert declare(1) == Acted(State.FALSE_POSITIVE)
