"""`python -m detectors parse DETECTOR PATH`: what a detector and the catalogue make of a
capture."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from detectors import expected, registry
from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import Detector, Sample, Samples, Target
from detectors.faults import EventKind, Observation
from detectors.logs import log_events


def main(words: Sequence[str]) -> int:
    """Exit code 0, or 2 with a sentence when the input or the catalogue cannot be read."""
    options = _build_parser().parse_args(words)
    try:
        rows = catalog.load()
        detector = registry.get_by_name(options.detector)
        seen = _read_reading(detector, options, rows)
    except (
        captures.CaptureError,
        catalog.CatalogError,
        KeyError,
        OSError,
        ValueError,
        TypeError,
    ) as error:
        print(error.args[0] if error.args else error, file=sys.stderr)
        return 2
    print(json.dumps(captures.to_json(seen), indent=2) if options.json else _print_for_people(seen))
    return 0


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m detectors parse", description=__doc__)
    parser.add_argument("detector", help=", ".join(each.name for each in registry.DETECTORS))
    parser.add_argument(
        "path",
        type=Path,
        help="one output as a file, an SNMP walk (.snmprec), or a capture's folder",
    )
    parser.add_argument(
        "--json", action="store_true", help='{"observations": [...], "faults": [...]}'
    )
    parser.add_argument(
        "--as",
        dest="name",
        default="",
        help="which output the file is; told from its text otherwise",
    )
    parser.add_argument("--host", default="-", help="the machine it was taken on")
    parser.add_argument("--expected", type=Path, help="what the inventory expects there, as JSON")
    return parser


def _read_reading(
    detector: Detector, options: argparse.Namespace, rows: catalog.Catalog
) -> captures.CaptureReading:
    now = datetime.now(timezone.utc)
    if options.path.is_dir():
        return captures.read_capture(detector, options.path, rows, now)
    wanted = (
        expected.from_json(json.loads(options.expected.read_text()))
        if options.expected
        else expected.Expected()
    )
    target = Target(options.host, "127.0.0.1", kind=detector.kind, expected=wanted)
    reading = captures.read_file(options.path, detector, target, now, name=options.name)
    observations = list(detector.parse(reading))
    observations += detector.compare(observations, _find_unread(detector, observations))
    lines = log_events.of_lines([seen for seen in observations if seen.metric == log_events.LINE])
    raised = [event for event in lines if event.event is EventKind.RAISED]
    return captures.CaptureReading(
        observations, [*captures.classify_all(observations, rows), *raised]
    )


def _find_unread(detector: Detector, observations: Sequence[Observation]) -> Samples:
    """A log that comes alone was never read before: all of it is new. Everything else has nothing
    to compare with."""
    kept = [seen for seen in observations if seen.metric in detector.keeps]
    cursors = [seen for seen in kept if seen.metric.endswith("cursor")]
    return {(seen.resource, seen.metric): Sample("", seen.observed_at) for seen in cursors}


def _print_for_people(seen: captures.CaptureReading) -> str:
    lines = [f"{o.resource}  {o.metric} = {o.value}" for o in seen.observations]
    lines += [f"{e.severity}: {e.fault_type} on {e.resource}: {e.excerpt}" for e in seen.events]
    return "\n".join(lines if seen.events else [*lines, "no fault"])
