"""From an observation of a poll to the fault event it means: a table keyed by metric, with hysteresis.

Pure: no clock, no I/O. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Optional

from detectors.catalog import Catalog
from detectors.faults import EventKind, FaultEvent, Observation, event_id, fingerprint


@dataclass(frozen=True)
class Rule:
    """`is_faulty(value, attributes)` raises while no fault stands; `is_well` clears one that does.

    Between the two nothing changes. A value that is neither (unreadable) says nothing: the detector reports
    that by `detector.answered`.
    """

    fault_type: str
    is_faulty: Callable[[Any, dict[str, str]], bool]
    is_well: Callable[[Any, dict[str, str]], bool]


def _is_false(value: Any, _attributes: dict[str, str]) -> bool:
    return value is False


def _is_true(value: Any, _attributes: dict[str, str]) -> bool:
    return value is True


def _expected(attributes: dict[str, str]) -> Optional[int]:
    text = attributes.get("expected", "")
    return int(text) if text.isdecimal() else None


def _differs(value: Any, attributes: dict[str, str]) -> bool:
    expected = _expected(attributes)
    return isinstance(value, int) and expected is not None and value != expected


def _agrees(value: Any, attributes: dict[str, str]) -> bool:
    return isinstance(value, int) and value == _expected(attributes)


RULES: dict[str, Rule] = {
    "gpu.present": Rule("gpu.lost", _is_false, _is_true),
    "gpu.count": Rule("gpu.count_mismatch", _differs, _agrees),
    "gpu.responsive": Rule("gpu.unresponsive", _is_false, _is_true),
    "detector.answered": Rule("detector.silent", _is_false, _is_true),
    "target.reachable": Rule("target.unreachable", _is_false, _is_true),
}


def fault_type_of(metric: str) -> Optional[str]:
    """The fault type that a metric can raise or clear; None for a metric that is only recorded."""
    rule = RULES.get(metric)
    return None if rule is None else rule.fault_type


def classify(observation: Observation, active: Container[str], catalog: Catalog) -> Optional[FaultEvent]:
    """The event that the observation means, or None when nothing changes.

    `active` holds the fingerprints of the faults that stand. A fault that stands is raised again by a faulty
    value, so that its last-seen time moves; one that does not stand is not cleared again.
    """
    rule = RULES.get(observation.metric)
    if rule is None:
        return None
    if rule.is_faulty(observation.value, observation.attributes):
        return _event(observation, rule.fault_type, EventKind.RAISED, catalog)
    stands = fingerprint(observation.resource, rule.fault_type, _qualifier(observation)) in active
    if stands and rule.is_well(observation.value, observation.attributes):
        return _event(observation, rule.fault_type, EventKind.CLEARED, catalog)
    return None


def _qualifier(observation: Observation) -> str:
    """Two silent detectors of one node are two faults."""
    return observation.attributes.get("detector", "")


def _event(observation: Observation, fault_type: str, kind: EventKind, catalog: Catalog) -> FaultEvent:
    row = catalog[fault_type]
    qualifier = _qualifier(observation)
    identity = (observation.resource, fault_type, qualifier, observation.observed_at.isoformat(), kind)
    return FaultEvent(
        event_id=event_id("poll", *identity),
        fault_type=fault_type,
        event=kind,
        resource=observation.resource,
        source="poll",
        occurred_at=observation.observed_at,
        observed_at=observation.observed_at,
        severity=row.severity,
        action=row.action,
        component=row.component,
        qualifier=qualifier,
        excerpt=_excerpt(observation),
        attributes=dict(observation.attributes),
    )


def _excerpt(observation: Observation) -> str:
    said = ", ".join(f"{name} {value}" for name, value in sorted(observation.attributes.items()))
    return f"{observation.metric} = {observation.value}" + (f" ({said})" if said else "")
