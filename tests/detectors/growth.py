"""Texts that make a pattern work hard, drawn from the pattern itself, and how its time grows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from tests.growth import measure_cpu

KIB = 1024
MIB = 1024 * KIB
SHORTEST = 256
# What a byte may cost of a longer text, by what it cost of one an eighth or less as long: 1 where
# time is linear, 8 where it is quadratic. The rest is for caches and noise.
_MOST_GROWTH = 5.0
# Each text is twice as long as the last, and is compared with these before it: what is cubic is
# seen when it takes a quarter of a minute at most, and not at a length where it takes hours.
_COMPARED = (1, 2, 3)
# Below this a clock says nothing.
_SHORTEST_S = 0.001
_NOTHING_S = 0.0002
# What 256 bytes may take. The slowest parser takes some milliseconds; what is exponential would take
# longer than there is time.
_MOST_AT_FIRST_S = 0.5
_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)


def attacks(pattern: str) -> Iterator[tuple[str, str, str]]:
    """(before, pump, after) for each part that may repeat without a bound: the pump repeated
    stands between what leads there and what lets the match fail."""
    flags = re.compile(pattern).flags & ~re.UNICODE
    yield from _of(_parser.parse(pattern, flags), "")
    for pump in (" ", "a", "0", "a "):
        yield "", pump, "\x01"


def _of(parsed: Any, before: str) -> Iterator[tuple[str, str, str]]:
    led = before
    for op, value in parsed:
        if op in _REPEATS:
            _least, most, inner = value
            sample = _sample(inner)
            yield from _of(inner, led)
            if most >= 64 and sample:
                yield led, sample, "\x01"
                yield "", led + sample, "\x01"
        elif op is ops.SUBPATTERN:
            yield from _of(value[3], led)
        elif op is ops.BRANCH:
            for branch in value[1]:
                yield from _of(branch, led)
        led += _sample([(op, value)])


def _sample(parsed: Any) -> str:
    """A text that the pattern matches, as short as may be; look-around is passed over."""
    text = ""
    for op, value in parsed:
        if op is ops.LITERAL:
            text += chr(value)
        elif op is ops.NOT_LITERAL:
            text += "x" if value != ord("x") else "y"
        elif op is ops.ANY:
            text += "x"
        elif op is ops.IN:
            text += _one_of(value)
        elif op in _REPEATS:
            text += _sample(value[2]) * max(value[0], 1 if value[1] else 0)
        elif op is ops.SUBPATTERN:
            text += _sample(value[3])
        elif op is ops.BRANCH:
            text += _sample(value[1][0])
        elif op is ops.ATOMIC_GROUP:
            text += _sample(value)
    return text


def _one_of(choices: Any) -> str:
    compiled = _matching(choices)
    for candidate in "a0 xA:/-_.,;=()[]<>{}'\"\t\n|%#@!*+~\x01":
        if compiled(candidate):
            return candidate
    return "x"


def _matching(choices: Any) -> Callable[[str], bool]:
    is_negated = bool(choices) and choices[0][0] is ops.NEGATE

    def matches(character: str) -> bool:
        found = any(_fits(op, value, character) for op, value in choices)
        return found is not is_negated

    return matches


def _fits(op: Any, value: Any, character: str) -> bool:
    if op is ops.LITERAL:
        return ord(character) == value
    if op is ops.RANGE:
        return bool(value[0] <= ord(character) <= value[1])
    if op is not ops.CATEGORY:
        return False
    name = str(value)
    kinds = {"DIGIT": str.isdigit, "SPACE": str.isspace, "WORD": _is_word}
    kind = next(test for word, test in kinds.items() if name.endswith(word))
    return bool(kind(character)) is not ("NOT" in name)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def find_growth(
    work: Callable[[str], object], before: str, pump: str, after: str, *, longest: int = MIB
) -> str:
    """Empty where time grows with the text and no faster, from 256 bytes to `longest`; otherwise
    which sizes took how long. In seconds of this thread's own CPU. It ends with the first size that
    took too long for its length."""
    took: list[float] = []
    size = SHORTEST
    while size <= longest:
        text = before + pump * (size // len(pump)) + after
        limits = (_limit(took, back) for back in _COMPARED if back <= len(took))
        most = min(limits, default=_MOST_AT_FIRST_S)
        # Past ten times it has grown by far, and how far changes no verdict. What gives up counts all
        # threads of the process, the clock this one alone: hence half a second at least.
        by_far = 10 * most
        give_up_s = min(max(by_far, 0.5), most + 2.0)
        spent = measure_cpu(work, text, time.thread_time, give_up_s=give_up_s)
        # Once more where something else may have taken the time.
        if most < spent < min(by_far, give_up_s):
            again = measure_cpu(work, text, time.thread_time, give_up_s=give_up_s)
            spent = min(spent, again)
        took.append(spent)
        if spent > most:
            earlier = took[-4] if len(took) > 3 else took[0]
            return f"{size} bytes took {spent:.3f} s, an eighth of it {earlier:.4f} s"
        # It stops early: were it quadratic, 1 MiB would cost some milliseconds.
        if size >= 128 * KIB and spent < _NOTHING_S:
            break
        size *= 2
    return ""


def _limit(took: list[float], back: int) -> float:
    """What a text may take by the one that was this many steps shorter."""
    return max(took[-back], _SHORTEST_S) * _MOST_GROWTH * 2.0**back
