"""One round of detectors: whatever breaks becomes an observation."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from detectors.detector import (
    NothingToCompare,
    OneByOne,
    Output,
    Reading,
    Target,
    TargetKind,
    Transports,
    Unreachable,
)
from detectors.faults import Observation
from detectors.polling import observe

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
TARGET = Target("gn001", "127.0.0.1")


class NoShell(OneByOne):
    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        raise Unreachable("gn001: connection refused")


class Well(NothingToCompare):
    name: ClassVar[str] = "well"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(seconds=60)

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        return Reading(self.name, target, now, {})

    def parse(self, reading: Reading) -> Iterator[Observation]:
        yield Observation("node/gn001", "well.is", True, reading.taken_at)

    def sniff(self, text: bytes) -> str:
        return "well"


class Breaks(Well):
    name: ClassVar[str] = "breaks"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        raise IndexError("list index out of range")


class AsksTheShell(Well):
    name: ClassVar[str] = "asks"

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        via.shell.run(target, ("true",), timedelta(seconds=1))
        return Reading(self.name, target, now, {})


def _metrics(*detectors: Well) -> list[tuple[str, object]]:
    return [(o.metric, o.value) for o in observe(TARGET, detectors, Transports(NoShell()), NOW)]


def test_a_target_that_answers_is_reachable() -> None:
    assert _metrics(Well()) == [("well.is", True), ("target.reachable", True)]


def test_a_detector_that_breaks_is_a_fault_of_its_own_and_the_others_go_on() -> None:
    assert _metrics(Breaks(), Well()) == [
        ("detector.answered", False),
        ("well.is", True),
        ("target.reachable", True),
    ]


def test_a_target_that_cannot_be_reached_says_so_with_the_reason() -> None:
    found = observe(TARGET, (AsksTheShell(), Well()), Transports(NoShell()), NOW)
    assert [(o.metric, o.value, o.attributes["text"]) for o in found] == [
        ("target.reachable", False, "gn001: connection refused")
    ]
