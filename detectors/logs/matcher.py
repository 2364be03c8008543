"""Which of many patterns occur in a line of bytes: the hot path, before anything is parsed.

One interface with three engines behind it: hyperscan, google-re2, plain `re`; the same results from
each. Block mode on whole lines. A matcher is not thread-safe: one per thread. What hyperscan
compiled is kept on disk (`pattern_cache`) and shared by all threads. Measured in tests/benchmarks.
"""

from __future__ import annotations

import contextlib
import platform
import re
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, Optional, Protocol

from detectors.logs import pattern_cache

try:
    import hyperscan  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # no wheel for this machine
    hyperscan = None  # type: ignore[assignment, unused-ignore]
try:
    import re2  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    re2 = None  # type: ignore[assignment, unused-ignore]

# In order of preference; None where it is not installed.
ENGINES: dict[str, Optional[ModuleType]] = {"hyperscan": hyperscan, "re2": re2, "re": re}


class PatternError(Exception):
    """An engine refuses a pattern: says which and why."""


class LineMatcher(Protocol):
    """Finds the patterns that occur somewhere in a line."""

    def match(self, line: bytes) -> list[int]:
        """The ids of all that occur, ascending, each once."""
        ...

    def has_match(self, line: bytes) -> bool:
        """Whether any does."""
        ...

    def find_lines(self, block: bytes) -> list[bytes]:
        """The lines of `block` (LF between them) that may match, in their order: all that do, and
        some that do not."""
        ...


