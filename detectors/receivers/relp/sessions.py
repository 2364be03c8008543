"""One RELP sender: its lines are acknowledged when their events are in the spool, in the order in
which they came.

Whatever is not acknowledged the sender keeps and sends again, so nothing is read here that could
not be answered, and an end needs nothing but the answers that are due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from detectors.receivers.connections import Connection, Connections
from detectors.receivers.framing import MAX_LINE, FramingError
from detectors.receivers.intake import Sender
from detectors.receivers.relp.frames import (
    OK,
    SERVER_CLOSE,
    Frame,
    RelpFramer,
    answer_offers,
    format_answer,
)

# Unanswered frames past which a sender is not read. The window is the sender's to set, librelp's is
# 128; this bound is our choice.
_MOST_UNANSWERED = 4096

Acknowledge = Callable[[], None]
Take = Callable[[bytes, Sender, Acknowledge], None]


@dataclass(eq=False)
class _Answer:
    """To one frame, or to several that came together."""

    content: bytes
    frames: int = 1
    is_due: bool = True
    is_last: bool = False


class RelpConnection(Connection):
    """`take` gets whole lines of one sender, and calls back once their events are spooled."""

    def __init__(self, connections: Connections, *, take: Take) -> None:
        super().__init__(connections)
        self._take = take
        self._framer = RelpFramer()
        self._answers: deque[_Answer] = deque()
        self._unanswered = 0
        self._is_session = False
        self._is_ending = False
        self._is_writing_paused = False

    def data_received(self, data: bytes) -> None:
        if self.sender is None or self._is_ending:
            return
        try:
            self._handle(self._framer.feed(data))
        except FramingError as error:
            self._handle(self._framer.take_whole_frames())
            self.refuse(error)
        self.pause_or_read()

    def pause_writing(self) -> None:
        """The sender does not take our answers: then it is not read either."""
        self._is_writing_paused = True
        self.pause_or_read()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self.pause_or_read()

    def may_be_read(self) -> bool:
        is_full = self._is_writing_paused or self._unanswered >= _MOST_UNANSWERED
        return super().may_be_read() and not is_full

    def tell_end(self) -> None:
        """What comes from here on is not acknowledged, so its sender keeps it."""
        self._is_ending = True
        self.write(SERVER_CLOSE)
        super().tell_end()

    def _handle(self, frames: list[Frame]) -> None:
        """Lines that came together are taken together."""
        lines: list[Frame] = []
        for frame in frames:
            if frame.command == b"syslog" and self._is_session:
                lines.append(frame)
            elif not self._is_ending:
                self._take_lines(lines)
                lines = []
                self._follow(frame)
        self._take_lines(lines)

    def _take_lines(self, frames: list[Frame]) -> None:
        if not frames or self.sender is None or self._is_ending:
            return
        content = b"".join(format_answer(frame.number) for frame in frames)
        answer = _Answer(content, frames=len(frames), is_due=False)
        self._add(answer)
        self.cut(sum(len(frame.data) > MAX_LINE for frame in frames))
        block = b"\n".join(_get_line(frame.data) for frame in frames)
        self._take(block, self.sender, lambda: self._acknowledge(answer))

    def _follow(self, frame: Frame) -> None:
        if frame.command == b"open" and not self._is_session:
            answer = answer_offers(frame.data)
            self._is_session = answer.startswith(OK)
            self._add(_Answer(format_answer(frame.number, answer), is_last=not self._is_session))
        elif frame.command == b"close":
            self._add(_Answer(format_answer(frame.number) + SERVER_CLOSE, is_last=True))
        elif self._is_session:
            self._add(_Answer(format_answer(frame.number, b"500 unknown command")))
        else:
            self.refuse(FramingError(f"expected open first, found {frame.command!r}"))
            self._is_ending = True

    def _acknowledge(self, answer: _Answer) -> None:
        answer.is_due = True
        self.count_acknowledged(answer.frames)
        self._write_due()
        self.pause_or_read()

    def _add(self, answer: _Answer) -> None:
        self._answers.append(answer)
        self._unanswered += answer.frames
        self._is_ending = self._is_ending or answer.is_last
        self._write_due()

    def _write_due(self) -> None:
        """In the order in which their frames came."""
        while self._answers and self._answers[0].is_due:
            answer = self._answers.popleft()
            self._unanswered -= answer.frames
            self.write(answer.content)
            if answer.is_last:
                self.close()


def _get_line(data: bytes) -> bytes:
    """One message is one line: a line feed within it becomes a space."""
    return data[:MAX_LINE].rstrip(b"\r\n\0").replace(b"\n", b" ")
