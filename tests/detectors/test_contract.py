"""What every detector in the registry promises, whatever it watches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors import registry
from detectors.detector import OneByOne, Output, Reading, SnmpValue, Target, Transports, Unreachable
from detectors.expected import Expected

NOW = datetime(2025, 1, 15, 3, 0, tzinfo=UTC)
URLS = {"dcgm": "http://gn001:9400/metrics", "prometheus": "http://gn001:9090"}
GPUS = (("0", "0000:19:00.0"), ("1", "0000:3b:00.0"))
TARGET = Target("gn001", "127.0.0.1", expected=Expected(gpus=GPUS, urls=URLS))
each_detector = pytest.mark.parametrize(
    "detector", registry.DETECTORS, ids=lambda detector: detector.name
)


class SameForAll(OneByOne):
    """A Shell that gives one output to every command, and remembers the commands."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.commands: list[tuple[str, ...]] = []

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        self.commands.append(argv)
        return self.output


class SameObject:
    """An agent whose every object is what a command would have printed; none for a command that
    failed."""

    def __init__(self, output: Output) -> None:
        self.value = output.stdout if output.status == 0 else None

    def get(self, target: Target, oids: Sequence[str]) -> dict[str, SnmpValue]:
        return dict.fromkeys(oids, self.value)

    def walk(self, target: Target, columns: Sequence[str]) -> dict[str, SnmpValue]:
        return (
            {}
            if self.value is None
            else {f"{column}.{row}": self.value for column in columns for row in (1, 2)}
        )


class SamePage:
    """A server whose every answer is what a command would have printed."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def get(self, target: Target, url: str, timeout: timedelta) -> Output:
        return self.output


class NoRoute(OneByOne):
    def get(self, target: Target, *_: object) -> Any:
        raise Unreachable(f"{target.name}: no route to host")

    walk = get

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        raise Unreachable(f"{argv[0]} on {target.name}: no route to host")


def _reading(detector: Any, output: Output) -> Reading:
    via = Transports(shell=SameForAll(output), snmp=SameObject(output), http=SamePage(output))
    reading: Reading = detector.collect(replace(TARGET, kind=detector.kind), via, NOW)
    return reading


@each_detector
@given(
    stdout=st.binary(max_size=400),
    stderr=st.binary(max_size=200),
    status=st.sampled_from([None, 0, 1, 255]),
)
def test_parse_is_total_on_any_bytes(
    detector: Any, stdout: bytes, stderr: bytes, status: int | None
) -> None:
    reading = _reading(detector, Output(status, stdout, stderr, timedelta(0)))
    assert all(
        o.observed_at == NOW and o.resource.startswith(f"{detector.kind}/gn001")
        for o in detector.parse(reading)
    )


@each_detector
@pytest.mark.parametrize("status", [None, 1, 127])
def test_no_output_is_never_healthy(detector: Any, status: int | None) -> None:
    reading = _reading(detector, Output(status, b"", b"", timedelta(0)))
    assert any(o.value is False for o in detector.parse(reading))


@each_detector
def test_a_target_that_cannot_be_reached_is_an_error_not_a_reading(detector: Any) -> None:
    via = Transports(shell=NoRoute(), snmp=NoRoute(), http=NoRoute())
    with pytest.raises(Unreachable, match="gn001"):
        detector.collect(replace(TARGET, kind=detector.kind), via, NOW)


@each_detector
def test_parse_gives_the_same_twice(detector: Any) -> None:
    reading = _reading(detector, Output(0, b"", b"", timedelta(0)))
    assert list(detector.parse(reading)) == list(detector.parse(reading))
