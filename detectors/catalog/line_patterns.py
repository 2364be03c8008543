"""Patterns of the catalogue's rows, as they take a line apart. Whoever writes a line chooses what
they are tried on: RE2 needs a time that grows as the line does, whatever the pattern is. Python
3.9, standard library alone but for RE2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Optional, Protocol

try:
    import re2
except ImportError:
    re2 = None  # type: ignore[assignment, unused-ignore]

_SYNTAX = "https://github.com/google/re2/wiki/Syntax"


class LineMatch(Protocol):
    """Where a pattern fits a line."""

    def start(self) -> int: ...

    def groupdict(self) -> Mapping[Any, Optional[bytes]]:
        """By name; RE2 gives the names as bytes."""
        ...


class LinePattern(Protocol):
    """A compiled pattern, of RE2 or of `re`, for lines as bytes."""

    def match(self, line: bytes) -> Optional[LineMatch]: ...

    def search(self, line: bytes) -> Optional[LineMatch]: ...


def compile_pattern(pattern: str, *, is_of_site: bool) -> LinePattern:
    """For bytes. Without RE2, as in the check that runs on a node and reads that node's own lines,
    a shipped pattern is tried by `re`, where each is measured (tests/detectors/test_growth.py).
    Raises ValueError for one of a site that RE2 does not know, or where there is no RE2."""
    if re2 is None and not is_of_site:
        return re.compile(pattern.encode())
    return _compile_linear(pattern)


def find_reason(name: str, pattern: str) -> str:
    """Why this pattern of a site, which stands as `name`, is refused; empty where it is not."""
    try:
        _compile_linear(pattern)
    except ValueError as error:
        return f"{name}: {error}"
    return ""


def _compile_linear(pattern: str) -> LinePattern:
    if re2 is None:
        raise ValueError(
            "google-re2 is not installed, without which no pattern of a site is tried on a line:"
            " install it, or take the row out"
        )
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes, as `re` takes them
    options.log_errors = False
    try:
        compiled: LinePattern = re2.compile(pattern.encode(), options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        words = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(
            f"RE2, which tries patterns on lines, refuses it ({words}): write it as"
            f" {_SYNTAX} says, with bounds like {{0,40}}"
        ) from error
    return compiled


def read_groups(found: LineMatch) -> dict[str, bytes]:
    """What the pattern names in the line."""
    groups = {}
    for name, value in found.groupdict().items():
        if value is not None:
            groups[name.decode() if isinstance(name, bytes) else name] = value
    return groups
