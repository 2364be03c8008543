"""Remembers what lines meant by their shape: the line without its time stamps. Bounded; never
judges a line itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from detectors.logs.header import parse_stamp
from detectors.logs.signatures import Fact
from detectors.receivers.folding import Folded

_SHAPES = 16_384
_HEADS = 4096
_FORMS = 4096
_STAMP = re.compile(
    rb"(?:<\d{1,3}>)?(?:1 )?((?:\d{4} )?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T"
    rb" ]\d\d:\d\d:\d\d)"
    rb"(\.\d{1,6})?(Z|[+-]\d\d:\d\d|)(?= )"
)
_BSD_STAMP = len("Jan 12 03:04:05")
_LONGEST_PRIORITY = len("<191>")
_LONGEST_HEAD = _LONGEST_PRIORITY + _BSD_STAMP
_KERNEL = re.compile(rb"\[ {0,7}(\d{1,10}\.\d{6})\] ")
_KERNEL_WITHIN = 160
# Between the stamp and the message of RFC 5424 (6.2): host, program, process, message's kind and
# structured data. A kernel's stamp before their end is taken for some of them, blanks and all.
_HEADER_FIELDS = 5

# A line without its stamps: what follows the first one, in two pieces where the kernel's own is cut
# out.
Text = tuple[bytes, ...]


@dataclass(eq=False, slots=True)
class Shape:
    """What lines that differ only in their stamps mean. `key` parts surround the kernel's stamp in
    a source key.

    `identity` is equal for one shape learned twice. `waiting` is where its last occurrence was
    counted.
    """

    facts: tuple[Fact, ...]
    zone: tzinfo
    key: tuple[str, str] | None
    identity: tuple[bytes, ...]
    waiting: Folded | None = None


@dataclass(frozen=True, slots=True)
class _Form:
    """Shapes of lines whose headers are alike: of whole texts, and of texts whose kernel's stamp is
    cut out."""

    whole: dict[bytes | Text, Shape | None] = field(default_factory=dict)
    cut: dict[bytes | Text, Shape | None] = field(default_factory=dict)


# What is remembered of a head: what finds the shape of a whole text, the shapes of cut ones, and
# where the text begins.
_Head = tuple[Callable[[bytes | Text], Shape | None], dict[bytes | Text, Shape | None], int]


class StampedLine(NamedTuple):
    """A line's stamps, and under what its shape is remembered."""

    stamp: re.Match[bytes]
    kernel: re.Match[bytes] | None
    shapes: dict[bytes | Text, Shape | None]
    text: bytes | Text
    identity: tuple[bytes, ...]


class KnownShapes(NamedTuple):
    """Of lines in their order, each one's shape, None where none is remembered. `kernel_seconds`
    are those of lines with a kernel's stamp, by the line's number."""

    shapes: list[Shape | None]
    kernel_seconds: dict[int, bytes]


@dataclass
class Shapes:
    """Shapes by sender, by the form of the header (all but the host's name and the time), and by
    the text."""

    _forms: dict[tuple[str, bytes, bytes], _Form] = field(default_factory=dict)
    # Up to the second, a storm's lines share their heads: sender, then the first bytes of a line,
    # as many as `<191>Jan 12 03:04:05` has.
    _heads: dict[str, dict[bytes, _Head]] = field(default_factory=dict)
    _seconds: set[bytes] = field(default_factory=set)
    _remembered: int = 0
    _heads_known: int = 0

    def find_known(self, lines: Sequence[bytes], sender: str, observed_at: datetime) -> KnownShapes:
        shapes: list[Shape | None] = []
        kernel_seconds: dict[int, bytes] = {}
        append, kernel_in = shapes.append, _KERNEL.search
        head_of = self._heads.setdefault(sender, {}).get
        for line in lines:
            head = head_of(line[:_LONGEST_HEAD])
            if head is None:
                stamp, form = self._find_stamp(line, sender, observed_at)
                if stamp is None:
                    append(None)
                    continue
                head = form.whole.get, form.cut, stamp.end()
                head_of = self._heads.setdefault(sender, {}).get
            get_whole, cut, end = head
            shape = get_whole(line[end:])
            if shape is None and cut:
                kernel = kernel_in(line, end, end + _KERNEL_WITHIN)
                if kernel is not None:
                    shape = cut.get((line[end : kernel.start()], line[kernel.end() :]))
                    kernel_seconds[len(shapes)] = kernel[1]
            append(shape)
        return KnownShapes(shapes, kernel_seconds)

    def read(self, line: bytes, sender: str, observed_at: datetime) -> StampedLine | None:
        """None for a line whose stamp has an unusual form or names no time: it has no shape."""
        stamp, form = self._find_stamp(line, sender, observed_at)
        if stamp is None:
            return None
        end, prefix, offset = stamp.end(), line[: stamp.start(1)], stamp[3]
        kernel = _KERNEL.search(line, end, end + _KERNEL_WITHIN)
        if kernel is None:
            text = line[end:]
            identity = (sender.encode(), prefix, offset, text)
            return StampedLine(stamp, None, form.whole, text, identity)
        pieces = (line[end : kernel.start()], line[kernel.end() :])
        if prefix.endswith(b"1 ") and len(pieces[0].split()) < _HEADER_FIELDS:
            return None
        of_pieces = (sender.encode(), prefix, offset, *pieces)
        return StampedLine(stamp, kernel, form.cut, pieces, of_pieces)

    def remember(self, reading: StampedLine, shape: Shape | None) -> None:
        """None: what a line like this means must be asked each time."""
        if self._remembered >= _SHAPES:
            self._forget()
        self._remembered += 1
        reading.shapes[reading.text] = shape

    def _find_stamp(
        self, line: bytes, sender: str, observed_at: datetime
    ) -> tuple[re.Match[bytes] | None, _Form]:
        """The stamp and the shapes of its form; no stamp where it has an unusual form or names no
        time."""
        stamp = _STAMP.match(line)
        if stamp is None or (
            stamp[1] not in self._seconds and not self._is_time(stamp[1], observed_at)
        ):
            return None, _Form()
        end = stamp.end()
        form = self._get_form(sender, line[: stamp.start(1)], stamp[3])
        if end == line.find(b">", 0, _LONGEST_PRIORITY) + 1 + _BSD_STAMP:
            self._remember_head(sender, line[:_LONGEST_HEAD], (form.whole.get, form.cut, end))
        return stamp, form

    def _get_form(self, sender: str, prefix: bytes, offset: bytes) -> _Form:
        form = self._forms.get((sender, prefix, offset))
        if form is None:
            if len(self._forms) >= _FORMS:
                self._forget()
            form = self._forms[sender, prefix, offset] = _Form()
        return form

    def forget_heads(self) -> None:
        """A stamp without a year means another time as time goes on: once an hour is often enough
        to look again."""
        self._heads, self._heads_known = {}, 0
        self._seconds.clear()

    def _is_time(self, second: bytes, observed_at: datetime) -> bool:
        if parse_stamp(second.decode("ascii"), observed_at=observed_at, zone=UTC) is None:
            return False
        if len(self._seconds) >= _HEADS:
            self._seconds.clear()
        self._seconds.add(second)
        return True

    def _remember_head(self, sender: str, begin: bytes, head: _Head) -> None:
        heads = self._heads.setdefault(sender, {})
        if begin not in heads:
            if self._heads_known >= _HEADS:
                heads = {}
                self._heads, self._heads_known = {sender: heads}, 0
            self._heads_known += 1
            heads[begin] = head

    def _forget(self) -> None:
        self._forms, self._remembered = {}, 0
        self._heads, self._heads_known = {}, 0
