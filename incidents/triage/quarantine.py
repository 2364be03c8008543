"""Events and records that cannot be counted: kept whole, with what is wrong with them, for a
person."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from detectors.faults import FaultEvent, event_id, to_wire
from incidents.db import own_errors
from incidents.models import QuarantinedEvent
from incidents.triage.normalisation import clean, compute_key, make_storable
from incidents.vocabulary.changes import Change, ChangeKind

_log = logging.getLogger("kintsugi.ingest")


def put_event_aside(event: FaultEvent, error: Exception, now: datetime) -> Change:
    if isinstance(error, ValueError):  # what is wrong with the event, in words of our own
        text = str(error)
    else:
        _log.error("An event cannot be counted.", exc_info=error)
        text = own_errors.describe(error)
    return _put_aside(compute_key(event.event_id), make_storable(to_wire(event)), text, now)


def put_record_aside(wire: Mapping[str, Any], error: str, now: datetime) -> Change:
    """A record that is no event at all."""
    name = compute_key(str(wire.get("event_id") or event_id(repr(sorted(wire.items(), key=str)))))
    return _put_aside(name, make_storable(dict(wire)), error, now)


def _put_aside(name: str, wire: Any, error: str, now: datetime) -> Change:
    """Keeps the whole record. One that was put aside before is not told again."""
    is_new = QuarantinedEvent.objects.get_or_create(
        event_id=name, defaults={"wire": wire, "error": clean(error), "recorded_at": now}
    )[1]
    if not is_new:
        return Change(None, None, ChangeKind.IGNORED, f"put aside before: {error}")
    _log.error(
        "An event was put aside as %s: %s. The console shows it under quarantined events.",
        name,
        error,
    )
    return Change(None, None, ChangeKind.QUARANTINED, error)
