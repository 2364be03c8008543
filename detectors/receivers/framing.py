"""Bytes of a TCP connection into whole log lines: octet-counted or LF, as the first bytes say (RFC
6587).

Never looks into a line. Holds at most one unfinished line, so a slow or endless sender costs
bounded memory.
"""

from __future__ import annotations

import re
from enum import StrEnum

# What rsyslog and syslog-ng take by default is 8 KiB; the longest real lines are dumps of a few
# KiB.
MAX_LINE = 64 * 1024
_COUNT = re.compile(rb"[1-9]\d{0,6} (?=<)")
_COUNT_START = re.compile(rb"[1-9]\d{0,6}(?: <?)?\Z")
# Nearly every frame is 10 to 999 bytes long: by its first four bytes, the bytes of count, space and
# message.
_SIZES = {b"%d <" % count: count + 3 for count in range(10, 100)} | {
    b"%d " % n: n + 4 for n in range(100, 1000)
}
_LARGEST_OF_TWO_DIGITS = 99 + 3
_LF = 10


class Framing(StrEnum):
    UNDECIDED = "undecided"
    OCTET_COUNTED = "octet_counted"
    LF = "lf"


class FramingError(Exception):
    """An octet count that is not where it must be: nothing after it can be trusted, so the
    connection is closed."""


class Framer:
    """One connection's framing. `feed` gives whole lines as one block, separated by LF.

    A line feed inside an octet-counted message becomes a space: one message stays one line.
    """

    def __init__(self) -> None:
        self.framing = Framing.UNDECIDED
        self.cut_lines = 0
        self._rest = b""
        self._skip = 0  # octet-counted: bytes of an oversized message still to come
        self._is_skipping = False  # LF: the rest of an oversized line, up to its line feed
        self._before_error = b""

    def feed(self, chunk: bytes) -> bytes:
        """Whole lines that `chunk` completes, LF between them. Raises FramingError at a wrong
        count.

        Lines before a wrong count are in `pending()` after the error.
        """
        rest = self._rest + chunk if self._rest else chunk
        if self.framing is Framing.UNDECIDED:
            self.framing = _decide(rest)
        if self.framing is Framing.LF:
            return self._feed_lf(rest)
        if self.framing is Framing.OCTET_COUNTED:
            return self._feed_counted(rest)
        self._rest = rest
        return b""

    def finish(self) -> bytes:
        """The last line of a connection that ended without a line feed; what is left of a counted
        one is dropped."""
        rest, self._rest = self._rest, b""
        return b"" if self.framing is Framing.OCTET_COUNTED or self._is_skipping else rest

    def pending(self) -> bytes:
        """Whole lines found before a FramingError."""
        block, self._before_error = self._before_error, b""
        return block

    def taken_cuts(self) -> int:
        """How many lines were cut since the last call."""
        cuts, self.cut_lines = self.cut_lines, 0
        return cuts

    @property
    def held(self) -> int:
        """Bytes kept until the rest of their line comes."""
        return len(self._rest)

    def _feed_lf(self, rest: bytes) -> bytes:
        if self._is_skipping:
            _, newline, rest = rest.partition(b"\n")
            self._is_skipping = not newline
        end = rest.rfind(b"\n")
        block, self._rest = (rest[:end], rest[end + 1 :]) if end >= 0 else (b"", rest)
        if len(block) > MAX_LINE and _has_long_line(block):
            block = self._cut(block)
        if len(self._rest) > MAX_LINE:
            line, self._rest, self._is_skipping = self._rest[:MAX_LINE], b"", True
            self.cut_lines += 1
            block = block + b"\n" + line if end >= 0 else line
        return block

    def _cut(self, block: bytes) -> bytes:
        lines = block.split(b"\n")
        self.cut_lines += sum(len(line) > MAX_LINE for line in lines)
        return b"\n".join(line[:MAX_LINE] for line in lines)

    def _feed_counted(self, rest: bytes) -> bytes:
        lines: list[bytes] = []
        position = min(self._skip, len(rest))
        self._skip -= position
        size = len(rest)
        find, append = rest.find, lines.append
        try:
            while (position := _take_usual(rest, position, lines)) < size:
                space = find(b" ", position, position + 8)
                if rest[position] == _LF:  # some senders put one after a counted message
                    position += 1
                    continue
                if space < 0:
                    if size - position >= 8 or not _COUNT_START.match(rest, position):
                        raise FramingError(_shown(rest, position))
                    break
                count = rest[position:space]
                if not count.isdigit() or count < b"1":
                    raise FramingError(_shown(rest, position))
                end = space + 1 + int(count)
                if end > size:
                    if end - space > MAX_LINE + 1:
                        position = self._oversized(rest, space + 1, end, lines)
                    break
                append(rest[space + 1 : end])
                position = end
        except FramingError:
            self._before_error, self._rest = self._joined(lines), b""
            raise
        self._rest = rest[position:]
        return self._joined(lines)

    def _oversized(self, rest: bytes, start: int, end: int, lines: list[bytes]) -> int:
        """Takes the head of a message longer than a line may be once that much has come; skips what
        follows it."""
        if len(rest) - start < MAX_LINE:
            return start - len(b"%d " % (end - start))
        lines.append(rest[start : start + MAX_LINE])
        self.cut_lines += 1
        self._skip = end - len(rest)
        return len(rest)

    def _joined(self, lines: list[bytes]) -> bytes:
        block = b"\n".join(lines)
        if lines and (block.count(b"\n") != len(lines) - 1 or _has_long_line(block)):
            self.cut_lines += sum(len(line) > MAX_LINE for line in lines)
            block = b"\n".join(line[:MAX_LINE].rstrip(b"\n").replace(b"\n", b" ") for line in lines)
        return block


def _decide(rest: bytes) -> Framing:
    if _COUNT.match(rest):
        return Framing.OCTET_COUNTED
    return Framing.UNDECIDED if not rest or _COUNT_START.match(rest) else Framing.LF


def _take_usual(rest: bytes, position: int, lines: list[bytes]) -> int:
    """Takes whole frames of usual sizes from `position` on; returns where the first other one
    begins."""
    append, size_of, size = lines.append, _SIZES.get, len(rest)
    while True:
        frame = size_of(rest[position : position + 4])
        if frame is None or position + frame > size:
            return position
        append(rest[position + (3 if frame <= _LARGEST_OF_TWO_DIGITS else 4) : position + frame])
        position += frame


def _has_long_line(block: bytes) -> bool:
    """Whether a line is over 64 KiB, in as many looks as the block has 64 KiB."""
    start, size = 0, len(block)
    while size - start > MAX_LINE:
        newline = block.rfind(b"\n", start, start + MAX_LINE + 1)
        if newline < 0:
            return True
        start = newline + 1
    return False


def _shown(rest: bytes, position: int) -> str:
    return f"expected an octet count and a space, found {rest[position : position + 24]!r}"
