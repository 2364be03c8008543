"""The contract of detectors and of the transports through which alone they reach the world.

Never does I/O itself. Python 3.9, standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Optional, Protocol, Union

from detectors import resources
from detectors.expected import Expected
from detectors.faults import Observation, Word
from detectors.provenance import Forger, Provenance, Transport


class DetectorError(Exception):
    """A poll that could not be made: says what was tried, on which target, and what came back."""


class Unreachable(DetectorError):
    """The target itself does not answer, or refuses us: says where and how it was asked."""


class NotConfigured(DetectorError):
    """The site has given no way to look: nothing is wrong with the target, and nothing is known of
    it."""


SNMP_PORT = 161


class TargetKind(Word):
    """What is looked at. A site is what speaks for many machines: Slurm's controller, a
    Prometheus."""

    NODE = "node"
    SWITCH = "switch"
    SITE = "site"


@dataclass(frozen=True)
class Target:
    """One machine to look at. `name` is its short host; `address` and `port` are where it answers
    SSH.

    `snmp_port`: where its agent answers, on the same address.
    """

    name: str
    address: str
    port: int = 22
    user: str = ""
    kind: TargetKind = TargetKind.NODE
    expected: Expected = field(default_factory=Expected)
    snmp_port: int = SNMP_PORT

    @property
    def resource(self) -> str:
        """Its path, such as `node/gn001`, `switch/leaf-03`, `site/slurm`."""
        return f"{self.kind}/{resources.short_host(self.name)}"


@dataclass(frozen=True)
class Command:
    """One program to run on a target; `name` (letters, digits, - . _) is its key among a reading's
    outputs.

    `as_root` asks for `sudo -n` where we are not root; `kintsugi inventory sudoers` writes the
    lines that allow it.
    """

    name: str
    argv: tuple[str, ...]
    timeout: timedelta = timedelta(seconds=20)
    as_root: bool = False


@dataclass(frozen=True)
class Output:
    """What a command left: exit status (None when it was cut off by its time limit), bytes, seconds
    taken.

    An HTTP answer is one too: status 0 for 2xx, else the HTTP status; stdout is the body, stderr
    the reason.
    """

    status: Optional[int]
    stdout: bytes
    stderr: bytes
    took: timedelta

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def is_missing(self) -> bool:
        """The program is not installed there: status 127 of every shell, or sudo's own words."""
        return self.status == 127 or (self.status == 1 and b"command not found" in self.stderr)

    @property
    def complaint(self) -> str:
        """What it said, on one line of at most 200 characters, for people."""
        words = (
            (self.stderr.strip() or self.stdout.strip())
            .decode("utf-8", "replace")
            .replace("\0", " ")
        )
        shown = " ".join(words.split())[:200] or "no output"
        return (
            f"no answer within its time limit: {shown}"
            if self.status is None
            else f"status {self.status}: {shown}"
        )


