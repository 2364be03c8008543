"""The text format in which exporters show metrics: Prometheus' 0.0.4 and OpenMetrics. Pure; total
on any bytes.

A sample is read by its own line: the name in HELP and TYPE may differ (dcgm-exporter 3.3 did that)
and is not used. https://prometheus.io/docs/instrumenting/exposition_formats/ . Python 3.9, standard
library alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

# dcgm-exporter shows some 30 fields a GPU; node_exporter some 5,000 samples a node.
MOST_SAMPLES = 500_000
_LONGEST_LINE = 16_384
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:.]*")
_LABEL = re.compile(r"\s*([a-zA-Z_][a-zA-Z0-9_.]*)\s*=\s*\"((?:[^\"\\]|\\.)*)\"\s*(,?)")
_QUOTED_NAME = re.compile(r"\s*\"((?:[^\"\\]|\\.)*)\"\s*(,?)")
_END = re.compile(r"\s*\}")
_VALUE = re.compile(r"\s*(\S+)(?:\s+(-?\d+(?:\.\d+)?))?\s*(?:#\s.*)?$")
_NUMBER = re.compile(
    r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[Ii]nf(?:inity)?|[Nn]a[Nn])"
)
_ESCAPES = {r"\\": "\\", r"\n": "\n", r"\"": '"'}
_ESCAPE = re.compile(r"\\[\\n\"]")


@dataclass(frozen=True)
class Metric:
    """One sample. `value` may be NaN or infinite; `stamp` is the exporter's own, as it stands
    there, if any."""

    name: str
    labels: Mapping[str, str]
    value: float
    stamp: Optional[float] = None


@dataclass(frozen=True)
class Page:
    """The samples in order, and how many lines are neither sample nor comment. `is_cut`: the last
    line is broken."""

    metrics: tuple[Metric, ...]
    unread: int = 0
    is_cut: bool = False


def read(body: bytes) -> Page:
    """Every sample of the page, up to MOST_SAMPLES; the rest counts as cut off."""
    metrics: list[Metric] = []
    unread, last_was_read = 0, True
    lines = body.decode("utf-8", "replace").split("\n")
    for line in lines:
        text = line.rstrip("\r")
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        metric = _parse_sample(text) if len(text) <= _LONGEST_LINE else None
        last_was_read = metric is not None
        if metric is None:
            unread += 1
        elif len(metrics) >= MOST_SAMPLES:
            return Page(tuple(metrics), unread, is_cut=True)
        else:
            metrics.append(metric)
    # A page ends with a line end. Without one the last value may have lost its last digits, so that
    # it is not believed.
    is_cut = bool(lines[-1].strip()) and bool(metrics)
    if is_cut and last_was_read and not lines[-1].lstrip().startswith("#"):
        metrics.pop()
    return Page(tuple(metrics), unread, is_cut)


def _parse_sample(line: str) -> Optional[Metric]:
    found = _NAME.match(line.lstrip())
    start = len(line) - len(line.lstrip())
    name, at = (found[0], start + found.end()) if found else ("", start)
    labels: dict[str, str] = {}
    rest = line[at:].lstrip()
    if rest.startswith("{"):
        inside = _parse_labels(line, line.index("{", at) + 1)
        if inside is None:
            return None
        quoted, labels, at = inside
        name = name or quoted
    value = _VALUE.match(line, at)
    if not name or value is None or not _NUMBER.fullmatch(value[1]):
        return None
    return Metric(name, labels, float(value[1]), float(value[2]) if value[2] else None)


def _parse_labels(line: str, at: int) -> Optional[tuple[str, dict[str, str], int]]:
    """A quoted name if one stands there, the labels, and where they end; None when the braces do
    not close."""
    labels: dict[str, str] = {}
    quoted = ""
    name = _QUOTED_NAME.match(line, at)
    if name is not None:
        quoted, at = _unescape(name[1]), name.end()
    while True:
        end = _END.match(line, at)
        if end is not None:
            return quoted, labels, end.end()
        label = _LABEL.match(line, at)
        if label is None:
            return None
        labels[label[1]] = _unescape(label[2])
        at = label.end()


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES[found[0]], text) if "\\" in text else text
