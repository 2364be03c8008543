"""Remembers what lines meant by their shape: the line without its time stamps. Bounded; never
judges a line itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
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


_Form = dict[bytes | Text, Shape | None]


class StampedLine(NamedTuple):
    """A line's stamps, and under what its shape is remembered."""

    stamp: re.Match[bytes]
    kernel: re.Match[bytes] | None
    form: _Form
    text: bytes | Text
    identity: tuple[bytes, ...]


@dataclass
class Shapes:
    """Shapes by sender, by the form of the header (all but the host's name and the time), and by
    the text."""

    _forms: dict[tuple[str, bytes, bytes], _Form] = field(default_factory=dict)
    # Up to the second, a storm's lines share their heads: sender, then `<30>Jan 12 03:04:05`.
    _heads: dict[str, dict[bytes, _Form]] = field(default_factory=dict)
    _seconds: set[bytes] = field(default_factory=set)
    _remembered: int = 0
    _heads_known: int = 0

    def known(
        self, lines: Sequence[bytes], sender: str, observed_at: datetime
    ) -> list[Shape | None]:
        """Each line's shape; None where none is remembered."""
        found: list[Shape | None] = []
        append, heads = found.append, self._heads.get(sender, {})
        head_of, kernel_in = heads.get, _KERNEL.search
        for line in lines:
            end = line.find(b">", 0, _LONGEST_PRIORITY) + 1 + _BSD_STAMP
            form = head_of(line[:end])
            if form is None:
                stamp, form = self._stamped(line, sender, observed_at)
                if stamp is None:
                    append(None)
                    continue
                end = stamp.end()
            shape = form.get(line[end:])
            if shape is None:
                kernel = kernel_in(line, end, end + _KERNEL_WITHIN)
                if kernel is not None:
                    shape = form.get((line[end : kernel.start()], line[kernel.end() :]))
            append(shape)
        return found

    def read(self, line: bytes, sender: str, observed_at: datetime) -> StampedLine | None:
        """None for a line whose stamp has an unusual form or names no time: it has no shape."""
        stamp, form = self._stamped(line, sender, observed_at)
        if stamp is None:
            return None
        end, prefix, offset = stamp.end(), line[: stamp.start(1)], stamp[3]
        kernel = _KERNEL.search(line, end, end + _KERNEL_WITHIN)
        if kernel is None:
            text: bytes | Text = line[end:]
            return StampedLine(
                stamp, None, form, text, (sender.encode(), prefix, offset, line[end:])
            )
        pieces = (line[end : kernel.start()], line[kernel.end() :])
        if prefix.endswith(b"1 ") and len(pieces[0].split()) < _HEADER_FIELDS:
            return None
        return StampedLine(stamp, kernel, form, pieces, (sender.encode(), prefix, offset, *pieces))

    def remember(self, reading: StampedLine, shape: Shape | None) -> None:
        """None: what a line like this means must be asked each time."""
        if self._remembered >= _SHAPES:
            self._forget()
        self._remembered += 1
        reading.form[reading.text] = shape

    def _stamped(
        self, line: bytes, sender: str, observed_at: datetime
    ) -> tuple[re.Match[bytes] | None, _Form]:
        """The stamp and the shapes of its form; no stamp where it has an unusual form or names no
        time."""
        stamp = _STAMP.match(line)
        if stamp is None or (
            stamp[1] not in self._seconds and not self._is_time(stamp[1], observed_at)
        ):
            return None, {}
        end = stamp.end()
        form = self._form(sender, line[: stamp.start(1)], stamp[3])
        if end == line.find(b">", 0, _LONGEST_PRIORITY) + 1 + _BSD_STAMP:
            self._remember_head(sender, line[:end], form)
        return stamp, form

    def _form(self, sender: str, prefix: bytes, offset: bytes) -> _Form:
        form = self._forms.get((sender, prefix, offset))
        if form is None:
            if len(self._forms) >= _FORMS:
                self._forget()
            form = self._forms[sender, prefix, offset] = {}
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

    def _remember_head(self, sender: str, head: bytes, form: _Form) -> None:
        heads = self._heads.setdefault(sender, {})
        if head not in heads:
            if self._heads_known >= _HEADS:
                heads = {}
                self._heads, self._heads_known = {sender: heads}, 0
            self._heads_known += 1
            heads[head] = form

    def _forget(self) -> None:
        self._forms, self._remembered = {}, 0
        self._heads, self._heads_known = {}, 0


def kernel_stamp(line: bytes) -> str:
    """The kernel's own stamp of a line whose shape has a key."""
    found = _KERNEL.search(line)
    return found[1].decode() if found is not None else ""
