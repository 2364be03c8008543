"""Rows that are valid by default; a test overrides what it is about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from detectors.faults import Action, Component, Severity
from incidents.models import Incident, TimelineEntry
from incidents.state import outbox
from incidents.vocabulary.lifecycle import State

T0 = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)


def an_incident(**changes: Any) -> Incident:
    """An open GPU incident on gn042, saved."""
    values: dict[str, Any] = {
        "title": "GPU has fallen off the bus",
        "state": State.OPEN,
        "component": Component.GPU,
        "fault_type": "gpu.xid.79",
        "severity": Severity.CRITICAL,
        "action": Action.REBOOT,
        "root_resource": "node/gn042/gpu/0000:9b:00.0",
        "owner": "node/gn042",
        "has_platform_signal": True,
        "onset_at": T0,
        "opened_at": T0,
        "recorded_at": T0,
        "updated_at": T0,
    }
    return Incident.objects.create(**{**values, **changes})


def an_entry(
    incident: Incident, *, kind: str = "step", text: str = "Drained gn042.", at: datetime = T0
) -> TimelineEntry:
    return TimelineEntry.objects.create(
        incident=incident, kind=kind, actor="kintsugi", text=text, occurred_at=at, recorded_at=at
    )


def told(
    incident: Incident, *, kind: str = "step", text: str = "Drained gn042.", at: datetime = T0
) -> TimelineEntry:
    """A timeline entry together with what it owes to people."""
    entry = an_entry(incident, kind=kind, text=text, at=at)
    outbox.enqueue([entry], now=at)
    return entry
