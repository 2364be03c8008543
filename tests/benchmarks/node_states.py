"""What one look at all of Slurm's nodes costs: `python -m tests.benchmarks.node_states [nodes]`.

10,000 nodes as `scontrol show node` prints them, read and kept on a private PostgreSQL with fsync:
a fleet in which nothing has changed, one in which 100 nodes were drained or given back, one in
which 100 began or ended a job, and the first look. Medians of turns on one machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median

from detectors.slurm import output
from detectors.slurm.output import NodeState
from tests.services.postgres import Postgres

NODES, CHANGED, TURNS = 10_000, 100, 21
_BLOCK = """NodeName={name} Arch=x86_64 CoresPerSocket=48
   CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=0.51
   AvailableFeatures=h100
   ActiveFeatures=h100
   Gres=gpu:h100:8(S:0-1)
   NodeAddr={name} NodeHostName={name} Version=24.11.5
   OS=Linux 5.14.0-427.el9.x86_64 #1 SMP PREEMPT_DYNAMIC
   RealMemory=2000000 AllocMem=0 FreeMem=1900000 Sockets=2 Boards=1
   State=IDLE ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu,debug
   BootTime=2026-01-01T00:00:00 SlurmdStartTime=2026-01-01T00:01:00
   LastBusyTime=2026-01-01T00:02:00 ResumeAfterTime=None
   CfgTRES=cpu=192,mem=2000000M,billing=192,gres/gpu=8
   AllocTRES=
   CurrentWatts=0 AveWatts=0

"""


def main() -> int:
    nodes = int(sys.argv[1]) if sys.argv[1:] else NODES
    server = Postgres(is_durable=True).start()
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as scratch:
        os.environ.update(
            DATABASE_URL=server.url,
            KINTSUGI_DATA_DIR=scratch,
            DJANGO_SETTINGS_MODULE="kintsugi.settings",
        )
        try:
            _play(nodes)
        finally:
            server.remove()
    return 0


def _play(count: int) -> None:
    import django  # noqa: PLC0415  the settings name the server

    django.setup()
    from django.core.management import call_command  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    text = "".join(_BLOCK.format(name=f"gn{number:05}") for number in range(count))
    began_s = time.perf_counter()
    well = output.parse_nodes(text)
    _say(f"{count:,} nodes, {len(text) / 1e6:.1f} MB of text")
    _report("reading the text", [(time.perf_counter() - began_s) * 1_000], 0)
    looks = _Looks()
    looks.measure("the first look", [well])
    looks.measure("nothing has changed", [well] * TURNS)
    drained = well | {name: _drain(well[name]) for name in sorted(well)[:CHANGED]}
    changed = f"{CHANGED} drained or given back"
    looks.measure(changed, [drained if turn % 2 else well for turn in range(1, TURNS + 1)])
    busy = well | {name: replace(well[name], base="MIXED") for name in sorted(well)[:CHANGED]}
    looks.measure("(back to the beginning)", [well])
    changed = f"{CHANGED} began or ended a job"
    looks.measure(changed, [busy if turn % 2 else well for turn in range(1, TURNS + 1)])


class _Looks:
    """Looks one after the other, each later than the one before."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def measure(self, name: str, fleets: list[dict[str, NodeState]]) -> None:
        from django.db import connection  # noqa: PLC0415
        from django.test.utils import CaptureQueriesContext  # noqa: PLC0415

        from incidents.inventory import node_states  # noqa: PLC0415

        took_ms, statements = [], []
        for fleet in fleets:
            self.at += timedelta(seconds=5)
            with CaptureQueriesContext(connection) as queries:
                began_s = time.perf_counter()
                node_states.record_look(fleet, self.at, took=timedelta(0), slurm_user="slurm")
                took_ms.append((time.perf_counter() - began_s) * 1_000)
            statements.append(len(queries))
        _report(name, took_ms, round(median(statements)))


def _drain(node: NodeState) -> NodeState:
    at = datetime(2026, 1, 1, 1, tzinfo=UTC)
    flags = frozenset({"DRAIN"})
    return replace(node, flags=flags, reason="bob: tray", reason_set_by="bob", reason_changed_at=at)


def _report(name: str, took_ms: list[float], statements: int) -> None:
    _say(f"    {name:28} {median(took_ms):8.1f} ms  {statements:3} statements")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
