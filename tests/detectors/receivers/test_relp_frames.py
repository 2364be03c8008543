"""RELP's framing: whatever way the bytes are cut, the same frames come out; what is no frame costs
an error, never memory."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detectors.receivers.framing import FramingError
from detectors.receivers.relp.frames import (
    MAX_DATA,
    Frame,
    RelpFramer,
    answer_offers,
    format_answer,
)

FRAMES = st.lists(
    st.builds(
        Frame,
        st.integers(1, 999_999_999),
        st.sampled_from([b"open", b"syslog", b"close", b"x"]),
        st.binary(max_size=60),
    ),
    max_size=8,
)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def written(frame: Frame) -> bytes:
    data = b" " + frame.data if frame.data else b""
    return b"%d %b %d%b\n" % (frame.number, frame.command, len(frame.data), data)


def read(stream: bytes, cuts: list[int]) -> tuple[list[Frame], bool]:
    """The frames of a stream that arrives in these pieces, and whether it ends in an error."""
    framer = RelpFramer()
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    frames: list[Frame] = []
    for start, end in pairwise(edges):
        try:
            frames += framer.feed(stream[start:end])
        except FramingError:
            return frames + framer.take_whole_frames(), True
        assert framer.held <= MAX_DATA + 64
    return frames, False


@given(FRAMES, CUTS)
@example([Frame(1, b"syslog", b"\n"), Frame(2, b"close", b"")], [1, 2, 3, 4, 5])
def test_frames_come_out_however_they_arrive(frames: list[Frame], cuts: list[int]) -> None:
    assert read(b"".join(map(written, frames)), cuts) == (frames, False)


@given(FRAMES, st.binary(max_size=80), CUTS)
@example([], b"1 syslog 3 abcd", [])
@example([], b"0 serverclose 0\n", [])
def test_any_bytes_are_frames_or_one_error_however_they_arrive(
    frames: list[Frame], garbage: bytes, cuts: list[int]
) -> None:
    stream = b"".join(map(written, frames)) + garbage
    at_once = read(stream, [])
    assert at_once[0][: len(frames)] == frames
    assert read(stream, cuts) == at_once


@pytest.mark.parametrize(
    "wrong",
    [
        b"0 syslog 1 x\n",
        b"x",
        b" 1 syslog 1 x\n",
        b"1234567890 ",
        b"1  syslog",
        b"1 sys-log",
        b"1 " + b"a" * 33,
        b"1 syslog x",
        b"1 syslog 1234567890",
        b"1 syslog 1 xy",
        b"1 syslog 1\n",
        b"1 syslog 0x",
        b"1 syslog %d " % (MAX_DATA + 1),
        b"<4>Jan 12 03:04:05 gn042 kernel: a line of plain TCP\n",
    ],
)
def test_what_is_no_frame_is_refused_as_soon_as_it_is_seen(wrong: bytes) -> None:
    before = Frame(1, b"syslog", b"before")
    assert read(written(before) + wrong, []) == ([before], True)


def test_the_largest_frame_is_taken() -> None:
    largest = Frame(7, b"syslog", b"x" * MAX_DATA)
    assert read(written(largest), list(range(0, MAX_DATA, 9_000))) == ([largest], False)


def test_answers_bear_the_number_of_their_frame() -> None:
    assert format_answer(12) == b"12 rsp 6 200 OK\n"
    assert format_answer(3, b"500 no") == b"3 rsp 6 500 no\n"


@pytest.mark.parametrize(
    ("offers", "answer"),
    [
        (b"relp_version=0\nrelp_software=librelp\ncommands=syslog", b"200 OK\nrelp_version=0\n"),
        (b"relp_version=1\ncommands=open,syslog,x\n", b"200 OK\nrelp_version=0\n"),
        (b"relp_version=0\ncommands=eventlog", b"500 "),
        (b"", b"500 "),
        (b"\xff\n==\ncommands", b"500 "),
    ],
)
def test_an_offer_without_syslog_is_declined(offers: bytes, answer: bytes) -> None:
    assert answer_offers(offers).startswith(answer)
