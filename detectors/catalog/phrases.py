"""Parts of patterns that many rows share: `{{name}}` in a pattern stands for one that every file
may use, or that its file names in `[phrases]`. Pure. Python 3.9, standard library alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TABLE = "phrases"
# By which a program says that something did not work: they stand in messages of level error of
# Linux 6.12 and not in those of level info.
_WORDS_OF_FAILURE = (
    r"fail(?:ed|ing|ure|s)?",
    r"err(?:or)?s?",
    r"time(?:d |-|d-)?out",
    r"fault(?:ed)?",
    r"fatal",
    r"unable",
    r"can(?:not|.t| not)",
    r"could(?: ?n.t| not)",
    r"invalid",
    r"unexpected(?:ly)?",
    r"mismatch(?:ed|ing)?",
    r"missing",
    r"corrupt(?:ed|ion)?",
    r"abort(?:ed|ing|s)?",
    r"reject(?:ed|ing|s)?",
    r"refus(?:ed|es|ing)",
    r"lost",
    r"dead",
    r"stuck",
    r"hung",
    r"hangs?",
    r"stall(?:ed|s)?",
    r"overflow(?:ed)?",
    r"overrun",
    r"underrun",
    r"exceed(?:s|ed|ing)?",
    r"out of (?:range|memory|resources|space|order|bounds)",
    r"not (?:respon[ds]\w{0,5}|ready|completed?|found|initialized)",
    r"no (?:response|answer)",
    r"bad",
    r"wrong",
    r"bogus",
    r"illegal",
    r"uncorrect\w{1,6}",
    r"unrecover\w{1,5}",
    r"degraded",
    r"offline",
    r"inaccessible",
    r"unresponsive",
    r"crash(?:ed)?",
    r"broken",
    r"parity",
    r"giv(?:ing|en|es?) up",
    r"gave up",
    r"discard(?:ed|ing)?",
    r"dropp(?:ed|ing)",
    r"unhandled",
    r"incorrect(?:ly)?",
    r"conflict\w{0,4}",
    r"undefined",
    r"leak\w{0,4}",
    r"poison\w{0,3}",
    r"inconsistent",
    r"malicious",
    r"no valid",
    r"not valid",
    r"unrecogni[sz]ed",
    r"insufficient",
    r"incompatib\w{2,6}",
    r"exhaust\w{1,4}",
    r"is full",
    r"too (?:many|large|small|big|short|low|high)",
    r"did(?: ?n.t| not)",
    r"oversized",
    r"truncated",
)
_FAILURE = "|".join(_WORDS_OF_FAILURE)
SHARED = {
    "failure": rf"(?i:\b(?:{_FAILURE})\b)",
    "failure_begins": rf"[^\w\n](?i:{_FAILURE})",
}
"""What every file may use. `failure_begins` is for `scan`: blocks of lines are looked through
without the edges of words, and "err" stands in "interrupt"."""
_FIELDS = ("pattern", "unless", "scan")
_NAMED = re.compile(r"\{\{(\w+)\}\}")


def fill(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The file's tables, each pattern of a row whole. Raises ValueError for a phrase that the file
    does not name."""
    own = tables.get(TABLE, {})
    if not isinstance(own, Mapping):
        raise ValueError(f"[{TABLE}] is no table of names and patterns")
    for name in own:
        if name in SHARED:
            raise ValueError(f"[{TABLE}] names {name} anew, which every file may use")
    phrases = dict(SHARED)
    for name, phrase in own.items():
        # A phrase may hold those that stand before it.
        phrases[name] = _fill_field(phrase, phrases)
    filled = {name: rows for name, rows in tables.items() if name != TABLE}
    for name, rows in filled.items():
        if isinstance(rows, list):
            filled[name] = [_fill_row(row, phrases) for row in rows]
    return filled


def _fill_row(row: Any, phrases: Mapping[str, str]) -> Any:
    if not isinstance(row, Mapping):
        return row
    return {
        name: _fill_field(value, phrases) if name in _FIELDS else value
        for name, value in row.items()
    }


def _fill_field(value: Any, phrases: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_fill_field(part, phrases) for part in value]
    if not isinstance(value, str):
        return value
    return _NAMED.sub(lambda found: _get(phrases, found[1]), value)


def _get(phrases: Mapping[str, str], name: str) -> str:
    phrase = phrases.get(name)
    if not isinstance(phrase, str):
        raise ValueError(f"a pattern has {{{{{name}}}}}, and [{TABLE}] names no {name}")
    return phrase
