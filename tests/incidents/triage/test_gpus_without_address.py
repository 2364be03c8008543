"""Some of the driver's lines name no GPU: what they tell belongs to the GPU that another line of
that moment names."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations

import pytest

from incidents import services
from incidents.models import Incident
from tests.builders import NOW, a_node, an_event

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
LOST = "node/gn042/gpu/0000:9b:00.0"
UNNAMED = "node/gn042/gpu/-"
LINES = (("gpu.xid.79", LOST), ("gpu.driver.lost", UNNAMED), ("gpu.driver.init_failed", UNNAMED))


@pytest.fixture(autouse=True)
def node() -> None:
    a_node()


@pytest.mark.parametrize(
    "lines", list(permutations(LINES)), ids=lambda lines: "-".join(name for name, _ in lines)
)
def test_gpu_lost_in_three_lines_is_one_incident_with_its_address_in_any_order(
    lines: tuple[tuple[str, str], ...],
) -> None:
    for number, (fault_type, resource) in enumerate(lines):
        at = NOW + number * SECOND
        services.ingest([an_event(fault_type, resource, at=at)], now=at)
    incident = Incident.objects.exclude(state="duplicate").get()
    assert (incident.root_resource, incident.fault_type) == (LOST, "gpu.xid.79")
    assert incident.members.count() == len(LINES)


def test_gpu_that_a_poll_finds_lost_gives_its_address_to_lines_without_one() -> None:
    services.ingest([an_event("gpu.driver.lost", UNNAMED)], now=NOW)
    services.ingest([an_event("gpu.lost", LOST, at=NOW + 40 * SECOND)], now=NOW + 40 * SECOND)
    assert Incident.objects.get().root_resource == LOST


def test_line_without_address_hours_after_its_gpu_was_lost_is_of_its_incident_still() -> None:
    services.ingest([an_event("gpu.xid.79", LOST)], now=NOW)
    late = NOW + timedelta(hours=3)
    services.ingest([an_event("gpu.driver.init_failed", UNNAMED, at=late)], now=late)
    assert Incident.objects.get().root_resource == LOST


def test_line_that_names_no_gpu_opens_an_incident_when_no_other_line_comes() -> None:
    services.ingest([an_event("gpu.driver.lost", UNNAMED)], now=NOW)
    incident = Incident.objects.get()
    assert (incident.fault_type, incident.severity, incident.action) == (
        "gpu.driver.lost",
        "critical",
        "reboot",
    )


def test_line_without_address_is_not_of_a_gpu_on_another_node() -> None:
    a_node("gn043")
    services.ingest([an_event("gpu.xid.79", LOST)], now=NOW)
    services.ingest(
        [an_event("gpu.driver.lost", "node/gn043/gpu/-", at=NOW + SECOND)], now=NOW + SECOND
    )
    assert Incident.objects.count() == 2
