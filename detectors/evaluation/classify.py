"""What one observation means by itself, without a memory of earlier rounds: levels and flags, at
once.

Runbooks and captures look this way; polls go through `detectors.evaluation.judge`. Pure. Python
3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from typing import Optional

from detectors.catalog.catalog import Catalog, FaultType
from detectors.catalog.rules import Opinion, ThresholdRule
from detectors.faults import ClearRule, EventKind, FaultEvent, Observation, event_id, fingerprint


def get_fault_types(metric: str, catalog: Catalog) -> tuple[str, ...]:
    """The fault types that a metric can raise or clear; none for a metric that is only recorded."""
    return tuple(dict.fromkeys(rule.type for rule in catalog.rules.get(metric, ())))


def classify(
    observation: Observation, active: Container[str], catalog: Catalog
) -> Iterator[FaultEvent]:
    """The events that the observation means. No debounce, and counters say nothing: there is
    nothing to compare with.

    `active` holds the fingerprints of the faults that stand. A fault that stands is raised again by
    a faulty value; one that does not stand is not cleared again.
    """
    for fault_type in get_fault_types(observation.metric, catalog):
        rules = [rule for rule in catalog.rules[observation.metric] if rule.type == fault_type]
        opinions = [rule.opinion(observation.value, observation.attributes) for rule in rules]
        faulty = [rule for rule, opinion in zip(rules, opinions) if opinion is Opinion.FAULTY]
        if faulty:
            yield build_event(observation, get_worst(faulty, catalog), EventKind.RAISED, catalog)
        elif all(opinion is Opinion.WELL for opinion in opinions):
            event = find_cleared(observation, rules[0], active, catalog)
            if event is not None:
                yield event


def find_cleared(
    observation: Observation, rule: ThresholdRule, active: Container[str], catalog: Catalog
) -> Optional[FaultEvent]:
    """The end of a fault that stands; None where none stands, or where no poll may end its type."""
    if (
        not active
    ):  # mostly nothing stands, and most values are well: no fingerprint is made for each
        return None
    if catalog[rule.type].clears not in (ClearRule.BY_POLL, ClearRule.BY_EVENT):
        return None
    stands = fingerprint(observation.resource, rule.type, get_qualifier(observation)) in active
    return build_event(observation, rule, EventKind.CLEARED, catalog) if stands else None


def get_worst(rules: Iterable[ThresholdRule], catalog: Catalog) -> ThresholdRule:
    """The rule that speaks: of the highest severity, its type's where it names none."""
    return max(rules, key=lambda rule: (rule.severity or catalog[rule.type].severity).rank)


def get_qualifier(observation: Observation) -> str:
    """What tells two faults of one type on one resource apart: the attribute `qualifier`, or the
    detector's name."""
    return observation.attributes.get("qualifier") or observation.attributes.get("detector", "")


def build_event(
    observation: Observation, rule: ThresholdRule, kind: EventKind, catalog: Catalog
) -> FaultEvent:
    fault_type = catalog[rule.type]
    severity, action = fault_type.severity, fault_type.action
    if kind is EventKind.RAISED:
        severity, action = rule.severity or severity, rule.action or action
    qualifier = get_qualifier(observation)
    event = _make_event(observation, kind, fault_type, qualifier)
    attributes = dict(observation.attributes)
    return replace(
        event,
        severity=severity,
        action=action,
        qualifier=qualifier,
        code=fault_type.code,
        excerpt=_format_excerpt(observation),
        attributes=attributes,
    )


def _make_event(
    observation: Observation, kind: EventKind, fault_type: FaultType, qualifier: str
) -> FaultEvent:
    """As the catalogue has its type, and no more."""
    resource, observed_at = observation.resource, observation.observed_at
    identity = (resource, fault_type.id, qualifier, observed_at.isoformat(), kind)
    number = event_id("poll", *identity)
    return fault_type.create_event(number, kind, resource, source="poll", at=observed_at)


def _format_excerpt(observation: Observation) -> str:
    reading = f"{observation.metric} = {observation.value}"
    attributes = sorted(observation.attributes.items())
    if not attributes:
        return reading
    details = ", ".join(f"{name} {value}" for name, value in attributes)
    return f"{reading} ({details})"
