"""One odd value among what a device answers costs what hangs on it, and no more."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors import registry
from detectors.catalog import catalog
from detectors.detector import DetectorError, Target, TargetKind, Transports
from detectors.evaluation import judge
from detectors.evaluation.judge import Memory
from detectors.expected import Expected, ExpectedNic, ExpectedPort
from detectors.faults import Observation
from fixtures.cluster.config_faults import DECLARED
from fixtures.cluster.http import PROMETHEUS_URL, dcgm_url
from fixtures.cluster.transports import simulated_transports
from fixtures.cluster.world import SimulatedWorld
from tests.detectors.changed_answers import ChangedAnswers

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)


def _build_expected(world: SimulatedWorld, kind: TargetKind) -> Expected:
    if kind is TargetKind.SITE:
        return Expected(urls={"prometheus": PROMETHEUS_URL})
    if kind is TargetKind.SWITCH:
        ports = tuple(
            ExpectedPort(port, 400, 9100, "rs") for port in world.switches["leaf-01"].ports
        )
        return Expected(role="leaf", ports=ports, settings=DECLARED)
    node = world.node("gn001")
    nics = tuple(
        ExpectedNic(nic.device, nic.netdev, nic.pci, "fabric", nic.rail, 400, 9000)
        for nic in node.nics
    )
    return Expected(
        role="compute",
        gpus=tuple((str(gpu.index), gpu.pci) for gpu in node.gpus),
        nics=nics,
        mounts=("/lustre",),
        services=("slurmd.service",),
        urls={"dcgm": dcgm_url("gn001")},
    )


@cache
def _build_site() -> tuple[Transports, dict[TargetKind, Target]]:
    world = SimulatedWorld.sakuraone(clock=lambda: NOW)
    names = {TargetKind.NODE: "gn001", TargetKind.SWITCH: "leaf-01", TargetKind.SITE: "slurm"}
    targets = {
        kind: Target(name, "127.0.0.1", kind=kind, expected=_build_expected(world, kind))
        for kind, name in names.items()
    }
    return simulated_transports(world), targets


@pytest.mark.parametrize("detector", registry.DETECTORS, ids=lambda detector: detector.name)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_whatever_a_device_answers_is_parsed_judged_and_remembered(
    detector: Any, seed: int
) -> None:
    """Two rounds, the second beside what is kept of the first. A detector that breaks loses all that
    it was told (polling.observe_one), one that breaks while it compares the whole batch."""
    whole, targets = _build_site()
    transports = ChangedAnswers(whole, random.Random(seed)).transports
    memory = Memory()
    for minute in range(2):
        now = NOW + timedelta(minutes=minute)
        try:
            reading = detector.collect(targets[detector.kind], transports, now)
            observations = list(detector.parse(reading))
        except DetectorError:
            continue
        _check_can_be_stored(observations)
        result = judge.judge_round(
            detector, observations, memory, active=(), catalog=catalog.load()
        )
        kept = json.dumps(judge.to_json(result.memory, now), allow_nan=False)
        memory = judge.from_json(json.loads(kept), UTC, now)
        excerpts = [(event.excerpt, event.qualifier, event.attributes) for event in result.events]
        json.dumps(excerpts, allow_nan=False)


def _check_can_be_stored(observations: Sequence[Observation]) -> None:
    """PostgreSQL takes neither a number that is none nor a null character."""
    json.dumps([seen.value for seen in observations], allow_nan=False)
    for seen in observations:
        texts = [seen.resource, *seen.attributes, *seen.attributes.values()]
        texts += [seen.value] if isinstance(seen.value, str) else []
        assert not any("\0" in text for text in texts)
