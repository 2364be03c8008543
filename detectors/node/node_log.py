"""Kernel lines of a node from its journal, for sites that forward no syslog. Knows no line's
meaning.

Each round reads the last quarter of an hour. Where the round before ended is a journal cursor among
its samples: what stands after it is new. The window is longer than the pace, so that rounds may
fail, and nothing is lost or told twice; at first sight all of it is old. Python 3.9, standard
library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Optional

from detectors.detector import (
    Command,
    NothingToCompare,
    Output,
    Reading,
    Samples,
    Target,
    TargetKind,
    Transports,
)
from detectors.faults import Observation

WINDOW = timedelta(minutes=15)
# A storm writes thousands of lines a second; the newest are read, and that some are missing is
# told.
MOST_LINES = 5000
_LONGEST_LINE = 8192
_FIELDS = "MESSAGE,PRIORITY,_SOURCE_MONOTONIC_TIMESTAMP"
# systemd.journal-fields(7). `journalctl -k` would hide the boot before, and with it what a node
# said last.
_COMMAND = Command(
    "journal",
    (
        *("journalctl", "--no-pager", "--output=json", f"--output-fields={_FIELDS}"),
        *(f"--since=-{WINDOW.seconds}s", f"--lines={MOST_LINES}", "_TRANSPORT=kernel"),
    ),
    timeout=timedelta(seconds=20),
    as_root=True,
)
# The last entry of any program: a quiet kernel is told from a journal that nobody writes.
_ALIVE = Command(
    "last",
    ("journalctl", "--no-pager", "--output=json", "--output-fields=PRIORITY", "--lines=1"),
    timeout=timedelta(seconds=10),
    as_root=True,
)
# Without root and outside of the group systemd-journal it shows nothing and ends well.
_NOT_ALLOWED = re.compile(rb"insufficient permissions|not seeing messages from other users")
_NO_ENTRIES = b"-- No entries --"
_SEEN_AT = re.compile(r"(?:^|;)t=([0-9a-f]{1,16})(?:;|$)")
# Lines of `journalctl` in its other forms, of dmesg and of /dev/kmsg: what people hand in.
_TEXT_LINE = re.compile(rb"\[\s*\d+\.\d+\]|^\d+,\d+,\d+,|^<\d+>|\bkernel: |^-- ", re.MULTILINE)


class NodeLogDetector(NothingToCompare):
    """Observes `log.shown` for each line, and by comparing with the round before `log.line` for
    each that is new."""

    name: ClassVar[str] = "node_log"
    kind: ClassVar[TargetKind] = TargetKind.NODE
    every: ClassVar[timedelta] = timedelta(seconds=60)
    families: ClassVar[frozenset[str]] = frozenset({"log"})
    for_the_record: ClassVar[frozenset[str]] = frozenset(
        {
            "log.line",
            "log.shown",
        }
    )
    keeps: ClassVar[frozenset[str]] = frozenset({"log.cursor"})

    def wants(self, target: Target) -> bool:
        return True

    def collect(self, target: Target, via: Transports, now: datetime) -> Reading:
        """Two looks into the journal. Raises DetectorError: the node is out of reach, or its last
        round still runs."""
        return Reading(
            self.name, target, now, via.shell.run_all(target, self.name, [_COMMAND, _ALIVE])
        )

    def sniff(self, text: bytes) -> str:
        return "journal" if text.lstrip().startswith(b"{") else "text"

    def parse(self, reading: Reading) -> Iterator[Observation]:
        name, output = next(
            iter(reading.outputs.items()), ("journal", Output(1, b"", b"", timedelta(0)))
        )
        trouble = find_complaint(name, output)
        if trouble:
            yield reading.silent(trouble)
            return
        cursor = ""
        for line, place in read_lines(name, output.stdout, reading.target.name):
            cursor = place
            yield reading.saw("log.shown", line, cursor=place)
        if cursor:
            yield reading.saw("log.cursor", cursor)
        elif "last" in reading.outputs and not reading.outputs["last"].stdout.strip():
            yield reading.silent(
                f"journalctl: the journal holds nothing at all: {reading.outputs['last'].complaint}"
            )
            return
        elif output.stdout.strip() and _NO_ENTRIES not in output.stdout:
            yield reading.silent(f"journalctl: no line of it can be read: {output.complaint}")
            return
        yield reading.answered()

    def compare(self, now: Sequence[Observation], before: Samples) -> Iterator[Observation]:
        """The new lines, and whether any were missed in between. Says nothing after a round without
        an answer."""
        answer = next((o for o in now if o.metric == "detector.answered" and o.value is True), None)
        if answer is None:
            return
        shown = [o for o in now if o.metric == "log.shown"]
        last = before.get((answer.resource, "log.cursor"))
        if not shown:  # the place is kept, and that it was looked at
            yield Observation(
                answer.resource, "log.cursor", last.value if last else "", answer.observed_at
            )
        if last is None:
            return
        places = [o.attributes.get("cursor", "") for o in shown]
        known = places.index(last.value) + 1 if last.value in places else 0
        fresh = shown[known:] if known else [o for o in shown if not _is_older(o, str(last.value))]
        missed = "" if known else _find_gap(str(last.value), places, answer.observed_at - last.at)
        text = (
            f"since {last.at:%Y-%m-%d %H:%M:%S %Z} kernel lines were lost: {missed}"
            if missed
            else "no line was lost"
        )
        yield Observation(
            answer.resource, "log.complete", not missed, answer.observed_at, {"text": text}
        )
        for line in fresh:
            yield Observation(
                line.resource, "log.line", line.value, line.observed_at, line.attributes
            )


def _find_gap(last: str, places: Sequence[str], apart: timedelta) -> str:
    """Why lines between the last round's place and the first line shown are not known; empty when
    none are missing."""
    if apart > WINDOW:
        return (
            f"the journal was last read {int(apart.total_seconds())} s ago, and is read"
            f" {WINDOW.seconds} s back"
        )
    if len(places) >= MOST_LINES:
        return f"more than {MOST_LINES} were written"
    then, first = _SEEN_AT.search(last), _SEEN_AT.search(places[0]) if places else None
    if then and first and int(first[1], 16) < int(then[1], 16):
        return "the journal was rotated or cleared, and no longer holds the line that was read last"
    return ""


def _is_older(line: Observation, last: str) -> bool:
    """By the journal's own clock, where the line that was read last no longer stands in it."""
    last_time, line_time = _SEEN_AT.search(last), _SEEN_AT.search(line.attributes.get("cursor", ""))
    return bool(last_time and line_time and int(line_time[1], 16) <= int(last_time[1], 16))


