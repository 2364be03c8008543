"""Bytes of a RELP connection into frames, and answers into bytes
(https://www.rsyslog.com/doc/relp.html, the sections on the frame and on `open`).

Never looks into a line. Holds at most one unfinished frame.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from detectors.receivers.framing import FramingError

# What librelp's own server takes unless it is told otherwise (RELP_DFLT_MAX_DATA_SIZE).
MAX_DATA = 128 * 1024
OK = b"200 OK"
# A hint: it answers nothing, and is not answered.
SERVER_CLOSE = b"0 serverclose 0\n"
_HEADER = re.compile(rb"([1-9]\d{0,8}) ([A-Za-z]{1,32}) (\d{1,9})(?=[ \n])")
_HEADER_START = re.compile(rb"(?:[1-9]\d{0,8}(?: (?:[A-Za-z]{1,32}(?: (?:\d{1,9})?)?)?)?)?\Z")
_SPACE, _LF = b" \n"
_OFFERS = b"relp_version=0\nrelp_software=kintsugi\ncommands=syslog"


@dataclass(frozen=True, slots=True)
class Frame:
    """One command. `number` identifies its answer."""

    number: int
    command: bytes
    data: bytes


class RelpFramer:
    """One connection's framing."""

    def __init__(self) -> None:
        self._rest = b""
        self._before_error: list[Frame] = []

    def feed(self, chunk: bytes) -> list[Frame]:
        """Whole frames that `chunk` completes. Raises FramingError for what is none, or over 128
        KiB.

        Frames before a wrong one are in `pending()` after the error.
        """
        rest = self._rest + chunk if self._rest else chunk
        frames: list[Frame] = []
        position = 0
        try:
            while position < len(rest):
                found = _parse_frame(rest, position)
                if found is None:
                    break
                frame, position = found
                frames.append(frame)
        except FramingError:
            self._before_error, self._rest = frames, b""
            raise
        self._rest = rest[position:]
        return frames

    def take_whole_frames(self) -> list[Frame]:
        """Whole frames found before a FramingError."""
        frames, self._before_error = self._before_error, []
        return frames

    @property
    def held(self) -> int:
        """Bytes kept until the rest of their frame comes."""
        return len(self._rest)


def _parse_frame(rest: bytes, position: int) -> tuple[Frame, int] | None:
    """The frame that begins at `position`, and where the next one does; None while a part of it has
    not come."""
    header = _HEADER.match(rest, position)
    if header is None:
        if _HEADER_START.match(rest, position):
            return None
        raise FramingError(_describe(rest, position))
    length = int(header[3])
    start = header.end() + (rest[header.end()] == _SPACE)
    if length > MAX_DATA or (length and start == header.end()):
        raise FramingError(_describe(rest, position))
    end = start + length
    if end >= len(rest):
        return None
    if rest[end] != _LF:
        raise FramingError(_describe(rest, position))
    return Frame(int(header[1]), header[2], rest[start:end]), end + 1


def format_answer(number: int, text: bytes = OK) -> bytes:
    return b"%d rsp %d %b\n" % (number, len(text), text)


def answer_offers(offers: bytes) -> bytes:
    """What is said to those of an `open`: ours, or 500 where the other side does not know
    `syslog`."""
    given = dict(line.partition(b"=")[::2] for line in offers.split(b"\n"))
    if b"syslog" not in given.get(b"commands", b"").split(b","):
        return b"500 the command syslog is not among the offers"
    return OK + b"\n" + _OFFERS


def _describe(rest: bytes, position: int) -> str:
    found = rest[position : position + 24]
    return f"expected a RELP frame of at most {MAX_DATA} bytes, found {found!r}"
