"""Framing: whatever way the bytes are cut, the same lines come out; wrong counts and endless lines
cost nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detectors.receivers.framing import MAX_LINE, Framer, Framing, FramingError

LINES = [b"<4>Jan 12 03:04:05 gn042 kernel: one", b"<13>two \x00 \xff\xfe", b"<4>three"]


def counted(lines: list[bytes]) -> bytes:
    return b"".join(b"%d %b" % (len(line), line) for line in lines)


def fed(framer: Framer, stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    blocks = [framer.feed(stream[start:end]) for start, end in pairwise(edges)]
    parts = [line for block in [*blocks, framer.finish()] if block for line in block.split(b"\n")]
    lines = [line for line in parts if line]
    assert len(parts) - len(lines) == framer.take_surplus_count()
    return lines


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_octet_counted_lines_come_out_however_they_arrive(cuts: list[int]) -> None:
    framer = Framer()
    assert fed(framer, counted(LINES * 3), cuts) == LINES * 3
    assert framer.framing is Framing.OCTET_COUNTED


@given(st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
def test_lf_lines_come_out_however_they_arrive(cuts: list[int], is_ended: bool) -> None:
    framer = Framer()
    assert fed(framer, b"\n".join(LINES * 3) + (b"\n" if is_ended else b""), cuts) == LINES * 3
    assert framer.framing is Framing.LF


@pytest.mark.parametrize(
    "first", [b"<13>x\n", b"12345678 <1>x\n", b"0 <1>x\n", b"12 x\n", b"Jan 12\n", b"1234567x\n"]
)
def test_a_connection_is_lf_when_it_does_not_begin_with_a_count(first: bytes) -> None:
    framer = Framer()
    assert framer.feed(first + b"9 <1>later\n") == first + b"9 <1>later"
    assert framer.framing is Framing.LF


def test_a_line_feed_within_or_after_a_counted_message_starts_no_line() -> None:
    framer = Framer()
    assert framer.feed(b"9 <4>one\ntw6 <4>one\n6 <4>six") == b"<4>one tw\n<4>one\n<4>six"


@pytest.mark.parametrize(
    "wrong", [b"x6 <4>abc", b"-4 <4>abc", b"99999999 <4>abc", b" <4>abc", b"6x <4>abc"]
)
def test_lines_before_a_wrong_count_are_kept_and_the_rest_is_refused(wrong: bytes) -> None:
    framer = Framer()
    with pytest.raises(FramingError, match="expected an octet count"):
        framer.feed(counted(LINES) + wrong)
    assert framer.take_whole_lines() == b"\n".join(LINES)
    assert framer.finish() == b""


# What may be taken for a count that it is not, and what is longer or shorter than usual.
UNUSUAL = [
    b"<4>ends in 50",
    b"<4>ends in a blank ",
    b"<4>12 <4>quoted: 23 <",
    b"<4>9 <7 <10 <4>",
    b"<4>" + b"1" * 97,
    b"<4>" + b"x" * 996,
    b"<4>" + b"x" * 997,
    b"<4>" + b"12 <" * 2000,
    b"<4>x",
    b"no priority, 12 <",
]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(UNUSUAL)), min_size=8, max_size=40),
    st.integers(0, 2),
    st.integers(10_000, 40_000),
)
def test_counted_lines_of_a_large_chunk_come_out_as_of_small_ones(
    runs: list[tuple[int, bytes]], last_digits: int, step: int
) -> None:
    """Frames of usual sizes are found together in large chunks, in runs between unusual ones."""
    usual = b"<13>Jan 12 03:04:05 gn042 kernel: thirteen < 12 <4> and 99" + b"7" * last_digits
    lines = [b"<4>first"]
    for number, unusual in runs:
        lines += [usual] * number + [unusual]
    lines += [usual] * 300
    stream = counted(lines)
    assert fed(Framer(), stream, []) == lines
    assert fed(Framer(), stream, list(range(step, len(stream), step))) == lines


def test_lines_of_a_large_chunk_before_a_wrong_count_are_kept() -> None:
    framer = Framer()
    with pytest.raises(FramingError, match="found b'x6 <4>abc'"):
        framer.feed(counted(LINES[::2] * 1000) + b"x6 <4>abc")
    assert [line for line in framer.take_whole_lines().split(b"\n") if line] == LINES[::2] * 1000


@pytest.mark.parametrize(
    "size", [MAX_LINE - 1, MAX_LINE, MAX_LINE + 1, 3 * MAX_LINE, 20 * MAX_LINE]
)
@pytest.mark.parametrize("step", [1000, 70_000, 10_000_000])
@pytest.mark.parametrize("is_counted", [True, False])
def test_a_line_over_64_kib_is_cut_and_counted(size: int, step: int, is_counted: bool) -> None:
    lines = [b"<4>before", b"<4>" + b"x" * (size - 3), b"<4>after"]
    stream = counted(lines) if is_counted else b"\n".join(lines) + b"\n"
    framer = Framer()
    out = fed(framer, stream, list(range(step, len(stream), step)))
    assert out == [lines[0], lines[1][:MAX_LINE], lines[2]]
    assert framer.take_cut_count() == (size > MAX_LINE)
    assert framer.take_cut_count() == 0


@pytest.mark.parametrize("start", [b"", b"9999999 <4>", b"123", b"5 <4>xy 7 <"])
def test_memory_is_bounded_when_a_sender_never_ends_its_line(start: bytes) -> None:
    framer = Framer()
    for chunk in [start, *[b"y" * 60_000] * 100]:
        try:
            framer.feed(chunk)
        except FramingError:
            return
        assert framer.held <= MAX_LINE + 16


@given(st.lists(st.binary(max_size=40), max_size=20))
@example([b"1 <", b"\x00" * 40])
def test_any_bytes_are_lines_or_a_wrong_count(chunks: list[bytes]) -> None:
    framer = Framer()
    try:
        for chunk in chunks:
            framer.feed(chunk)
    except FramingError:
        assert framer.framing is Framing.OCTET_COUNTED
    framer.finish()
