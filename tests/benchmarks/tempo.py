"""How long the tiers of the tests take: `python -m tests.benchmarks.tempo [fast] [plain] [deep]`.

By the clock and in CPU seconds of all processes; fast and plain when none is named.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = {"fast": ("--fast",), "plain": (), "deep": ("--deep",)}


def measure(tier: str) -> str:
    before, started = os.times(), time.monotonic()
    done = subprocess.run(
        ["./script/test", *FLAGS[tier]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    wall_s, after = time.monotonic() - started, os.times()
    user_s = after.children_user - before.children_user
    system_s = after.children_system - before.children_system
    counted = [line for line in done.stdout.splitlines() if " passed" in line]
    return (
        f"{tier}: {wall_s:.0f} s by the clock, {user_s + system_s:.0f} s of CPU on"
        f" {os.cpu_count()} cores; {'; '.join(counted) or 'no test passed'}"
    )


def main() -> int:
    tiers = sys.argv[1:] or ["fast", "plain"]
    if unknown := set(tiers) - FLAGS.keys():
        sys.exit(f"no such tier: {', '.join(sorted(unknown))}; there are {', '.join(FLAGS)}")
    for tier in tiers:
        print(measure(tier), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
