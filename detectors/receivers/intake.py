"""From blocks of lines to folded facts: the receiver's hot path. Counts every line; keeps none that
is benign.

Never reads a socket, a clock or a disk. What one line means is the matcher's word alone: what is
remembered here of lines seen before (their shape: the line without its time stamps) only spares
saying it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

import numpy as np

from detectors.logs.header import Header, LineRepeat, parse_header, parse_stamp
from detectors.logs.matcher import compile_patterns
from detectors.logs.signatures import Fact
from detectors.logs.unread import UnreadLine, UnreadLines
from detectors.provenance import UNKNOWN, Provenance
from detectors.receivers.counters import Counters
from detectors.receivers.folding import Folded, Folder
from detectors.receivers.shapes import Shape, Shapes, StampedLine
from detectors.receivers.texts import Texts
from detectors.resources import short_host

# Blocks are looked at in parts of this size: at one fault in a thousand lines most parts hold none.
_PART = 16 * 1024
_DENSE = 4
_LF = ord("\n")
# In fewer bytes they are counted sooner one by one.
_LEAST_COUNTED_TOGETHER = 4096
_STAMPS = 4096
_KEYS = 50_000
_TAIL = 8 * 1024
_LAST_MESSAGE = b"ast message "
# What a sender's lines of different programs are given as their provenance; forgotten when there
# are more, since a program's name is anybody's choice.
_PROVENANCES = 1024
# Lines a second that are looked at for unread ones, at some 100 us each: a tenth of a core at
# most. Our choice; what is over it is counted.
_UNREAD_PER_SECOND = 1000


class Signatures(Protocol):
    """What `detectors.logs.signatures.Matcher` gives."""

    def is_hit(self, line: bytes) -> bool: ...

    def find_lines(self, block: bytes) -> list[bytes]: ...

    def facts(
        self,
        line: bytes,
        *,
        default_host: str,
        observed_at: datetime,
        zone: tzinfo,
        year: int | None = None,
        is_own_line: bool = False,
    ) -> list[Fact]: ...


class UnreadSource(Protocol):
    """What `detectors.logs.unread.UnreadReader` gives."""

    def find_lines(self, block: bytes) -> list[bytes]: ...

    def is_candidate(self, line: bytes) -> bool: ...

    def read(
        self,
        line: bytes,
        *,
        default_host: str,
        observed_at: datetime,
        zone: tzinfo,
        is_own_line: bool = False,
    ) -> UnreadLine | None: ...


@dataclass(frozen=True)
class Zones:
    """The zone of stamps that name none, by short host name; `*` for the rest."""

    by_host: Mapping[str, tzinfo] = field(default_factory=dict)

    def get_zone(self, host: str) -> tzinfo:
        return self.by_host.get(host) or self.by_host.get("*", UTC)

    @property
    def is_one(self) -> bool:
        return not self.by_host.keys() - {"*"}


@dataclass
class Sender:
    """One connection, or one address that sends datagrams. `host` is whose lines they are: of a
    relay those that do not say, of any other machine all.

    `tail` is the last that it sent, to know what `last message repeated` repeats.
    """

    host: str
    tail: bytes = b""
    provenance: Provenance = UNKNOWN
    _of_lines: dict[tuple[object, ...], Provenance] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        provenance = self.provenance
        # What a line meant is remembered by who sent it.
        self.key = "|".join(
            (self.host, provenance.sender, provenance.transport.value, provenance.authenticated_as)
        )

    def get_provenance(self, fact: Fact) -> Provenance:
        """Of a line that this sender brought."""
        words = (fact.program, fact.facility, fact.priority, fact.is_of_driver)
        known = self._of_lines.get(words)
        if known is None:
            if len(self._of_lines) >= _PROVENANCES:
                self._of_lines.clear()
            known = self._of_lines[words] = fact.provenance(self.provenance)
        return known


@dataclass
class _SeenKeys:
    """Source keys seen lately: one line that comes by syslog and by the journal counts once.
    Bounded: two halves."""

    _young: set[int] = field(default_factory=set)
    _old: set[int] = field(default_factory=set)

    def is_new(self, key: str) -> bool:
        mark = hash(key)
        if mark in self._young or mark in self._old:
            return False
        self._young.add(mark)
        if len(self._young) >= _KEYS:
            self._young, self._old = set(), self._young
        return True


class Intake:
    """One thread's intake: `take` blocks, then `folder.take` the facts, and `unread.take` the lines
    that nobody reads."""

    def __init__(
        self,
        matcher: Signatures,
        *,
        zones: Zones,
        counters: Counters,
        folder: Folder,
        unread_reader: UnreadSource | None = None,
    ) -> None:
        self._matcher = matcher
        self._unread_reader = unread_reader
        self.unread = UnreadLines()
        self._unread_left = float(_UNREAD_PER_SECOND)
        self._unread_at_s = 0.0
        self._zones = zones
        self._counters = counters
        self.folder = folder
        self._shapes = Shapes()
        self._texts = Texts()
        self._stamps: dict[tuple[bytes, bytes, tzinfo], datetime] = {}
        self._stamps_of: tuple[int, int] = (0, 0)
        self._seen = _SeenKeys()
        self._is_dense = False
        # An engine finds words in a third of the time that `in` takes.
        self._has_last_message = compile_patterns([(0, _LAST_MESSAGE)]).has_match

    def replace_matcher(self, matcher: Signatures, unread_reader: UnreadSource | None) -> None:
        """From now on; what lines meant by those of before is forgotten."""
        self._matcher, self._unread_reader = matcher, unread_reader
        self._shapes, self._texts = Shapes(), Texts()

    def take(
        self, block: bytes, sender: Sender, *, observed_at: datetime, now: float, surplus: int = 0
    ) -> None:
        """A block of whole lines, LF between them and `surplus` more."""
        self._counters.lines += _count_line_feeds(block) + 1 - surplus
        self._counters.bytes += len(block) + 1
        if self._get_hour(observed_at) != self._stamps_of:
            self._stamps.clear()
            self._shapes.forget_heads()
            self._stamps_of = self._get_hour(observed_at)
        if self._has_last_message(block):
            self._look_at(block, sender, observed_at, now, has_repeats=True)
        else:
            for part in _split_block(block, _PART):
                self._take_part(part, sender, observed_at, now)
        self._find_unread(block, sender, observed_at, now)
        sender.tail = block[-_TAIL:]

    def _find_unread(self, block: bytes, sender: Sender, observed_at: datetime, now: float) -> None:
        reader = self._unread_reader
        if reader is None:
            return
        self._unread_left += (now - self._unread_at_s) * _UNREAD_PER_SECOND
        self._unread_left = min(self._unread_left, _UNREAD_PER_SECOND)
        self._unread_at_s = now
        for part in _split_block(block, _PART):
            for line in reader.find_lines(part):
                if not reader.is_candidate(line):
                    continue
                if self._unread_left < 1.0:
                    self._counters.unread_unexamined += 1
                    continue
                self._unread_left -= 1.0
                self._read_unread(reader, line, sender, observed_at)

    def _read_unread(
        self, reader: UnreadSource, line: bytes, sender: Sender, observed_at: datetime
    ) -> None:
        found = reader.read(
            line,
            default_host=sender.host,
            observed_at=observed_at,
            zone=self._get_zone(line, sender, observed_at),
            is_own_line=not sender.provenance.is_relay,
        )
        if found is not None:
            self._counters.unread += 1
            self.unread.add(found)
            self._counters.unread_left_out = self.unread.left_out

    def _take_part(self, part: bytes, sender: Sender, observed_at: datetime, now: float) -> None:
        """Of a storm's lines most are known, and are not looked for among the others."""
        before = self._counters.hits
        if self._is_dense:
            self._look_at(part, sender, observed_at, now, has_repeats=False)
        else:
            for line in self._matcher.find_lines(part):
                if self._matcher.is_hit(line):
                    self._counters.hits += 1
                    self._take_hit(line, sender, observed_at, now)
        self._is_dense = self._counters.hits - before > _DENSE

    def _look_at(
        self, part: bytes, sender: Sender, observed_at: datetime, now: float, *, has_repeats: bool
    ) -> None:
        """In the order of the lines: known shapes are counted, the others are asked for
        together."""
        lines = list(filter(None, part.split(b"\n")))
        if self._is_dense:
            shapes, kernel_seconds = self._shapes.find_known(lines, sender.key, observed_at)
            hits = self._find_hits(
                [line for line, shape in zip(lines, shapes, strict=True) if shape is None]
            )
        else:
            shapes, kernel_seconds, hits = [None] * len(lines), {}, self._find_hits(lines)
        known = folded = 0
        for number, shape in enumerate(shapes):
            if shape is not None:
                known += 1
                waiting = shape.waiting
                if waiting is not None and waiting.is_open and not shape.key:
                    waiting.count += waiting.fact.count
                    folded += 1
                    continue
                seconds = kernel_seconds.get(number, b"")
                self._take_occurrence(shape, lines[number], seconds, None, sender, observed_at, now)
            elif lines[number] in hits:
                self._counters.hits += 1
                self._take_hit(lines[number], sender, observed_at, now)
            elif has_repeats and _LAST_MESSAGE in lines[number]:
                self._count_repeat_of_last(lines[number], part, sender, observed_at, now)
        self._counters.hits += known
        self.folder.folded += folded

    def _find_hits(self, lines: list[bytes]) -> set[bytes]:
        """Those that a signature matches."""
        candidates = self._matcher.find_lines(b"\n".join(lines))
        return {line for line in candidates if self._matcher.is_hit(line)}

    def _take_hit(self, line: bytes, sender: Sender, observed_at: datetime, now: float) -> None:
        reading = self._shapes.read(line, sender.key, observed_at)
        if reading is None:
            self._judge(line, sender, observed_at, now)
            return
        if reading.text in reading.shapes:
            shape = reading.shapes[reading.text]
        else:
            shape = self._judge_new_shape(reading, line, sender, observed_at)
        if shape is None:
            self._judge(line, sender, observed_at, now)
            return
        seconds = reading.kernel[1] if reading.kernel is not None else b""
        self._take_occurrence(shape, line, seconds, reading, sender, observed_at, now)

    def _take_occurrence(
        self,
        shape: Shape,
        line: bytes,
        kernel_seconds: bytes,
        reading: StampedLine | None,
        sender: Sender,
        observed_at: datetime,
        now: float,
    ) -> None:
        """One line of a shape. `reading` is the line's, where it has been read."""
        key = ""
        if shape.key is not None:
            key = f"{shape.key[0]}{kernel_seconds.decode()}{shape.key[1]}"
            if not self._seen.is_new(key):
                self._counters.duplicates += 1
                return
            waiting = shape.waiting
            if waiting is not None and waiting.is_open and not waiting.source_key:
                waiting.count += waiting.fact.count
                self.folder.folded += 1
                return
        for number, fact in enumerate(shape.facts):
            same = (number, shape.identity) if number else shape.identity
            waiting = self.folder.repeat(same, fact.count, now=now)
            if waiting is None:
                reading = reading or self._shapes.read(line, sender.key, observed_at)
                at = (
                    self._parse_time(reading.stamp, shape.zone, observed_at)
                    if reading is not None
                    else None
                )
                new = _make_folded(fact, line, _make_own_key(key, number), sender, at)
                waiting = self.folder.add(same, new, now=now)
            shape.waiting = waiting if len(shape.facts) == 1 else None

    def _judge_new_shape(
        self, reading: StampedLine, line: bytes, sender: Sender, observed_at: datetime
    ) -> Shape | None:
        """Judges the first line of a shape. None where our short reading of its stamps differs from
        the header's."""
        shape = self._texts.find_shape(reading) if self._zones.is_one else None
        if shape is not None:
            self._shapes.remember(reading, shape)
            return shape
        zone = self._get_zone(line, sender, observed_at)
        facts = tuple(self._list_facts(line, sender, observed_at, zone))
        at = self._parse_time(reading.stamp, zone, observed_at)
        keys = {fact.source_key for fact in facts}
        kernel = reading.kernel
        if at is not None and len(keys) <= 1 and all(fact.occurred_at == at for fact in facts):
            if keys <= {""}:
                # A stamp that is not the kernel's belongs to the text: no part of it may be left
                # out of the shape.
                shape = (
                    Shape(facts, zone, None, reading.identity)
                    if kernel is None or not facts
                    else None
                )
            elif kernel is not None:
                before, found, after = keys.pop().partition(f"|{kernel[1].decode()}|")
                shape = (
                    Shape(facts, zone, (f"{before}|", f"|{after}"), reading.identity)
                    if found
                    else None
                )
        if shape is not None and self._zones.is_one:
            self._texts.record_shape(reading, shape)
        self._shapes.remember(reading, shape)
        return shape

    def _judge(self, line: bytes, sender: Sender, observed_at: datetime, now: float) -> None:
        """The long way, for lines whose header has an unusual shape."""
        zone = self._get_zone(line, sender, observed_at)
        facts = self._list_facts(line, sender, observed_at, zone)
        keys = {fact.source_key for fact in facts} - {""}
        if any(not self._seen.is_new(key) for key in keys):
            self._counters.duplicates += 1
            return
        body = self._parse_header(line, sender, observed_at).body if facts else ""
        for number, fact in enumerate(facts):
            identity = (sender.key, *_get_identity(fact, body))
            folded = _make_folded(fact, line, _make_own_key(fact.source_key, number), sender)
            self.folder.add(identity, folded, now=now)

    def _count_repeat_of_last(
        self, line: bytes, part: bytes, sender: Sender, observed_at: datetime, now: float
    ) -> None:
        header = self._parse_header(line, sender, observed_at)
        if header.repeat is not LineRepeat.LAST:
            return
        before = part[: part.find(line)].rstrip(b"\n") or sender.tail
        repeated = self._get_line_before(before, header.host, sender, observed_at)
        if repeated is None:
            self._counters.repeats_unresolved += 1
            return
        if not self._matcher.is_hit(repeated):
            return
        self._counters.hits += 1
        zone = self._get_zone(repeated, sender, observed_at)
        body = self._parse_header(repeated, sender, observed_at).body
        for fact in self._list_facts(repeated, sender, observed_at, zone):
            again = _make_folded(fact, repeated, "", sender, header.occurred_at)
            again.count = header.repeats
            self.folder.add((sender.key, *_get_identity(fact, body)), again, now=now)

    def _get_line_before(
        self, before: bytes, host: str | None, sender: Sender, observed_at: datetime
    ) -> bytes | None:
        """The last line of the same host that is no repeat itself; None when it is not at hand any
        more."""
        for line in reversed(before[-_TAIL:].split(b"\n")[-200:]):
            header = self._parse_header(line, sender, observed_at)
            if line and header.repeat is not LineRepeat.LAST and header.host == host:
                return line
        return None

    def _list_facts(
        self, line: bytes, sender: Sender, observed_at: datetime, zone: tzinfo
    ) -> list[Fact]:
        """Only a relay's lines are of the host that they name."""
        return self._matcher.facts(
            line,
            default_host=sender.host,
            observed_at=observed_at,
            zone=zone,
            is_own_line=not sender.provenance.is_relay,
        )

    def _parse_header(self, line: bytes, sender: Sender, observed_at: datetime) -> Header:
        zone = self._get_zone(line, sender, observed_at)
        return parse_header(line, observed_at=observed_at, zone=zone)

    def _get_zone(self, line: bytes, sender: Sender, observed_at: datetime) -> tzinfo:
        if self._zones.is_one:
            return self._zones.get_zone("*")
        named = None
        if sender.provenance.is_relay:
            named = parse_header(line, observed_at=observed_at, zone=UTC).host
        return self._zones.get_zone(short_host(named or sender.host))

    def _parse_time(
        self, stamp: re.Match[bytes], zone: tzinfo, observed_at: datetime
    ) -> datetime | None:
        """The stamp's time; its whole seconds are remembered, since a storm's lines share them."""
        second, fraction, offset = stamp[1], stamp[2], stamp[3]
        at = self._stamps.get((second, offset, zone))
        if at is None:
            at = parse_stamp((second + offset).decode("ascii"), observed_at=observed_at, zone=zone)
            if at is None:
                return None
            if len(self._stamps) >= _STAMPS:
                self._stamps.clear()
            self._stamps[(second, offset, zone)] = at
        return at + timedelta(microseconds=int(fraction[1:].ljust(6, b"0"))) if fraction else at

    def _get_hour(self, observed_at: datetime) -> tuple[int, int]:
        """A stamp without a year means another time as time goes on."""
        return observed_at.toordinal(), observed_at.hour


def _count_line_feeds(block: bytes) -> int:
    if len(block) < _LEAST_COUNTED_TOGETHER:
        return block.count(b"\n")
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == _LF))


def _split_block(block: bytes, size: int) -> Iterator[bytes]:
    """The block in parts of about `size` bytes, cut between lines."""
    start, end_of_block = 0, len(block)
    while end_of_block - start > size:
        end = block.rfind(b"\n", start, start + size)
        if end < 0:
            end = block.find(b"\n", start)
            if end < 0:
                break
        yield block[start:end]
        start = end + 1
    if start < end_of_block:
        yield block[start:] if start else block


def _make_folded(
    fact: Fact, line: bytes, key: str, sender: Sender, at: datetime | None = None
) -> Folded:
    provenance = sender.get_provenance(fact)
    occurred_at = at or fact.occurred_at
    return Folded(fact, occurred_at, line, key, fact.count, provenance=provenance)


def _make_own_key(key: str, number: int) -> str:
    """A line that states several facts has one key for each, or the second would count as the
    first's copy."""
    return f"{key}|{number + 1}" if key and number else key


def _get_identity(fact: Fact, body: str) -> tuple[object, ...]:
    return (fact.fault_type, fact.event, fact.resource, fact.qualifier, fact.code, body)
