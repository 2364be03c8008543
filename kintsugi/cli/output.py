"""What people and scripts read: tables with a heading, and JSON with times in ISO 8601."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

import typer
from django.utils import timezone

from detectors.resources import printable

JSON_HELP = "print JSON"
MOST_ROWS = 50
_GAP = "  "

Row = Mapping[str, Any]


def echo(text: str = "") -> None:
    """Lines to stdout, of which nothing is for a terminal to obey: rows hold what others wrote."""
    typer.echo(_show_lines(text))


def complain(text: str) -> None:
    """The same to stderr, so that it is in nothing that a script reads."""
    typer.echo(_show_lines(text), err=True)


def _show_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def make_row(source: object, fields: Mapping[str, str]) -> dict[str, Any]:
    """By the key that scripts read, the attribute of `source` that `fields` names."""
    return {key: attrgetter(path)(source) for key, path in fields.items()}


def print_rows(rows: Sequence[Row], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """A table of `columns`, or a JSON list of all that `rows` hold."""
    if as_json:
        print_json(rows)
    elif rows:
        echo(format_table(rows, columns))
    else:
        echo(empty)


def print_facts(facts: Row, *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        echo(f"{_format_heading(name):<{width}}{_GAP}{format_value(value)}".rstrip())


def print_json(value: Any) -> None:
    echo(json.dumps(value, indent=1, default=_as_json))


def print_left_out(shown: int, found: int) -> None:
    if found > shown:
        complain(f"{found - shown} more; --limit {found} shows all.")


def format_table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Columns as wide as their longest value; the last one is not padded."""
    lines = [[_format_heading(column) for column in columns]]
    for row in rows:
        lines.append([format_value(row[column]) for column in columns])
    widths = [max(map(len, values)) for values in zip(*lines, strict=True)]
    return "\n".join(_format_line(line, widths) for line in lines)


def format_value(value: Any) -> str:
    """Times in the site's zone; nothing is a dash, which `cut` and `awk` count as a column. Of what
    others wrote nothing is for the terminal to obey."""
    if value in (None, "", [], ()):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{timezone.localtime(value):%Y-%m-%d %H:%M %Z}"
    if isinstance(value, list | tuple):
        return printable(", ".join(map(str, value)))
    return printable(str(value))


def _format_line(values: Sequence[str], widths: Sequence[int]) -> str:
    padded = map(str.ljust, values, widths)
    return _GAP.join(padded).rstrip()


def _format_heading(name: str) -> str:
    return name.replace("_", " ").upper()


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)
