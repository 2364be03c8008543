"""Parts of patterns that many rows of a file share: `[phrases]` names each, and `{{name}}` in a
pattern stands for it. Pure. Python 3.9, standard library alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TABLE = "phrases"
_FIELDS = ("pattern", "unless", "scan")
_NAMED = re.compile(r"\{\{(\w+)\}\}")


def fill(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The file's tables, each pattern of a row whole. Raises ValueError for a phrase that the file
    does not name."""
    phrases = tables.get(TABLE, {})
    if not isinstance(phrases, Mapping):
        raise ValueError(f"[{TABLE}] is no table of names and patterns")
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
