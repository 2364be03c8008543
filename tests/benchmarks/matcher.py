"""Lines a second that the whole catalogue is matched against, by engine: `python -m
tests.benchmarks.matcher`.

CPU time of one thread on everyday lines of a node, without faults and with one line in a thousand
an Xid. `facts` is what a hit costs further on: header, groups, judgement.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

from detectors.catalog.catalog import load
from detectors.logs.matcher import ENGINES
from detectors.logs.signatures import Matcher

LINES = 200_000
# A loop of plain `re` is two orders of magnitude slower.
LINES_OF_RE = 2_000
NOW = datetime(2026, 11, 21, tzinfo=UTC)
CALM = (
    "systemd[1]: Started Session {n} of User root.",
    "sshd[{n}]: Accepted publickey for ops from 10.0.0.10 port {n} ssh2: ED25519 SHA256:x",
    "slurmd[{n}]: launch task StepId={n}.0 request from UID:20017 GID:20017 HOST:10.0.0.9 PORT:{n}",
    "kernel: [{n}.617543] perf: interrupt took too long ({n} > 4912), lowering kernel.perf_event_max_sample_rate",
    "kernel: [{n}.617543] mlx5_core 0000:9a:00.0: E-Switch: Total vports 2, per vport: max uc(128) max mc(2048)",
    "kernel: [{n}.617543] nvidia-uvm: Loaded the UVM driver, major device number {n}.",
)
XID = "kernel: [{n}.617543] NVRM: Xid (PCI:0000:9b:00): 31, pid={n}, name=python3, Ch 0000000a, intr 00000000."


def stream(count: int, share: float) -> list[bytes]:
    rng = random.Random(7)
    texts = (XID if rng.random() < share else rng.choice(CALM) for _ in range(count))
    return [
        f"Nov 21 03:59:58 gn{n % 100:03d} {text.format(n=n)}".encode()
        for n, text in enumerate(texts)
    ]


def rate(act: Callable[[bytes], object], lines: list[bytes]) -> str:
    started = time.process_time()
    for line in lines:
        act(line)
    return f"{len(lines) / (time.process_time() - started):>12,.0f}/s"


def main() -> None:
    catalog = load()
    print(f"{len(catalog.types)} fault types, {len(catalog.signatures)} patterns")
    for engine, module in ENGINES.items():
        if module is None:
            print(f"{engine:10} not installed")
            continue
        matcher = Matcher(catalog, engine=engine)
        count = LINES_OF_RE if engine == "re" else LINES
        for share in (0, 0.001):
            print(f"{engine:10} {share:6.1%} faults {rate(matcher.is_hit, stream(count, share))}")
    matcher = Matcher(catalog)
    hits = stream(20_000, 1)
    print(
        f"facts {rate(lambda line: matcher.facts(line, default_host='-', observed_at=NOW, zone=UTC), hits)}"
    )


if __name__ == "__main__":
    main()
