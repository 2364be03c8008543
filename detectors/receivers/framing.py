"""Bytes of a TCP connection into whole log lines: octet-counted or LF, as the first bytes say (RFC
6587).

Never looks into a line. Holds at most one unfinished line, so a slow or endless sender costs
bounded memory.
"""

from __future__ import annotations

import re
from enum import StrEnum

import numpy as np
import numpy.typing as npt

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
_LF, _BLANK, _ZERO, _BEGIN = b"\n 0<"
# What finding frames together costs is that of some 150 found one by one, which so many bytes hold.
# A frame at which no run begins costs ten times what one does where none is looked for: so many are
# borne in a chunk (both our choice).
_LEAST_BYTES, _MOST_MISSES = 16 * 1024, 16


class Framing(StrEnum):
    UNDECIDED = "undecided"
    OCTET_COUNTED = "octet_counted"
    LF = "lf"


class FramingError(Exception):
    """An octet count that is not where it must be: nothing after it can be trusted, so the
    connection is closed."""


class Framer:
    """One connection's framing. `feed` gives whole lines as one block, separated by LF: by several
    where an octet count stood, of which `take_surplus_count` counts all but one.

    A line feed inside an octet-counted message becomes a space: one message stays one line.
    """

    def __init__(self) -> None:
        self.framing = Framing.UNDECIDED
        self.cut_lines = 0
        self._surplus = 0
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

    def take_whole_lines(self) -> bytes:
        """Whole lines found before a FramingError."""
        block, self._before_error = self._before_error, b""
        return block

    def take_cut_count(self) -> int:
        """How many lines were cut since the last call."""
        cuts, self.cut_lines = self.cut_lines, 0
        return cuts

    def take_surplus_count(self) -> int:
        """How many line feeds of the blocks since the last call stand between no two lines."""
        surplus, self._surplus = self._surplus, 0
        return surplus

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
        is_large = size - position >= _LEAST_BYTES
        runs = _Runs(rest) if is_large and b"\n" not in rest else None
        try:
            while True:
                position = _take_usual(rest, position, lines, runs)
                if position >= size:
                    break
                space = find(b" ", position, position + 8)
                if rest[position] == _LF:  # some senders put one after a counted message
                    position += 1
                    continue
                if space < 0:
                    if size - position >= 8 or not _COUNT_START.match(rest, position):
                        raise FramingError(_get_shown(rest, position))
                    break
                count = rest[position:space]
                if not count.isdigit() or count < b"1":
                    raise FramingError(_get_shown(rest, position))
                end = space + 1 + int(count)
                if end > size:
                    if end - space > MAX_LINE + 1:
                        position = self._take_oversized(rest, space + 1, end, lines)
                    break
                append(rest[space + 1 : end])
                position = end
        except FramingError:
            self._before_error, self._rest = self._join(lines, runs), b""
            raise
        self._rest = rest[position:]
        return self._join(lines, runs)

    def _take_oversized(self, rest: bytes, start: int, end: int, lines: list[bytes]) -> int:
        """Takes the head of a message longer than a line may be once that much has come; skips what
        follows it."""
        if len(rest) - start < MAX_LINE:
            return start - len(b"%d " % (end - start))
        lines.append(rest[start : start + MAX_LINE])
        self.cut_lines += 1
        self._skip = end - len(rest)
        return len(rest)

    def _join(self, lines: list[bytes], runs: _Runs | None) -> bytes:
        """Without runs each is one line."""
        if runs is None:
            self.cut_lines += sum(len(line) > MAX_LINE for line in lines)
            return b"\n".join(_replace_line_feeds(line) for line in lines)
        self._surplus += runs.surplus
        block = b"\n".join(lines)
        return self._cut(block) if _has_long_line(block) else block


