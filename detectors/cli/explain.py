"""What Kintsugi makes of log lines, each judged by itself: for people, or one JSON object per fact.

Never opens a database and never decides over several lines; that is ingest's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import IO, Any
from zoneinfo import ZoneInfo

from detectors.catalog import site_catalog
from detectors.catalog.catalog import CatalogError, load
from detectors.faults import EventKind
from detectors.logs.signatures import Fact, Matcher
from detectors.logs.unread import UnreadLine, UnreadReader
from detectors.resources import UNKNOWN_HOST, printable
from detectors.time_zones import get_zone

# A line beyond this is cut, as the receiver does (docs/reference/contracts.md).
_LONGEST = 64 * 1024
_SAMPLE = 8192
_SHOWN = 160
_CALM = "nothing that Kintsugi would record"
# The first bytes of gzip, bzip2, xz and zstd files.
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")


class _Refused(Exception):
    """The input cannot be read. The message names it and says what to do."""


# What a fact shows of itself as JSON, in this order.
_FACT_KEYS = (
    "fault_type",
    "event",
    "component",
    "severity",
    "resource",
    "host",
    "occurred_at",
    "count",
    "code",
    "action",
    "meaning",
    "decided_by",
)


@dataclass(frozen=True)
class ExplainedLine:
    """One line (1-based number) and the fact it states. A benign line has no fact, nor has one that
    nobody reads: a program that matters says that something failed, and no signature takes it."""

    line: int
    text: str
    fact: Fact | None
    unread: UnreadLine | None = None

    def as_json(self) -> dict[str, Any]:
        fact = self.fact
        unread = None if self.unread is None else self.unread.template
        if fact is None:
            return {"line": self.line, **dict.fromkeys(_FACT_KEYS), "unread": unread}
        values = {key: getattr(fact, key) for key in _FACT_KEYS}
        for key in ("event", "component", "severity", "action"):
            values[key] = str(values[key])
        values["occurred_at"] = fact.occurred_at.isoformat()
        return {"line": self.line, **values, "unread": None}


def explain(
    lines: Iterable[bytes],
    matcher: Matcher,
    *,
    host: str,
    observed_at: datetime,
    zone: tzinfo = UTC,
    year: int | None = None,
) -> Iterator[ExplainedLine]:
    """One or more results per line, in order. `host` is meant where a line names none."""
    unread_reader = UnreadReader(matcher)
    for number, raw in enumerate(lines, 1):
        line = raw[:_LONGEST].rstrip(b"\r\n\0")
        text = printable(line.decode("utf-8", "replace"))
        facts = matcher.facts(
            line, default_host=host, observed_at=observed_at, zone=zone, year=year
        )
        for fact in facts:
            yield ExplainedLine(number, text, fact)
        if not facts:
            unread = unread_reader.read(line, default_host=host, observed_at=observed_at, zone=zone)
            yield ExplainedLine(number, text, None, unread)


def _open_log(path: str) -> AbstractContextManager[IO[bytes]]:
    """The log, at its first byte. Raises _Refused."""
    if path == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        stream = open(path, "rb")  # noqa: SIM115 (the caller closes it)
    except IsADirectoryError as error:
        raise _Refused(
            f"{path}: this is a directory. Name a log file in it, or `-` for standard input."
        ) from error
    except OSError as error:
        raise _Refused(f"{path}: cannot be read ({error.strerror}).") from error
    complaint = _find_complaint(stream.peek(_SAMPLE))  # a pipe cannot be sought back in
    if complaint:
        stream.close()
        raise _Refused(f"{path}: {complaint}")
    return stream


def _find_complaint(sample: bytes) -> str:
    """Why this is no log, or nothing. A few NULs occur in logs after a crash; a file full of them
    is none."""
    if sample.startswith(_PACKED):
        return (
            "this is a compressed file. Unpack it first: `zcat FILE | python -m detectors explain`."
        )
    if sample.count(0) * 10 > len(sample):
        return "this is a binary file, not a log. Write it out as text first."
    return ""


def _parse_zone(name: str) -> ZoneInfo:
    try:
        return get_zone(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{name}: no such time zone; expected a name such as Asia/Tokyo"
        ) from error


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m detectors", description="What Kintsugi sees, on any machine."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    explaining = commands.add_parser(
        "explain", help="say what Kintsugi makes of each line of a log"
    )
    explaining.add_argument(
        "file", nargs="?", default="-", help="a log file; `-` or nothing: standard input"
    )
    explaining.add_argument(
        "--catalog",
        type=Path,
        default=os.environ.get("KINTSUGI_CATALOG_DIR") or None,
        help="the site's own files of the catalogue ($KINTSUGI_CATALOG_DIR)",
    )
    explaining.add_argument("--json", action="store_true", help="one JSON object per fact")
    explaining.add_argument("--all", action="store_true", help="benign lines too")
    explaining.add_argument("--host", default=UNKNOWN_HOST, help="the host of lines that name none")
    explaining.add_argument(
        "--zone", type=_parse_zone, default=UTC, help="time zone of stamps that name none (UTC)"
    )
    explaining.add_argument(
        "--year", type=int, help="year of stamps that name none (the nearest to now)"
    )
    return parser


@lru_cache(maxsize=1)
def _build_matcher(directory: Path | None) -> Matcher:
    """With the site's own files of this directory."""
    site_catalog.set_directory(directory)
    return Matcher(load())


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 for input or a catalogue that cannot be read."""
    chosen = _build_parser().parse_args(arguments)
    try:
        matcher = _build_matcher(chosen.catalog)
        with _open_log(chosen.file) as stream:
            results = explain(
                stream,
                matcher,
                host=chosen.host,
                observed_at=datetime.now(UTC),
                zone=chosen.zone,
                year=chosen.year,
            )
            _print(results, as_json=chosen.json, with_benign=chosen.all)
    except (CatalogError, _Refused) as error:
        print(f"detectors explain: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `explain | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _print(results: Iterable[ExplainedLine], *, as_json: bool, with_benign: bool) -> None:
    lines = facts = benign = unread = last = 0
    families: set[str] = set()
    for result in results:
        if result.fact is not None:
            families.add(load()[result.fact.fault_type].family)
        lines, last = lines + (result.line != last), result.line
        facts += result.fact is not None
        unread += result.unread is not None
        is_benign = result.fact is None and result.unread is None
        benign += is_benign
        if is_benign and not with_benign:
            continue
        print(
            json.dumps(result.as_json(), ensure_ascii=False) if as_json else _format_result(result)
        )
    if not as_json:
        for notice in _list_old_catalogs(families):
            print(notice)
        print(f"{_format_count(lines, 'line')}: {_summarise(facts, unread, benign)}.")


def _list_old_catalogs(families: Collection[str]) -> list[str]:
    """A line for each vendor's list that is old and that a fact was judged by."""
    today = datetime.now(UTC).date()
    catalogs = [row for row in load().vendor_catalogs if row.family in families]
    return [f"{row.format_age(today)}." for row in catalogs if row.is_old(today)]


