"""A detector that gives no usable answer is one incident, on however many machines."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from incidents import services
from incidents.checks.blind_detectors import GATHERED
from incidents.models import Fault, Incident
from tests.builders import NOW, a_clear, a_node, an_event

pytestmark = pytest.mark.django_db
AFTER = GATHERED + timedelta(seconds=1)
NAMES = [f"gn{number:03}" for number in range(1, 8)]


@pytest.fixture(autouse=True)
def nodes() -> None:
    for name in NAMES:
        a_node(name)


def silence(names: list[str], *, at: datetime = NOW, detector: str = "dcgm") -> None:
    events = [
        an_event(
            "detector.silent", f"node/{n}", at=at, qualifier=detector, excerpt=f"{n}: no exporter"
        )
        for n in names
    ]
    services.ingest(events, now=at)


def answer(names: list[str], *, at: datetime, detector: str = "dcgm") -> None:
    services.ingest(
        [a_clear("detector.silent", f"node/{n}", at=at, qualifier=detector) for n in names], now=at
    )


def sweep(at: datetime) -> None:
    services.ingest(services.evaluate_blindness(at), now=at)


def test_one_detector_silent_on_many_nodes_is_one_incident() -> None:
    silence(NAMES)
    sweep(NOW + AFTER)
    incident = Incident.objects.get()
    assert (incident.fault_type, incident.root_resource, incident.node) == (
        "detector.blind",
        "site/dcgm",
        None,
    )
    excerpt = Fault.objects.get(fault_type="detector.blind").evidence.get().excerpt
    assert "on 7 of 7 machines (gn001, gn002, gn003, gn004, gn005 ...)" in excerpt
    assert "no exporter" in excerpt


def test_it_waits_until_all_machines_have_been_asked() -> None:
    silence(NAMES[:1])
    sweep(NOW + GATHERED - timedelta(seconds=1))
    assert not Incident.objects.exists()


def test_two_detectors_are_two_incidents() -> None:
    silence(NAMES[:2])
    silence(NAMES[:1], detector="bmc")
    sweep(NOW + AFTER)
    assert set(Incident.objects.values_list("root_resource", flat=True)) == {
        "site/dcgm",
        "site/bmc",
    }


def test_it_is_told_once_while_it_lasts() -> None:
    silence(NAMES[:2])
    sweep(NOW + AFTER)
    silence(NAMES[2:], at=NOW + 2 * GATHERED)
    sweep(NOW + 3 * GATHERED)
    assert Fault.objects.get(fault_type="detector.blind").count == 1


def test_it_ends_when_the_last_machine_answers() -> None:
    silence(NAMES[:2])
    sweep(NOW + AFTER)
    answer(NAMES[:1], at=NOW + 2 * GATHERED)
    sweep(NOW + 2 * GATHERED)
    assert Fault.objects.get(fault_type="detector.blind").is_active
    answer(NAMES[1:2], at=NOW + 3 * GATHERED)
    sweep(NOW + 3 * GATHERED)
    assert not Fault.objects.get(fault_type="detector.blind").is_active
    assert Incident.objects.get().state == "monitoring"
