"""The text that `snmpwalk -On` and `snmpbulkwalk -On` print, as values: what people hand in.
Pure."""

from __future__ import annotations

import re

from detectors.detector import SnmpValue

_LINE = re.compile(r"^\.(?P<oid>\d+(?:\.\d+)+) = (?:(?P<kind>[A-Za-z][\w-]*): ?)?(?P<value>.*)$")
_WHOLE = re.compile(r"-?\d+")
_IN_BRACKETS = re.compile(r"\((-?\d+)\)")
_NUMBERS = frozenset({"INTEGER", "Counter32", "Counter64", "Gauge32", "Timeticks", "UInteger32"})
_MISSING = ("No Such Object", "No Such Instance", "No more variables")


def parse_walk(text: bytes) -> dict[str, SnmpValue]:
    """By OID without its leading dot. A text that goes on over several lines keeps its first; other
    lines are none."""
    found: dict[str, SnmpValue] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        match = _LINE.match(line)
        if match is not None:
            found[match["oid"]] = _parse_value(match["kind"] or "", match["value"].strip())
    return found


def _parse_value(kind: str, text: str) -> SnmpValue:
    if kind in _NUMBERS:
        # `INTEGER: up(1)`, `Timeticks: (4200) 0:00:42.00`, `Gauge32: 800000`, `INTEGER: 41
        # degrees`.
        number = _IN_BRACKETS.search(text) or _WHOLE.match(text)
        return int(number[number.lastindex or 0]) if number is not None else None
    if kind == "Hex-STRING":
        return _parse_octets(text)
    if kind == "OID":
        return text.lstrip(".")
    if text.startswith(_MISSING):
        return None
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    return (text[1:-1] if is_quoted else text).encode()


def _parse_octets(text: str) -> SnmpValue:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None
