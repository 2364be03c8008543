"""What the node's own check adds to a job's start, in the Prolog of a real slurmd: answered from
its cache, from before its process to after it."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from tests.detectors.cli.checked_slurm import a_checked_slurm

_JOBS = 100
_LIMIT_MS = 120


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="kintsugi-check-") as name,
        a_checked_slurm(Path(name)) as checked,
    ):
        for _ in range(_JOBS):
            checked.run_job()
        times_ms = checked.list_prolog_times_ms()
        lines = set(checked.read("prolog.out").splitlines())
    cuts = statistics.quantiles(times_ms, n=20)
    print(f"Prolog of {len(times_ms)} jobs: {' | '.join(sorted(lines))}")
    print(
        f"check from its cache: p50 {statistics.median(times_ms):.0f} ms, p95 {cuts[-1]:.0f} ms"
        f" (limit {_LIMIT_MS} ms), longest {max(times_ms):.0f} ms"
    )


if __name__ == "__main__":
    main()