def _summarise(facts: int, unread: int, benign: int) -> str:
    if not facts and not unread:
        return _CALM
    counts = [_format_count(facts, "fact"), f"{_format_count(benign, 'line')} benign"]
    if unread:
        counts.insert(1, f"{_format_count(unread, 'line')} unread")
    return ", ".join(counts)


def _format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _format_result(result: ExplainedLine) -> str:
    fact = result.fact
    if result.unread is not None:
        return _format_unread(result.unread, result)
    if fact is None:
        return f"line {result.line}: benign\n  > {result.text[:_SHOWN]}\n"
    known = load()
    title = known[fact.fault_type].title
    fitness = known[fact.fault_type].fitness
    what = f"{fact.severity}, asks for: {fact.action}, for jobs its node is: {fitness}"
    if fact.event is EventKind.CLEARED:
        what = "over"
    when = f"{fact.occurred_at:%Y-%m-%d %H:%M:%S %Z}"
    if fact.count > 1:
        when = f"{when}, {fact.count} times"
    heading = f"line {result.line}: {title} ({fact.fault_type})"
    state = f"  {what}; on {fact.resource}, {when}"
    text = f"  decided by {fact.decided_by}\n  > {result.text[:_SHOWN]}"
    advice = known.get_advice(fact.fault_type)
    todo = ""
    if advice is not None and fact.event is not EventKind.CLEARED:
        todo = f"  What you can do: {advice.format(fact.resource)}\n"
    return f"{heading}\n{state}\n  {fact.meaning}\n{todo}{text}\n"


def _format_unread(unread: UnreadLine, result: ExplainedLine) -> str:
    heading = f"line {result.line}: unread"
    meaning = f"{unread.program} says that something failed, and no signature takes it."
    return f"{heading}\n  {meaning}\n  {unread.template[:_SHOWN]}\n  > {result.text[:_SHOWN]}\n"
