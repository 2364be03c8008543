"""`./script/gpu-captures DIRECTORY`: the gpu, nvlink and pcie detectors on this machine, kept as
captures.

One folder per detector, in the shape of fixtures/signals: what each command printed, and what we
made of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from platform import node as own_name
from typing import Any

from detectors import registry, resources
from detectors.catalog import catalog
from detectors.cli import captures
from detectors.detector import Detector, DetectorError, Reading, Shell, Target, Transports
from detectors.transports.local import LocalShell

DETECTORS = ("gpu", "nvlink", "pcie")
_NO_ANSWER = (
    "detector.silent",
    "gpu.unresponsive",
    "gpu.driver.mismatch",
    "gpu.driver.unavailable",
)
_NO_DRIVER = (
    "There is no NVIDIA driver here: nvidia-smi is not installed. Run this on a machine with GPUs."
)


def main(words: Sequence[str]) -> int:
    """Exit code 0; 1 with a sentence where there is no driver, or where a detector got no usable
    answer."""
    parser = argparse.ArgumentParser(prog="./script/gpu-captures", description=__doc__)
    parser.add_argument(
        "directory", type=Path, help="where the captures go; folders in it are written anew"
    )
    directory = parser.parse_args(words).directory
    if shutil.which("nvidia-smi") is None:
        print(_NO_DRIVER, file=sys.stderr)
        return 1
    return take_capture(
        directory, LocalShell(), Target(resources.short_host(own_name()), "127.0.0.1")
    )


def take_capture(directory: Path, shell: Shell, target: Target) -> int:
    """One round of each detector, kept and told. Counters are judged by their rise: take two, and
    compare."""
    rows, is_whole = catalog.load(), True
    for name in DETECTORS:
        detector, now = registry.get_by_name(name), datetime.now(timezone.utc)
        try:
            reading = detector.collect(target, Transports(shell=shell), now)
        except DetectorError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        seen = _evaluate(detector, reading, rows)
        folder = directory / name / f"{target.name}-{now:%Y%m%dT%H%M%SZ}"
        keep(reading, seen, folder)
        is_whole = is_whole and not any(event.fault_type in _NO_ANSWER for event in seen.events)
        _print_result(name, seen, folder)
    print(
        "The files hold host name, serial numbers and UUIDs: look them over before you pass"
        " them on."
    )
    return 0 if is_whole else 1


def keep(reading: Reading, seen: captures.CaptureReading, folder: Path) -> None:
    """Writes input.json, each output that is not empty, expected.json and origin.md. Raises
    OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    status = {name: output.status for name, output in reading.outputs.items()}
    setting = {
        "target": reading.target.name,
        "taken_at": reading.taken_at.isoformat(),
        "status": status,
    }
    _write(folder / "input.json", setting)
    for name, output in reading.outputs.items():
        for stream, text in (("stdout", output.stdout), ("stderr", output.stderr)):
            if text:
                (folder / f"input.{name}.{stream}").write_bytes(text)
    _write(folder / "expected.json", captures.to_json(seen))
    took = ", ".join(
        f"{name} {output.took.total_seconds():.2f} s" for name, output in reading.outputs.items()
    )
    origin = (
        f"Taken on {reading.target.name} at {reading.taken_at:%Y-%m-%d %H:%M:%S} UTC by"
        " ./script/gpu-captures"
    )
    (folder / "origin.md").write_text(f"{origin}: {took}.\n", encoding="utf-8")


def _evaluate(
    detector: Detector, reading: Reading, rows: catalog.Catalog
) -> captures.CaptureReading:
    observations = list(detector.parse(reading))
    return captures.CaptureReading(observations, captures.classify_all(observations, rows))


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _print_result(name: str, seen: captures.CaptureReading, folder: Path) -> None:
    print(
        f"{name}: {len(seen.observations)} observations, {len(seen.events) or 'no'} faults, in"
        f" {folder}"
    )
    for observation in seen.observations:
        print(f"  {observation.resource}  {observation.metric} = {observation.value}")
    for event in seen.events:
        print(f"  {event.severity}: {event.fault_type} on {event.resource}: {event.excerpt}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