class _Runs:
    """The frames of a chunk without line feeds, found together: runs of those whose lines are 10 to
    999 bytes long and begin with `<`, each where the one before it ends.

    A count is read backwards from the blank before each `<`: of its last two or three digits those
    count with which the frame ends where another may begin. That is a guess, since digits may end
    the line before; it is proved from the first frame on, whose beginning is known, frame by frame.
    """

    def __init__(self, chunk: bytes) -> None:
        octets = np.frombuffer(chunk, np.uint8)
        marks = np.flatnonzero(octets == _BEGIN)
        self._chunk = chunk
        self.surplus = 0  # of the line feeds in the runs that were taken
        self._marks = marks = marks[(marks >= 3) & (octets[marks - 1] == _BLANK)]
        # Bytes that are no digits are over 9. Of a first count of two the third is the last byte of
        # the chunk: `take` sees that it stands nowhere.
        ones, tens, hundreds = (octets[marks - place] - _ZERO for place in (2, 3, 4))
        of_two = ones + 10 * tens.astype(np.int64)
        of_three = of_two + 100 * hundreds.astype(np.int64)
        is_count = (ones <= 9) & (tens <= 9)
        gaps = np.diff(marks, append=0) - 1
        fits_two = is_count & (tens > 0) & _is_length(gaps - of_two)
        fits_three = is_count & (hundreds - 1 < 9) & _is_length(gaps - of_three)
        self._lengths = np.where(fits_three, 3, np.where(fits_two, 2, 0))
        self._sizes = np.where(fits_three, of_three, of_two)
        follows = self._lengths[1:] == (gaps - self._sizes)[:-1]
        self._breaks = np.flatnonzero(~follows) + 1

    def take(self, position: int, lines: list[bytes]) -> int:
        """Takes the run of frames that begins at `position` as one piece, with line feeds where the
        counts were; returns where it ends."""
        first = int(np.searchsorted(self._marks, position))
        if first >= len(self._marks):
            return position
        length = int(self._lengths[first])
        if not length or int(self._marks[first]) - 1 - length != position:
            return position
        end = self._get_end(first)
        marks = self._marks[first:end]
        start, stop = int(marks[0]), int(marks[-1] + self._sizes[end - 1])
        piece = np.frombuffer(bytearray(self._chunk[start:stop]), np.uint8)
        counts = marks[1:] - start
        for place in (1, 2, 3):
            piece[counts - place] = _LF
        piece[counts - 1 - self._lengths[first + 1 : end]] = _LF
        lines.append(piece.tobytes())
        self.surplus += int(self._lengths[first + 1 : end].sum())
        return stop

    def _get_end(self, first: int) -> int:
        """The number of the first frame behind `first` that is not of its run."""
        number = int(np.searchsorted(self._breaks, first + 1))
        return int(self._breaks[number]) if number < len(self._breaks) else len(self._marks)


def _is_length(digits: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether a count of so many digits is one that is looked for."""
    is_length: npt.NDArray[np.bool_] = (digits == 2) | (digits == 3)
    return is_length


def _decide(rest: bytes) -> Framing:
    if _COUNT.match(rest):
        return Framing.OCTET_COUNTED
    return Framing.UNDECIDED if not rest or _COUNT_START.match(rest) else Framing.LF


def _take_usual(rest: bytes, position: int, lines: list[bytes], runs: _Runs | None) -> int:
    """Takes whole frames of usual sizes from `position` on, in runs where there are any; returns
    where the first other one begins."""
    append, size_of, size = lines.append, _SIZES.get, len(rest)
    misses = 0
    while True:
        if runs is not None and misses < _MOST_MISSES:
            begin, position = position, runs.take(position, lines)
            misses += position == begin
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


def _replace_line_feeds(line: bytes) -> bytes:
    line = line[:MAX_LINE]
    return line.rstrip(b"\n").replace(b"\n", b" ") if b"\n" in line else line


def _get_shown(rest: bytes, position: int) -> str:
    return f"expected an octet count and a space, found {rest[position : position + 24]!r}"
