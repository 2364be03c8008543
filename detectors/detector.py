"""The contract of detectors and of the transports through which alone they reach the world.

Never does I/O itself. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Protocol

from detectors.faults import Observation


class DetectorError(Exception):
    """A poll that could not be made: says what was tried, on which target, and what came back."""


@dataclass(frozen=True)
class Target:
    """One machine to look at. `name` is its short host; `address` and `port` are where it answers SSH.

    `expected` holds what the inventory says should be there, such as {"gpus": (("0", "0000:19:00.0"), ...)}.
    """

    name: str
    address: str
    port: int = 22
    user: str = ""
    expected: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """What a command left: exit status (None when it was cut off by its time limit), bytes, seconds taken."""

    status: int | None
    stdout: bytes
    stderr: bytes
    took: timedelta


class Shell(Protocol):
    """SSH, local or replay. Raises DetectorError when the target cannot be reached; never a shell string."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output: ...


@dataclass(frozen=True)
class Transports:
    """One door to the world per medium; more media join as detectors need them."""

    shell: Shell


@dataclass(frozen=True)
class Reading:
    """Raw outputs of one poll, by command name, with the target and our time."""

    detector: str
    target: Target
    taken_at: datetime
    outputs: dict[str, Output]


class Detector(Protocol):
    """`collect` does all of the I/O and none of the meaning; `parse` the reverse, total on any bytes."""

    name: ClassVar[str]
    every: ClassVar[timedelta]

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading: ...

    def parse(self, reading: Reading) -> Iterator[Observation]: ...
