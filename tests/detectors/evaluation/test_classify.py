"""What polls see, judged: raised, cleared, or nothing new."""

from datetime import UTC, datetime

import pytest

from detectors.catalog.catalog import load
from detectors.evaluation import classify as classifying
from detectors.faults import Action, ClearRule, EventKind, Observation, Severity, fingerprint

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
GPU = "node/gn042/gpu/0000:9b:00.0"
NODE = "node/gn042"
LOST = frozenset({fingerprint(GPU, "gpu.lost")})
NOTHING: frozenset[str] = frozenset()
METRICS = sorted(load().rules)


def classify(observation, active, catalog):
    """The one event of an observation that means at most one."""
    events = list(classifying.classify(observation, active, catalog))
    assert len(events) <= 1
    return events[0] if events else None


def seen(metric, value, *, resource=NODE, **attributes):
    return Observation(resource, metric, value, NOW, attributes)


def test_a_gpu_is_lost_when_a_poll_does_not_see_it():
    event = classify(seen("gpu.present", False, resource=GPU, text="GPU is lost"), NOTHING, load())
    assert (event.fault_type, event.event, event.resource) == ("gpu.lost", EventKind.RAISED, GPU)
    assert (event.severity, event.action) == (Severity.CRITICAL, Action.REBOOT)
    assert "GPU is lost" in event.excerpt


def test_a_standing_fault_is_raised_again_when_the_poll_still_sees_it():
    assert (
        classify(seen("gpu.present", False, resource=GPU), LOST, load()).event is EventKind.RAISED
    )


def test_a_lost_gpu_is_cleared_when_a_poll_sees_it_again():
    event = classify(seen("gpu.present", True, resource=GPU), LOST, load())
    assert (event.fault_type, event.event) == ("gpu.lost", EventKind.CLEARED)


def test_nothing_is_said_when_all_is_well_and_nothing_stands():
    assert classify(seen("gpu.present", True, resource=GPU), NOTHING, load()) is None


def test_another_gpus_fault_does_not_count_as_standing():
    other = frozenset({fingerprint("node/gn042/gpu/0000:19:00.0", "gpu.lost")})
    assert classify(seen("gpu.present", True, resource=GPU), other, load()) is None


@pytest.mark.parametrize(
    ("count", "kind"), [(7, EventKind.RAISED), (9, EventKind.RAISED), (8, None)]
)
def test_a_count_is_compared_with_the_inventory_on_both_sides(count, kind):
    event = classify(seen("gpu.count", count, expected="8"), NOTHING, load())
    assert (event and event.event) == kind


def test_a_count_that_is_right_again_clears_the_mismatch():
    standing = frozenset({fingerprint(NODE, "gpu.count_mismatch")})
    assert classify(seen("gpu.count", 8, expected="8"), standing, load()).event is EventKind.CLEARED


def test_a_count_without_an_expectation_says_nothing():
    standing = frozenset({fingerprint(NODE, "gpu.count_mismatch")})
    for active in (NOTHING, standing):
        assert classify(seen("gpu.count", 7), active, load()) is None


@pytest.mark.parametrize("metric", METRICS)
def test_a_value_that_cannot_be_read_neither_raises_nor_clears(metric):
    standing = frozenset(fingerprint(NODE, rule.type) for rule in load().rules[metric])
    for active in (NOTHING, standing):
        assert list(classifying.classify(seen(metric, None, expected="8"), active, load())) == []


def test_a_metric_that_is_only_recorded_says_nothing():
    assert classify(seen("gpu.temperature_celsius", 99), NOTHING, load()) is None


def test_a_type_that_only_a_restart_heals_is_not_cleared_by_a_poll():
    for metric, rules in load().rules.items():
        for rule in rules:
            well = classifying.find_cleared(
                seen(metric, 0), rule, {fingerprint(NODE, rule.type)}, load()
            )
            assert (well is not None) == (
                load()[rule.type].clears in (ClearRule.BY_POLL, ClearRule.BY_EVENT)
            )


def test_two_silent_detectors_of_one_node_are_two_faults():
    events = [
        classify(seen("detector.answered", False, detector=name), NOTHING, load())
        for name in ("gpu", "nic")
    ]
    assert (
        len({event.qualifier for event in events}) == len({event.event_id for event in events}) == 2
    )


def test_the_same_look_gives_the_same_event_twice():
    first, second = (
        classify(seen("gpu.present", False, resource=GPU), NOTHING, load()) for _ in range(2)
    )
    assert first == second
