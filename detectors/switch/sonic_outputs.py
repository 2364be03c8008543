"""What SONiC prints: tables of its `show` commands, and its databases as JSON in the three forms
that occur. Pure.

Forms: `sonic-cfggen -d --print-data` (table, key, fields), `sonic-db-dump -n CONFIG_DB -y`
(`TABLE|key` with the fields below `value`), and plain `TABLE|key` with the fields.
https://github.com/sonic-net/sonic-buildimage, sonic-yang-models Python 3.9, standard library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Optional

Database = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Table name to key to fields. A key has its parts joined by `|`; a field is text, or a list of
texts."""

_RULE = re.compile(r" *(?:-{1,2} +){0,64}---[- ]*")
_COLUMN = re.compile(r"-+")
# A switch with 512 ports and two buffers a port prints some 4,000 rows.
_MOST_ROWS = 20_000
_NO_VALUE = frozenset({"", "N/A", "n/a", "-"})


def parse_table(text: str) -> Iterator[dict[str, str]]:
    """Rows of a table whose columns are told by a line of dashes below the heads; heads in lower
    case.

    What stands before the heads is passed over, and the table ends at an empty line.
    """
    lines = text.splitlines()
    for number in range(1, len(lines)):
        if _RULE.fullmatch(lines[number]) and lines[number - 1].strip():
            spans = [found.span() for found in _COLUMN.finditer(lines[number])]
            yield from _list_rows(
                lines[number - 1], lines[number + 1 : number + 1 + _MOST_ROWS], spans
            )
            return


def _list_rows(
    heads: str, lines: list[str], spans: list[tuple[int, int]]
) -> Iterator[dict[str, str]]:
    names = [name.lower() for name in _split_cells(heads, spans)]
    for line in lines:
        if not line.strip():
            return
        cells = _split_cells(line, spans)
        yield {name: "" if cell in _NO_VALUE else cell for name, cell in zip(names, cells) if name}


def _split_cells(line: str, spans: list[tuple[int, int]]) -> list[str]:
    """A cell reaches to where the next column begins: some releases print values longer than their
    column."""
    starts = [start for start, _ in spans]
    ends = [*starts[1:], len(line)]
    return [line[start:end].strip() for start, end in zip(starts, ends)]


def parse_database(stdout: bytes) -> Optional[dict[str, dict[str, dict[str, Any]]]]:
    """The JSON object in an output, whatever is printed before it; None where there is none."""
    text = stdout.decode("utf-8", "replace")
    start = text.find("{")
    if start < 0:
        return None
    try:
        whole, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return _group_by_table(whole) if isinstance(whole, dict) else None


def _group_by_table(whole: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, held in whole.items():
        if not isinstance(held, dict):
            continue
        separator = "|" if "|" in name else ":"
        first, bar, key = name.partition(separator)
        if bar:
            fields = held["value"] if isinstance(held.get("value"), dict) else held
            found.setdefault(first, {})[key] = dict(fields)
            continue
        rows = {key: dict(fields) for key, fields in held.items() if isinstance(fields, dict)}
        # A table of one row without a key of its own, such as COUNTERS_PORT_NAME_MAP.
        found.setdefault(name, {}).update(rows or {"": dict(held)})
    return found


def get_field(row: Mapping[str, Any], name: str) -> str:
    """One field as text: lists joined by commas, references without their brackets and table, N/A
    as empty."""
    value = row.get(name, row.get(f"{name}@", ""))
    if isinstance(value, list):
        return ",".join(str(each) for each in value)
    text = str(value).strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].rpartition("|")[2]
    return "" if text in _NO_VALUE else text


def parse_gbps(text: str) -> Optional[float]:
    """`400G`, `1000M`, or Mbit/s as the databases hold them (`400000`)."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([GM]?)", text.strip())
    if found is None:
        return None
    number = float(found[1])
    return number if found[2] == "G" else number / 1000
