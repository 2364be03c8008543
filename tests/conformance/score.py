"""Leave one source out: what signatures written from other sources read of the lines of each.

A row of a table is a labelled line with its `component` and `source` (docs/reference/catalogue.md).
For each source, the signatures that name it as theirs are left out; the rest reads its faulty lines.
"""

import argparse
import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from detectors.catalog import catalog, compiled, grammar
from detectors.cli.explain import explain
from detectors.logs.signatures import Matcher

COMPONENTS = {"nvlink_nvswitch_pcie": "nvlink", "nic_transceiver": "nic"}
NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
_REPOSITORY = re.compile(r"github\.com/([\w.-]+/[\w.-]+)")
_SITE = re.compile(r"https?://([\w.-]+)")
_HEADER = "[[signature]]"
_COLUMNS = ("line", "component", "source")


@dataclass(frozen=True)
class LabelledLine:
    text: str
    component: str
    source: str


@dataclass(frozen=True)
class StatedRow:
    """A signature's row, and what it says that it was written from."""

    row: Mapping[str, Any]
    stated: str


@dataclass(frozen=True)
class Score:
    """Of one source: its faulty lines, how many were read, how many of those as another component,
    and how many signatures were left out."""

    source: str
    lines: int
    read: int
    wrong: int
    left_out: int


def name_source(text: str) -> str:
    """The repository, else the site, else the text itself: what a signature would name."""
    found = _REPOSITORY.search(text) or _SITE.search(text)
    return (found[1] if found else text).lower()


def read_lines(table: str) -> list[LabelledLine]:
    """The faulty lines of a table. Raises ValueError for one without the columns that are
    needed."""
    rows = csv.DictReader(io.StringIO(table), delimiter="\t", quoting=csv.QUOTE_NONE)
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"its first line names no column {', '.join(missing)}")
    return [
        LabelledLine(
            row["line"],
            COMPONENTS.get(row["component"], row["component"]),
            name_source(row["source"]),
        )
        for row in rows
        if row["component"] != "none"
    ]


def read_rows(paths: Sequence[Path]) -> list[StatedRow]:
    """The signatures of the catalogue's files. One without a comment has its type's source."""
    tables = [catalog.tables(path) for path in paths]
    by_type = {
        row["id"]: str(row.get("source", "")) for table in tables for row in table.get("type", ())
    }
    found: list[StatedRow] = []
    for path, table in zip(paths, tables, strict=True):
        comments = _comments_above(path.read_text(encoding="utf-8").splitlines())
        for row, comment in zip(table.get("signature", ()), comments, strict=True):
            found.append(StatedRow(row, comment or _source_of_types(row, by_type)))
        for rule in table.get("grammar", ()):
            found += [StatedRow(row, str(rule["source"])) for row in grammar.expand(rule)]
    return found


def _comments_above(lines: Sequence[str]) -> Iterator[str]:
    comment: list[str] = []
    for line in lines:
        if line.startswith("#"):
            comment.append(line)
            continue
        if line.strip() == _HEADER:
            yield " ".join(comment)
        comment = []


def _source_of_types(row: Mapping[str, Any], by_type: Mapping[str, str]) -> str:
    names = [row["type"]] if isinstance(row["type"], str) else row["type"]
    return " ".join(by_type.get(name, "") for name in names)


def score(lines: Sequence[LabelledLine], paths: Sequence[Path]) -> Iterator[Score]:
    """A score for each source, by name. Raises CatalogError."""
    tables = json.loads(compiled.compile_catalog(paths))
    rows = read_rows(paths)
    matchers: dict[int, Matcher] = {}
    for source, group in groupby(sorted(lines, key=_source), key=_source):
        kept = [row for row in rows if source not in row.stated.lower()]
        left_out = len(rows) - len(kept)
        matcher = matchers.get(0) if left_out == 0 else None
        if matcher is None:
            matcher = Matcher(_catalogue(tables, kept))
        matchers.setdefault(left_out, matcher)
        yield _score_source(source, list(group), matcher, left_out)


def _source(line: LabelledLine) -> str:
    return line.source


def _catalogue(tables: Mapping[str, Any], kept: Sequence[StatedRow]) -> catalog.Catalog:
    return catalog.from_rows({**tables, "signature": [row.row for row in kept]}, "score")


def _score_source(
    source: str, lines: Sequence[LabelledLine], matcher: Matcher, left_out: int
) -> Score:
    texts = (line.text.encode() for line in lines)
    components: dict[int, set[str]] = {}
    for result in explain(texts, matcher, host="-", observed_at=NOW):
        if result.fact is not None:
            components.setdefault(result.line, set()).add(str(result.fact.component))
    wrong = sum(found != {lines[number - 1].component} for number, found in components.items())
    return Score(source, len(lines), len(components), wrong, left_out)


def format_table(scores: Sequence[Score]) -> str:
    """One row for each source and one for all: lines, share read, share in a wrong class."""
    total = Counter[str]()
    for one in scores:
        total.update(lines=one.lines, read=one.read, wrong=one.wrong)
    every = Score("all", total["lines"], total["read"], total["wrong"], 0)
    heading = f"{'source':60} {'lines':>5} {'read':>6} {'wrong':>6} {'left out':>8}"
    return "\n".join([heading, *map(_format, [*scores, every])])


def _format(one: Score) -> str:
    read = one.read / one.lines if one.lines else 0.0
    wrong = one.wrong / one.read if one.read else 0.0
    return f"{one.source[:60]:60} {one.lines:5} {read:6.0%} {wrong:6.1%} {one.left_out:8}"


def main(arguments: Sequence[str]) -> None:
    default = Path(__file__).parents[3] / "shared" / "corpus" / "lines.tsv"
    parser = argparse.ArgumentParser(prog="script/score", description=__doc__)
    parser.add_argument(
        "tables",
        nargs="*",
        type=Path,
        default=[default],
        metavar="TABLE",
        help="tab-separated, with the columns line, component and source in its first line",
    )
    lines: list[LabelledLine] = []
    for table in parser.parse_args(arguments).tables:
        try:
            lines += read_lines(table.read_text(encoding="utf-8"))
        except OSError as error:
            parser.error(f"{table}: {error.strerror}")
        except ValueError as error:
            parser.error(f"{table}: {error}")
    print(format_table(list(score(lines, catalog.files()))))


if __name__ == "__main__":
    main(sys.argv[1:])
