"""What the reset of a GPU does to the faults that stand on it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.catalog.catalog import load
from detectors.faults import Action, ClearRule, EventKind, FaultEvent, event_id
from incidents import services as incidents
from incidents.models import Fault, Node
from tests.builders import NOW

pytestmark = pytest.mark.django_db

GPU, OTHER = "node/gn042/gpu/0000:19:00.0", "node/gn042/gpu/0000:3b:00.0"


def a_type(action: Action) -> str:
    """A fault type that a boot ends, and for which the vendor asks this."""
    rows = [
        row
        for row in load().types.values()
        if row.clears is ClearRule.AFTER_REBOOT and row.action is action
    ]
    return min(row.id for row in rows if row.id.startswith("gpu."))


def stands(fault_type: str, resource: str) -> bool:
    return Fault.objects.get(fault_type=fault_type, resource=resource).is_active


def raised(fault_type: str, resource: str) -> None:
    row = load()[fault_type]
    event = FaultEvent(
        event_id=event_id(fault_type, resource, NOW),
        fault_type=fault_type,
        event=EventKind.RAISED,
        resource=resource,
        source="test",
        occurred_at=NOW,
        observed_at=NOW,
        severity=row.severity,
        action=row.action,
        component=row.component,
        code=row.code,
        excerpt=fault_type,
    )
    incidents.ingest([event], now=NOW)


@pytest.fixture(autouse=True)
def node() -> Node:
    return Node.objects.create(name="gn042", address="gn042")


def test_reset_ends_what_a_reset_heals_on_its_gpu_alone() -> None:
    fault_type = a_type(Action.RESET_GPU)
    for resource in (GPU, f"{GPU}/nvlink/3", OTHER):
        raised(fault_type, resource)
    incidents.record_gpu_reset(
        (GPU,), reset_at=NOW + timedelta(minutes=1), now=NOW + timedelta(minutes=2)
    )
    assert [stands(fault_type, resource) for resource in (GPU, f"{GPU}/nvlink/3", OTHER)] == [
        False,
        False,
        True,
    ]


def test_reset_does_not_end_what_needs_a_reboot() -> None:
    fault_type = a_type(Action.REBOOT)
    raised(fault_type, GPU)
    incidents.record_gpu_reset(
        (GPU,), reset_at=NOW + timedelta(minutes=1), now=NOW + timedelta(minutes=2)
    )
    assert stands(fault_type, GPU)


def test_reset_does_not_end_what_was_seen_after_it_had_begun() -> None:
    fault_type = a_type(Action.RESET_GPU)
    raised(fault_type, GPU)
    incidents.record_gpu_reset(
        (GPU,), reset_at=NOW - timedelta(minutes=1), now=NOW + timedelta(minutes=2)
    )
    assert stands(fault_type, GPU)