class Shell(Protocol):
    """SSH, local or replay. Raises Unreachable when the target does not answer; never a shell
    string."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output: ...

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        """All of them in one go, one after the other, each under its own limit, under a lock of
        that name.

        Raises Unreachable, and DetectorError when the round before still runs there.
        """
        ...


class OneByOne:
    """`run_all` for a shell that has nothing to gain from bundling, such as one that plays
    captures."""

    def run(self, target: Target, argv: tuple[str, ...], timeout: timedelta) -> Output:
        raise NotImplementedError

    def run_all(self, target: Target, name: str, commands: Sequence[Command]) -> dict[str, Output]:
        return {
            command.name: self.run(target, command.argv, command.timeout) for command in commands
        }


SnmpValue = Union[int, bytes, str, None]
"""Integers and counters, octet strings, OIDs (`str`, dotted); None where the agent has no such
object."""


class Snmp(Protocol):
    """SSH's twin for switches. OIDs are dotted without a leading dot. Raises Unreachable when none
    answers."""

    def get(self, target: Target, oids: Sequence[str]) -> dict[str, SnmpValue]: ...

    def walk(self, target: Target, columns: Sequence[str]) -> dict[str, SnmpValue]:
        """Every object below each of the columns (or subtrees), bounded in rows and time."""
        ...


class Http(Protocol):
    """GET alone. Raises Unreachable when nothing answers; an HTTP error is an Output with its
    status."""

    def get(self, target: Target, url: str, timeout: timedelta) -> Output: ...


class _NoSnmp:
    def get(self, target: Target, oids: Sequence[str]) -> dict[str, SnmpValue]:
        raise NotConfigured(f"{target.name}: no SNMP credentials are configured")

    def walk(self, target: Target, columns: Sequence[str]) -> dict[str, SnmpValue]:
        raise NotConfigured(f"{target.name}: no SNMP credentials are configured")


class _NoHttp:
    def get(self, target: Target, url: str, timeout: timedelta) -> Output:
        raise NotConfigured(f"{url}: no HTTP access is configured")


@dataclass(frozen=True)
class Transports:
    """One door to the world per medium."""

    shell: Shell
    snmp: Snmp = field(default_factory=_NoSnmp)
    http: Http = field(default_factory=_NoHttp)


@dataclass(frozen=True)
class Reading:
    """Raw outputs of one poll, by command name, and SNMP values by OID, with the target and our
    time."""

    detector: str
    target: Target
    taken_at: datetime
    outputs: Mapping[str, Output] = field(default_factory=dict)
    values: Mapping[str, SnmpValue] = field(default_factory=dict)

    def saw(self, metric: str, value: Any, resource: str = "", **attributes: str) -> Observation:
        """An observation of this reading; without a resource it is the target's own."""
        place = resources.printable(resource) if resource else self.target.resource
        told = {name: resources.printable(text) for name, text in attributes.items()}
        if isinstance(value, str):
            value = resources.printable(value)
        return Observation(place, metric, value, self.taken_at, told)

    def answered(self) -> Observation:
        """The detector got what it needs: clears its `detector.silent`."""
        return self.saw("detector.answered", True, detector=self.detector)

    def silent(self, text: str) -> Observation:
        """Nothing, or something unreadable, came back: never the same as healthy. `text` says what,
        for people."""
        return self.saw("detector.answered", False, detector=self.detector, text=text)


@dataclass(frozen=True)
class Sample:
    """A value that the round before saw, and when."""

    value: Any
    at: datetime


Samples = Mapping[tuple[str, str], Sample]
"""By (resource, metric): what a detector `keeps` of its last round. Empty at first sight."""


class Detector(Protocol):
    """`collect` does all of the I/O and none of the meaning; `parse` the reverse, total on any
    bytes.

    `compare` adds what only two rounds together show, such as rates; pure too. Counters whose rise
    alone matters need none: their rule says `rises`. Samples of `keeps` survive restarts. `sniff`
    names the output that a file is of, for `python -m detectors parse`. `every` is the usual pace;
    a site may slow it down. `for_the_record`: metrics that no rule mentions and that the inventory,
    pages or `compare` read instead; a metric of no use to anybody is not observed. `families`: of
    which metrics it speaks, by the word before the dot, besides those of its own name. `transport`:
    by which way it looks; `forger`: who could make it see what is not so.
    """

    name: ClassVar[str]
    kind: ClassVar[TargetKind]
    every: ClassVar[timedelta]
    keeps: ClassVar[frozenset[str]]
    for_the_record: ClassVar[frozenset[str]]
    families: ClassVar[frozenset[str]]
    transport: ClassVar[Transport]
    forger: ClassVar[Forger]

    def wants(self, target: Target) -> bool:
        """Whether the target has what this detector looks at, as far as the inventory knows."""
        ...

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading: ...

    def parse(self, reading: Reading) -> Iterator[Observation]: ...

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]: ...

    def sniff(self, text: bytes) -> str: ...


class NothingToCompare:
    """What most detectors inherit: each reading tells by itself, every target of the kind is
    wanted."""

    keeps: ClassVar[frozenset[str]] = frozenset()
    for_the_record: ClassVar[frozenset[str]] = frozenset()
    families: ClassVar[frozenset[str]] = frozenset()
    transport: ClassVar[Transport] = Transport.SSH
    forger: ClassVar[Forger] = Forger.ROOT

    def wants(self, target: Target) -> bool:
        return True

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        return iter(())


def get_provenance(detector: Detector, target: Target) -> Provenance:
    """Of what the detector sees of the target by itself."""
    proof = "its SSH host key" if detector.transport is Transport.SSH else ""
    return Provenance(target.name, detector.transport, proof, forger=detector.forger)
