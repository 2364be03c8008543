"""What Kintsugi makes of the error strings in a program's source, before any machine has printed
them.

A string is what a call logs at a warning or worse, as C and C++ write it: the name of the function
ends in the level (`dev_err`, `SWSS_LOG_ERROR`, `CERROR`, `fatal`), or one of the arguments before
it does (`printk(KERN_ERR ...)`, `NV_PRINTF(LEVEL_ERROR, ...)`). What is put in for its conversions
is made up: a row that looks for the name of a port may pass a line over that it would read.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from detectors.catalog import catalog
from detectors.logs.header import parse_header
from detectors.logs.signatures import Matcher
from detectors.logs.unread import UnreadReader

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
HOST = "gn001"
LINE = "<{priority}>1 2026-11-21T03:59:58Z gn001 kernel - - - {text}"
_FILES = ("*.c", "*.h", "*.cc", "*.cpp", "*.cxx", "*.hpp")
# RFC 5424, 6.2.1.
_SEVERITIES = {"emerg": 0, "alert": 1, "crit": 2, "fatal": 2, "err": 3, "warn": 4}
_LEVEL = r"(?P<level>emerg|alert|crit(?:ical)?|fatal|err(?:or)?|warn(?:ing)?)"
_NAMED_LEVEL = re.compile(
    rf"(?i)(?:^|_|\b[a-z]+log|^c|^l?console_){_LEVEL}(?:_(?:msg|once|rl|ratelimited|v|va|printf))*$"
)
_LEVEL_ARGUMENT = re.compile(rf"(?i)\b[a-z]+(?:_[a-z]+)*_{_LEVEL}s?\b")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_QUOTED = r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
_COMMENT = re.compile(rf"{_QUOTED}|(?P<comment>//[^\n]*|/\*.*?\*/)", re.DOTALL)
# A text or a character, a bracket, what parts arguments, a name, or anything else.
_TOKEN = re.compile(rf"{_QUOTED}|[()\[\]{{}},;]|\w+|\s+|.", re.DOTALL)
# One string with what stands before it seldom takes more.
_LONGEST_CALL = 2000
# A text of one word is a name, seldom a message.
_IS_MESSAGE = re.compile(r"\w.* .*\w", re.DOTALL)
_CONVERSION = re.compile(
    r"%(?:%|p[A-Za-z]\w{0,3}|[-+ #0']*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t|q|L)?[a-zA-Z])"
)
_ESCAPE = re.compile(r"\\(?:[0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)")
_VALUES = {"%": "%", "s": "value", "c": "a", "m": "Input/output error"}
_HEXADECIMAL, _FRACTIONS = "xXp", "aAeEfFgG"


class Reading(StrEnum):
    """What becomes of a line."""

    READ = "read"
    HARMLESS = "harmless"
    LISTED = "listed"
    PASSED_OVER = "passed over"


@dataclass(frozen=True)
class LogString:
    """A text that a program logs, where it stands in the source, and the severity of syslog (0 to
    4) that its level is."""

    text: str
    severity: int
    path: str
    line: int


@dataclass(frozen=True)
class ReadString:
    string: LogString
    reading: Reading
    fault_type: str = ""


def find_strings(source: Path) -> list[LogString]:
    """Those of a file or of all files below a folder, in their order. A text that stands in several
    places is there once. Raises FileNotFoundError."""
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file or folder")
    if source.is_file():
        paths, root = [source], source.parent
    else:
        paths = sorted(path for pattern in _FILES for path in source.rglob(pattern))
        root = source
    found: dict[str, LogString] = {}
    for path in paths:
        for string in _find_in_file(path, str(path.relative_to(root))):
            found.setdefault(string.text, string)
    return list(found.values())


def _find_in_file(path: Path, name: str) -> Iterator[LogString]:
    text = _COMMENT.sub(_get_code, path.read_text(encoding="utf-8", errors="replace"))
    line, counted_to = 1, 0
    for call in _CALL.finditer(text):
        arguments = text[call.end() : call.end() + _LONGEST_CALL]
        before, message = _split_arguments(arguments)
        level = _NAMED_LEVEL.search(call[1]) or _LEVEL_ARGUMENT.search(before)
        if level is None or _IS_MESSAGE.search(message) is None:
            continue
        line += text.count("\n", counted_to, call.start())
        counted_to = call.start()
        yield LogString(message, _get_severity(level["level"]), name, line)


def _get_code(found: re.Match[str]) -> str:
    """Nothing but its lines for a comment."""
    return found[0] if found["comment"] is None else "\n" * found[0].count("\n")


def _get_severity(level: str) -> int:
    word = level.lower()
    return next(value for name, value in _SEVERITIES.items() if word.startswith(name))


def _split_arguments(text: str) -> tuple[str, str]:
    """What stands before the first argument with a text in it, and that argument: its texts
    joined, with a conversion for what stands between them."""
    before: list[str] = []
    parts: list[str] = []
    depth = 1
    for token in _TOKEN.findall(text):
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
        if depth == 0 or token == ";" or (parts and depth == 1 and token == ","):
            break
        if token.startswith('"') and depth == 1:
            parts.append(token[1:-1])
        elif not parts:
            before.append(token)
        elif token[0].isalpha() and depth == 1:
            # `PRIx64` ends a conversion that the text before it has begun.
            parts.append(token[3:4] if token.startswith("PRI") else "%s")
    return "".join(before), "".join(parts)


def make_text(string: str) -> str:
    """The first line of what is printed, with something put in for each conversion."""
    text = _CONVERSION.sub(_get_value, string)
    text = text.replace("\\n", "\n").strip("\n").partition("\n")[0]
    return _ESCAPE.sub(_get_character, text).strip()


def _get_value(conversion: re.Match[str]) -> str:
    found = conversion[0]
    if found.startswith(("%pI", "%pi")):
        return "10.0.0.17"
    if len(found) > 2 and found.startswith("%p"):
        return "value"
    kind = found[-1]
    if kind in _VALUES:
        return _VALUES[kind]
    if kind in _HEXADECIMAL:
        return "1f"
    return "1.5" if kind in _FRACTIONS else "17"


def _get_character(escape: re.Match[str]) -> str:
    character = escape[0][1:]
    return character if character in "\"'\\?" else " "


def read_strings(strings: Sequence[LogString], line: str) -> Iterator[ReadString]:
    """`line` is the form of a whole line, with `{priority}` and `{text}`."""
    matcher = Matcher(catalog.load())
    unread_reader = UnreadReader(matcher)
    for string in strings:
        text = line.replace("{priority}", str(string.severity))
        raw = text.replace("{text}", make_text(string.text)).encode()
        yield _read(string, raw, matcher, unread_reader)


def _read(
    string: LogString, line: bytes, matcher: Matcher, unread_reader: UnreadReader
) -> ReadString:
    facts = matcher.facts(line, default_host=HOST, observed_at=NOW, zone=UTC)
    if facts:
        return ReadString(string, Reading.READ, facts[0].fault_type)
    header = parse_header(line, observed_at=NOW, zone=UTC)
    if matcher.is_read(line, header):
        return ReadString(string, Reading.HARMLESS)
    unread = unread_reader.read(line, default_host=HOST, observed_at=NOW, zone=UTC)
    return ReadString(string, Reading.PASSED_OVER if unread is None else Reading.LISTED)


def format_counts(found: Sequence[ReadString]) -> Iterator[str]:
    """A line for each severity: how many strings, and the share of each reading."""
    yield f"{'severity':>8} {'strings':>8} " + " ".join(f"{kind:>12}" for kind in Reading)
    for severity in sorted({row.string.severity for row in found}):
        rows = [row for row in found if row.string.severity == severity]
        counts = Counter(row.reading for row in rows)
        shares = " ".join(f"{counts[kind] / len(rows):12.0%}" for kind in Reading)
        yield f"{severity:8} {len(rows):8} {shares}"


def _format(row: ReadString) -> str:
    string = row.string
    place = f"{string.path}:{string.line}"
    reading = row.fault_type or row.reading
    return f"{place}\t{string.severity}\t{reading}\t{make_text(string.text)}"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/log-strings", description=__doc__)
    parser.add_argument("source", type=Path, help="a file or a folder of C or C++")
    parser.add_argument(
        "--unlike",
        type=Path,
        metavar="OLDER",
        help="the same of an older release: only what does not stand there",
    )
    parser.add_argument(
        "--line",
        default=LINE,
        metavar="FORM",
        help="how a whole line looks, with {priority} and {text}; by default %(default)r",
    )
    parser.add_argument(
        "--show",
        action="append",
        choices=list(Reading),
        default=[],
        type=Reading,
        help="print these strings too, with their places",
    )
    options = parser.parse_args(arguments)
    if "{text}" not in options.line:
        parser.error("--line: has no {text}, where the message stands")
    return options


def main(arguments: Sequence[str]) -> None:
    options = _parse(arguments)
    try:
        strings = find_strings(options.source)
        known = find_strings(options.unlike) if options.unlike is not None else []
    except OSError as error:
        raise SystemExit(f"script/log-strings: {error}") from error
    texts = {string.text for string in known}
    fresh = [string for string in strings if string.text not in texts]
    found = list(read_strings(fresh, options.line))
    for row in found:
        if row.reading in options.show:
            print(_format(row))
    print("\n".join(format_counts(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