def find_complaint(name: str, output: Output) -> str:
    """Empty where the output can be read; a quiet kernel leaves it empty too."""
    if output.status != 0:
        return f"journalctl: {output.complaint}"
    if _NOT_ALLOWED.search(output.stderr):
        return f"journalctl: {' '.join(output.stderr.decode('utf-8', 'replace').split())[:200]}"
    if (
        name != "journal"
        and _NO_ENTRIES not in output.stdout
        and not _TEXT_LINE.search(output.stdout)
    ):
        return f"this is no kernel log: {output.complaint}"
    return ""


def read_lines(
    name: str, stdout: bytes, host: str, *, most: int = MOST_LINES
) -> Iterator[tuple[str, str]]:
    """Each of the last `most` lines as a syslog line of the kernel, with its place in the journal.
    Lines that are cut off are left out."""
    for number, raw in enumerate(stdout.splitlines()[-most:]):
        if name != "journal":
            if raw.strip() and not raw.startswith(b"-- "):
                yield raw[:_LONGEST_LINE].decode("utf-8", "replace"), f"n={number}"
            continue
        entry = _parse_entry(raw)
        if entry is not None and entry.get("__CURSOR"):
            yield _format_syslog(entry, host), str(entry["__CURSOR"])[:400]


def _parse_entry(raw: bytes) -> Optional[dict[str, Any]]:
    if not raw.lstrip().startswith(b"{"):
        return None
    try:
        found = json.loads(raw[: 4 * _LONGEST_LINE])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _format_syslog(entry: dict[str, Any], host: str) -> str:
    """RFC 5424 with printk's stamp, as forwarded lines have it: one line by two paths folds to one
    fault."""
    seconds = _parse_number(entry.get("__REALTIME_TIMESTAMP")) / 1e6
    try:
        stamp = datetime.fromtimestamp(seconds, tz=timezone.utc).isoformat() if seconds else "-"
    except (ValueError, OverflowError, OSError):
        stamp = "-"
    since_boot = entry.get("_SOURCE_MONOTONIC_TIMESTAMP")
    micros = _parse_number(since_boot)
    printk = (
        f"[{micros // 1_000_000:5d}.{micros % 1_000_000:06d}] " if since_boot is not None else ""
    )
    priority = min(max(_parse_number(entry.get("PRIORITY", "6")), 0), 7)
    message = _parse_message(entry.get("MESSAGE"))
    line = f"<{priority}>1 {stamp} {host or '-'} kernel - - - {printk}{message}"
    return line[:_LONGEST_LINE]


def _parse_message(value: object) -> str:
    """Text; bytes that are no UTF-8 come as a list of numbers (systemd's Journal JSON format)."""
    if isinstance(value, list):
        codes = [
            code for code in value[:_LONGEST_LINE] if isinstance(code, int) and 0 <= code < 256
        ]
        value = bytes(codes).decode("utf-8", "replace")
    return " ".join(str(value or "").split("\n"))


def _parse_number(value: object) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
