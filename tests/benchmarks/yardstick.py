"""What this machine does today, to read other figures by: `python -m tests.benchmarks.yardstick`.

Machines of one kind differ by a factor of three from day to day. So each bench prints, beside its
own figures, a fixed loop of Python (CPU time, and how much longer it took by the clock: others work
on the machine), an fsync of a page, and with `--slurm` a bare `scontrol update`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fixtures.cluster.slurm_daemons import SlurmDaemons, missing_programs

ROUNDS = 7
STEPS = 300_000
FSYNCS = 40
UPDATES = 20
_PAGE = b"\0" * 4096


@dataclass(frozen=True)
class Loop:
    cpu_ms: float
    wall_ms: float


def run_fixed_loop() -> int:
    """Arithmetic, a dictionary and strings, as the product's own code does."""
    counts: dict[str, int] = {}
    for step in range(STEPS):
        key = f"gn{step % 100:03d}"
        counts[key] = counts.get(key, 0) + step % 7
    return sum(counts.values())


def measure_loop() -> Loop:
    cpu_ms, wall_ms = [], []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        run_fixed_loop()
        cpu_ms.append((time.process_time() - cpu) * 1_000)
        wall_ms.append((time.perf_counter() - wall) * 1_000)
    return Loop(median(cpu_ms), median(wall_ms))


def _measure_ms(act: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        started = time.perf_counter()
        act()
        took.append((time.perf_counter() - started) * 1_000)
    return median(took)


def measure_fsync_ms() -> float:
    with tempfile.TemporaryFile() as file:

        def write_page() -> None:
            file.write(_PAGE)
            file.flush()
            os.fsync(file.fileno())

        return _measure_ms(write_page, FSYNCS)


def measure_scontrol_ms() -> float:
    with (
        tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as directory,
        SlurmDaemons(Path(directory), nodes=("gn001",), cluster_name="yardstick") as daemons,
    ):
        argv = ("scontrol", "update", "NodeName=gn001", "Comment=yardstick")
        return _measure_ms(lambda: daemons.command(*argv), UPDATES)


def format_yardstick(*, with_slurm: bool) -> str:
    loop = measure_loop()
    parts = [
        f"a fixed loop of Python {loop.cpu_ms:.0f} ms of CPU, {loop.wall_ms:.0f} ms by the clock",
        f"an fsync {measure_fsync_ms():.2f} ms",
    ]
    if with_slurm and not missing_programs():
        parts.append(f"a bare scontrol update {measure_scontrol_ms():.1f} ms")
    return f"yardstick: {', '.join(parts)} (medians; load {os.getloadavg()[0]:.1f})"


def main() -> None:
    print(format_yardstick(with_slurm="--slurm" in sys.argv[1:]), flush=True)


if __name__ == "__main__":
    main()