# Two threads that begin together compile once.
_databases_lock = threading.Lock()
# What costs hyperscan most on a block of lines, and what it may match instead: more, never less. A
# class of all but some bytes would go on into the next lines, and what a pattern ends with may end
# at each byte.
_LOOSER = (
    (re.compile(rb"\.\{0,\d+\}"), rb".*"),
    (re.compile(rb"(?<!\\)\\b"), b""),
    (re.compile(rb"(?<!\\)\[\^(\]?)"), rb"[^\1\\n"),
    (re.compile(rb"(?<![\\(|])(?:\.\*|\(\?P<\w+>\.\*\))\$?$"), b""),
)
# What begins a message, and somewhere behind it words of any case: the words alone are looked for,
# which many patterns share. What may begin a message stands in most lines, and from each such place
# on the rest of the line would be read for each pattern.
_BEFORE_WORDS, _WORDS = rb".*", rb"[^\w\n](?i:"
# The same for what ends in many words of one case: they are looked for by themselves faster than
# behind each line of a driver's. Few words, or short ones, would be found in other lines too often
# (our choice).
_BEFORE_MANY, _MANY, _LEAST_WORD = rb".*(?:", 12, 4
_PLAIN_WORDS = re.compile(rb"(?:\\.|[^\\()\[\]{}*+^$])+\)", re.DOTALL)
_NO_BRACKET = re.compile(rb"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_TOKEN = re.compile(rb"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
# Ends of matches in one block that are looked at, at some 0.2 us each: ten times the lines of a
# block of 16 KiB and more (our choice). One that has more is looked at line by line.
_MOST_ENDS = 2_000


class _Hyperscan:
    """Databases are the process's, made once and never changed; the scratch is its own."""

    def __init__(self, engine: Any, patterns: Sequence[tuple[int, bytes]]) -> None:
        found: list[int] = []
        ends: list[int] = []

        def keep(number: int, _start: int, _end: int, _flags: int, _context: object) -> None:
            found.append(number)

        def keep_end(_number: int, _start: int, end: int, _flags: int, _context: object) -> bool:
            ends.append(end)
            return len(ends) > _MOST_ENDS

        self._found, self._ends = found, ends
        self._terminated = engine.ScanTerminated
        looser = tuple(enumerate(sorted({_loosen(pattern) for _, pattern in patterns})))
        # Bound once: what a call costs in Python is a third of the time of a line without a match.
        of_line = engine.HS_FLAG_SINGLEMATCH | engine.HS_FLAG_ALLOWEMPTY
        # Each match is told, since each line is asked for; in any order.
        of_block = engine.HS_FLAG_MULTILINE | engine.HS_FLAG_ALLOWEMPTY
        self._scan = _make_scanner(engine, tuple(patterns), of_line, keep)
        self._scan_block = _make_scanner(engine, looser, of_block, keep_end)

    def match(self, line: bytes) -> list[int]:
        self._found.clear()
        self._scan(line)
        return sorted(self._found)

    def has_match(self, line: bytes) -> bool:
        self._found.clear()
        self._scan(line)
        return bool(self._found)

    def find_lines(self, block: bytes) -> list[bytes]:
        self._ends.clear()
        try:
            self._scan_block(block)
        except self._terminated:
            return block.split(b"\n")
        return _get_lines_at(block, sorted(self._ends)) if self._ends else []


def _loosen(pattern: bytes) -> bytes:
    """One that matches each line that `pattern` does."""
    head, mark, words = pattern.rpartition(_BEFORE_WORDS + _WORDS)
    if mark and _is_sequence(head):
        pattern = _WORDS + words
    head, mark, words = pattern.rpartition(_BEFORE_MANY)
    if mark and _is_sequence(head) and _are_many(words):
        pattern = _BEFORE_MANY.removeprefix(_BEFORE_WORDS) + words
    for costly, instead in _LOOSER:
        pattern = costly.sub(instead, pattern)
    return _drop_optional_end(pattern)


def _are_many(words: bytes) -> bool:
    """Whether these are so many alternatives to its end, and each would be found by itself."""
    alternatives = words[:-1].split(b"|")
    is_plain = _PLAIN_WORDS.fullmatch(words) is not None
    return is_plain and len(alternatives) >= _MANY and min(map(len, alternatives)) >= _LEAST_WORD


def _drop_optional_end(pattern: bytes) -> bytes:
    """Without what need not follow at its end, where each byte would be another end of a match."""
    tokens = _TOKEN.findall(pattern)
    while len(tokens) > 2 and tokens[-1] in (b"?", b"*", b"+"):
        begin = _begin_of_repeated(tokens)
        kept = tokens[:-1] if tokens[-1] == b"+" else tokens[:begin]
        if begin is None or not kept or kept[-1] in (b"|", b"^", b"("):
            break
        tokens = kept
    return b"".join(tokens)


def _begin_of_repeated(tokens: list[bytes]) -> Optional[int]:
    """Where what the last token repeats begins; None where that is not plain."""
    before = tokens[-2]
    if before != b")":
        is_plain = len(before) > 1 or before not in b"(|^$?*+{}"
        return len(tokens) - 2 if is_plain else None
    depth = 0
    for number in range(len(tokens) - 2, -1, -1):
        depth += (tokens[number] == b")") - (tokens[number] == b"(")
        if depth == 0:
            return number
    return None


def _is_sequence(pattern: bytes) -> bool:
    """Whether its parts follow each other, and are no alternatives; brackets count as they stand in
    pairs."""
    depth = 0
    for byte in _NO_BRACKET.sub(b"", pattern):
        depth += (byte == ord("(")) - (byte == ord(")"))
        if depth < 0 or (byte == ord("|") and depth == 0):
            return False
    return depth == 0


def _get_lines_at(block: bytes, ends: Sequence[int]) -> list[bytes]:
    """The lines in which matches end, at these ascending places: at its LF a line's own ends."""
    lines: list[bytes] = []
    end_of_last = -1
    for end in ends:
        if end <= end_of_last:
            continue
        start = block.rfind(b"\n", 0, end) + 1
        end_of_last = block.find(b"\n", end)
        if end_of_last < 0:
            end_of_last = len(block)
        lines.append(block[start:end_of_last])
    return lines


def _find_by_halves(lines: list[bytes], occurs: Callable[[bytes], object]) -> list[bytes]:
    """Those of an engine that says only whether one is among them."""
    if not occurs(b"\n".join(lines)):
        return []
    if len(lines) == 1:
        return lines
    half = len(lines) // 2
    return _find_by_halves(lines[:half], occurs) + _find_by_halves(lines[half:], occurs)


def _make_scanner(
    engine: Any, patterns: tuple[tuple[int, bytes], ...], flags: int, keep: Callable[..., object]
) -> Callable[[bytes], object]:
    with _databases_lock:
        database = _load_database(engine, patterns, flags)
    return partial(database.scan, match_event_handler=keep, scratch=engine.Scratch(database))


@lru_cache(maxsize=8)
def _load_database(engine: Any, patterns: tuple[tuple[int, bytes], ...], flags: int) -> Any:
    """The compiled patterns, from disk where they were compiled before. Raises PatternError."""
    numbered = [part for number, pattern in patterns for part in (b"%d" % number, pattern)]
    machine = (engine.__version__.encode(), platform.machine().encode())
    key = pattern_cache.key_of([*machine, b"%d" % flags, *numbered])
    kept = pattern_cache.load(key)
    if kept is not None:
        # Another processor or another build of hyperscan wrote it: it says so, and is replaced.
        with contextlib.suppress(engine.error):
            return engine.loadb(kept, mode=engine.HS_MODE_BLOCK)
    database = _compile(engine, patterns, flags)
    pattern_cache.store(key, engine.dumpb(database))
    return database


def _compile(engine: Any, patterns: tuple[tuple[int, bytes], ...], flags: int) -> Any:
    database = engine.Database(mode=engine.HS_MODE_BLOCK)
    expressions, numbers = [pattern for _, pattern in patterns], [number for number, _ in patterns]
    try:
        database.compile(expressions=expressions, ids=numbers, flags=[flags] * len(patterns))
    except engine.error as error:
        raise PatternError(f"hyperscan: {error}") from error
    return database


# Of RE2's default, 8 MiB, all signatures as one set ask for more than there is.
_RE2_MEMORY = 512 * 1024 * 1024


class _Re2:
    def __init__(self, engine: Any, patterns: Sequence[tuple[int, bytes]]) -> None:
        options = engine.Options()
        options.encoding = engine.Options.Encoding.LATIN1
        options.never_nl = False
        options.max_mem = _RE2_MEMORY
        self._numbers = [number for number, _ in patterns]
        self._set = engine.Set.SearchSet(options)
        self._of_block = engine.Set.SearchSet(options)
        for number, pattern in patterns:
            try:
                self._set.Add(pattern)
                self._of_block.Add(b"(?m)" + pattern)
            except engine.error as error:
                raise PatternError(f"re2: pattern {number}: {error}") from error
        self._set.Compile()
        self._of_block.Compile()

    def match(self, line: bytes) -> list[int]:
        return sorted(self._numbers[index] for index in self._set.Match(line) or ())

    def has_match(self, line: bytes) -> bool:
        return bool(self._set.Match(line))

    def find_lines(self, block: bytes) -> list[bytes]:
        return _find_by_halves(block.split(b"\n"), self._of_block.Match)


class _Plain:
    def __init__(self, _engine: Any, patterns: Sequence[tuple[int, bytes]]) -> None:
        try:
            self._patterns = [(number, re.compile(pattern)) for number, pattern in patterns]
            self._of_block = [re.compile(pattern, re.MULTILINE) for _, pattern in patterns]
        except re.error as error:
            raise PatternError(f"re: {error}") from error

    def match(self, line: bytes) -> list[int]:
        return sorted(number for number, pattern in self._patterns if pattern.search(line))

    def has_match(self, line: bytes) -> bool:
        return any(pattern.search(line) for _, pattern in self._patterns)

    def find_lines(self, block: bytes) -> list[bytes]:
        return _find_by_halves(block.split(b"\n"), self._has_match)

    def _has_match(self, block: bytes) -> bool:
        return any(pattern.search(block) for pattern in self._of_block)


_CLASSES: dict[str, Callable[[Any, Sequence[tuple[int, bytes]]], LineMatcher]] = {
    "hyperscan": _Hyperscan,
    "re2": _Re2,
    "re": _Plain,
}


def compile_patterns(patterns: Sequence[tuple[int, bytes]], *, engine: str = "") -> LineMatcher:
    """A matcher for (id, pattern) pairs on the best engine that is installed, or on the one named.

    Raises PatternError when a pattern does not compile, LookupError when the named engine is not
    installed.
    """
    name = engine or next(name for name, module in ENGINES.items() if module is not None)
    module = ENGINES.get(name)
    if module is None:
        raise LookupError(
            f"{name} is not installed here; there are"
            f" {', '.join(n for n, m in ENGINES.items() if m)}"
        )
    return _CLASSES[name if patterns else "re"](module, patterns)
