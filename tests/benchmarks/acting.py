"""What repairs cost and heal: `python -m tests.benchmarks.acting`, on a stand-in for Slurm and simulated nodes.

1. A thousand nodes call for a repair at once: how many are out at most, how fast the queue is worked through on the
   runs' own clock, and what one turn costs in statements and in CPU time.
2. Hardware faults whose cure a seed draws (`fixtures/cluster/cures.py`): the share that ends with the node back in
   service without a person, with one click for the cold cycle, and by the vendor; and where the time goes.
"""

from __future__ import annotations

import heapq
import logging
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")
django.setup()

from django.db import connection  # noqa: E402  after the settings

from detectors.faults import Recovery  # noqa: E402
from fixtures.cluster.cures import Cures  # noqa: E402
from fixtures.replay import database  # noqa: E402
from incidents.models import Incident  # noqa: E402
from runbooks import approvals, services  # noqa: E402
from runbooks.models import Mode, Run, RunState, StepRun  # noqa: E402
from runbooks.verdicts import Bounds  # noqa: E402
from tests.runbooks.site import Site  # noqa: E402

MANY = 1_000
FOR = timedelta(minutes=20)
FAULTS = 200
SEED = 7
LADDER = ("gpu_reset", "drain_reboot_verify", "cold_cycle", "vendor_replacement")
# The parts of a repair, by the steps that make them up.
PARTS = {
    "wait for jobs": ("drain", "requeue_dead_jobs", "wait_for_jobs"),
    "confirm": ("confirm_on_node",),
    "act": ("pause_pollers", "reset_gpu", "reboot", "cold_cycle", "wait_for_boot"),
    "verify": ("verify", "resume"),
}


@contextmanager
def counting(seen: Counter[str]) -> Iterator[None]:
    """Counts the statements of the default connection."""

    def count(execute: Any, *given: Any) -> Any:
        seen["statements"] += 1
        return execute(*given)

    with connection.execute_wrapper(count):
        yield


def a_thousand_at_once() -> None:
    bounds = Bounds(breaker_share=1.0, per_hour=MANY)
    site = Site(nodes=MANY, bounds=bounds)
    for name in site.names:
        site.lose_gpu(name)
    site.start()
    queue = [(run.wake_at, run.pk) for run in Run.objects.filter(finished_at=None)]
    heapq.heapify(queue)
    print(f"{len(queue):,} runs wait; the cap of the partition is {bounds.cap_nodes} nodes")
    ends_at, turns, most_out, seen = site.now + FOR, 0, 0, Counter[str]()
    begun, cpu = time.perf_counter(), time.process_time()
    while queue and queue[0][0] <= ends_at:
        wake_at, pk = heapq.heappop(queue)
        site.now = max(site.now, wake_at)
        with counting(seen):
            services.advance(pk, now=site.now, world=site.world)
        turns += 1
        run = Run.objects.get(pk=pk)
        if run.finished_at is None and run.wake_at is not None:
            heapq.heappush(queue, (run.wake_at, pk))
        if turns % 50 == 0:
            most_out = max(most_out, sum(state.is_out for state in site.slurm.nodes().values()))
    done = Run.objects.filter(state=RunState.SUCCEEDED).count()
    took, spent = time.perf_counter() - begun, time.process_time() - cpu
    hours = MANY / max(done, 1) * (FOR / timedelta(hours=1))
    print(f"in {FOR} of their clock {done} are repaired: all {MANY:,} in {hours:.0f} h")
    each = f"{seen['statements'] / turns:.1f} statements and {spent / turns * 1e3:.1f} ms of CPU each"
    print(f"{turns:,} turns, {each}, {took:.0f} s")
    print(f"at most {most_out} nodes were out")


def what_heals() -> None:
    """Each fault on a node of its own, one after the other, with every rung armed. The limits count none of the nodes
    that wait for their part: the vendor never comes here.
    """
    wide = Bounds(FAULTS, cap_share=1.0, pod_floor=0.0, per_hour=FAULTS, breaker_share=1.0, approval_above=FAULTS)
    site, drawn = Site(nodes=FAULTS, bounds=wide), Counter[str]()
    for runbook in LADDER:
        site.set_mode(Mode.ARMED, runbook)
    cures, ended, spent = Cures(SEED), Counter[str](), {part: [] for part in PARTS}
    for name in site.names:
        needs = cures.draw("gpu_ecc_uncorrectable", f"{name}/gpu/0")
        drawn[needs] += 1
        site.nodes.inject("gpu_ecc_uncorrectable", f"{name}/gpu/0", needs=needs)
        incident = site.raise_fault(name, fault_type="gpu.ecc.row_remap_pending")
        ended[_climb(site, incident)] += 1
        for part, seconds in _spent(incident).items():
            spent[part].append(seconds)
    print("what heals is drawn: " + ", ".join(f"{needs} {count}" for needs, count in drawn.most_common()))
    for how, count in ended.most_common():
        print(f"{how}: {count} of {FAULTS} ({count / FAULTS:.0%})")
    for part, seconds in spent.items():
        print(f"{part}: median {statistics.median(seconds):.0f} s, at most {max(seconds):.0f} s")


def _climb(site: Site, incident: Incident) -> str:
    """How it ended, by what a person had to do."""
    clicks = 0
    for _ in LADDER:
        site.start()
        run = Run.objects.filter(incident=incident).latest("pk")
        run = site.play(run, limit=timedelta(hours=2))
        while run.state == RunState.AWAITING_APPROVAL:
            clicks += 1
            services.approve(run.pk, actor="bench", seen=approvals.mark_of(run), now=site.now)
            run = site.play(run, limit=timedelta(hours=2))
        if run.state == RunState.SUCCEEDED:
            incident.refresh_from_db()
            cured = Recovery(incident.recovery)
            return f"back in service by {cured}, " + (f"{clicks} click" if clicks else "no person")
        if run.state != RunState.NOT_CURED:
            break
    return f"left to people: {run.runbook} {run.state}"


def _spent(incident: Incident) -> dict[str, float]:
    rows = StepRun.objects.filter(run__incident=incident, finished_at__isnull=False)
    by_step = Counter[str]()
    for row in rows:
        by_step[row.name] += (row.finished_at - row.started_at).total_seconds()  # type: ignore[operator]
    return {part: sum(by_step[step] for step in steps) for part, steps in PARTS.items()}


def main() -> None:
    logging.disable()
    for measure in (a_thousand_at_once, what_heals):
        print(f"-- {measure.__name__.replace('_', ' ')}")
        with database.temporary():
            measure()


if __name__ == "__main__":
    main()
