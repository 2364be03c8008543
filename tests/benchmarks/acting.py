"""What repairs cost and heal: `python -m tests.benchmarks.acting`, on a stand-in for Slurm and
simulated nodes.

1. A thousand nodes call for a repair at once: how many are out at most, how fast the queue is
   worked through on the runs' own clock, and what one turn costs in statements and in CPU time.
2. Hardware faults whose cure a seed draws (`fixtures/cluster/cures.py`): the share that ends with
   the node back in service without a person, with one click for the cold cycle, and by the vendor;
   and where the time goes. The GPU detector sees each at its own pace, and each node runs a job
   that is waited for.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")
django.setup()

from django.db import connection  # noqa: E402  after the settings

from detectors.catalog import catalog  # noqa: E402
from detectors.detector import Target  # noqa: E402
from detectors.evaluation import classify  # noqa: E402
from detectors.expected import Expected  # noqa: E402
from detectors.faults import Recovery  # noqa: E402
from detectors.node.gpu import GpuDetector  # noqa: E402
from detectors.polling import observe_one  # noqa: E402
from fixtures.cluster.cures import Cures  # noqa: E402
from fixtures.cluster.transports import simulated_transports  # noqa: E402
from incidents import services as incidents  # noqa: E402
from incidents.models import Incident  # noqa: E402
from kintsugi.replay import database  # noqa: E402
from runbooks import services  # noqa: E402
from runbooks.engine import approvals  # noqa: E402
from runbooks.guards.verdicts import Bounds  # noqa: E402
from runbooks.models import Mode, Run, RunState, StepRun  # noqa: E402
from tests.runbooks.site import Site  # noqa: E402

MANY = 1_000
FOR = timedelta(minutes=20)
FAULTS = 200
SEED = 7
# 13.6 % of the jobs of 17 to 32 nodes ran for over a week (arXiv 2604.13600). Of lengths that fall
# off exponentially, what is left when the fault comes has the same mean: 84 h.
JOB = timedelta(weeks=1) / -math.log(0.136)
LADDER = ("gpu_reset", "drain_reboot_verify", "cold_cycle", "vendor_replacement")
# The parts of a repair, by the steps that make them up, each with what was waited for before it.
PARTS = {
    "guards and drain": ("drain",),
    "wait for jobs": ("requeue_dead_jobs", "wait_for_jobs"),
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
            most_out = max(
                most_out, sum(state.is_out for state in site.slurm.read_nodes().values())
            )
    done = Run.objects.filter(state=RunState.SUCCEEDED).count()
    took, spent = time.perf_counter() - begun, time.process_time() - cpu
    hours = MANY / max(done, 1) * (FOR / timedelta(hours=1))
    print(f"in {FOR} of their clock {done} are repaired: all {MANY:,} in {hours:.0f} h")
    each = (
        f"{seen['statements'] / turns:.1f} statements and {spent / turns * 1e3:.1f} ms of CPU each"
    )
    print(f"{turns:,} turns, {each}, {took:.0f} s")
    print(f"at most {most_out} nodes were out")


def what_heals() -> None:
    """Each fault on a node of its own, one after the other, with every rung armed. The limits count
    none of the nodes that wait for their part: the vendor never comes here.
    """
    wide = Bounds(
        FAULTS,
        cap_share=1.0,
        pod_floor=0.0,
        per_hour=FAULTS,
        breaker_share=1.0,
        approval_above=FAULTS,
    )
    site, drawn = Site(nodes=FAULTS, bounds=wide), Counter[str]()
    for runbook in LADDER:
        site.set_mode(Mode.ARMED, runbook)
    cures, ended, dice = Cures(SEED), Counter[str](), random.Random(SEED)
    spent: dict[str, list[float]] = {part: [] for part in ("detect", *PARTS)}
    for name in site.names:
        needs = cures.draw("gpu_ecc_uncorrectable", f"{name}/gpu/0")
        drawn[needs] += 1
        site.slurm.add_job(f"job-{name}", nodes=[name])
        site.nodes.inject("gpu_ecc_uncorrectable", f"{name}/gpu/0", needs=needs)
        began = site.now
        site.now += dice.random() * GpuDetector.every
        incident = _polled(site, name)
        left = timedelta(seconds=dice.expovariate(1 / JOB.total_seconds()))
        spent["detect"].append((site.now - began).total_seconds())
        ended[_climb(site, incident, began + left)] += 1
        for part, seconds in _spent(incident).items():
            spent[part].append(seconds)
    print(
        "what heals is drawn: "
        + ", ".join(f"{needs} {count}" for needs, count in drawn.most_common())
    )
    for how, count in ended.most_common():
        print(f"{how}: {count} of {FAULTS} ({count / FAULTS:.0%})")
    for part, seconds in spent.items():
        print(f"{part}: median {statistics.median(seconds):,.0f} s, at most {max(seconds):,.0f} s")


def _polled(site: Site, name: str) -> Incident:
    """What the GPU detector's next look at the node opens."""
    expected = tuple((str(gpu.index), gpu.pci) for gpu in site.nodes.nodes[name].gpus)
    target = Target(name, name, expected=Expected(gpus=expected))
    seen = observe_one(target, GpuDetector(), simulated_transports(site.nodes), site.now)
    known = catalog.load()
    incidents.ingest(
        [event for one in seen for event in classify.classify(one, (), known)], now=site.now
    )
    return Incident.objects.filter(owner=f"node/{name}").latest("pk")


def _climb(site: Site, incident: Incident, job_ends_at: datetime) -> str:
    """How it ended, by what a person had to do."""
    clicks = 0
    for _ in LADDER:
        site.start()
        run = Run.objects.filter(incident=incident).latest("pk")
        run = site.play(run, until=_waits_for_jobs, limit=timedelta(hours=2))
        if site.now < job_ends_at:
            site.now = job_ends_at
            site.slurm.finish_job(f"job-{run.incident.node.name}")
        run = site.play(run, limit=timedelta(hours=2))
        while run.state == RunState.AWAITING_APPROVAL:
            clicks += 1
            services.approve(
                run.pk, actor="bench", seen=approvals.get_fingerprint(run), now=site.now
            )
            run = site.play(run, limit=timedelta(hours=2))
        if run.state == RunState.SUCCEEDED:
            incident.refresh_from_db()
            cured = Recovery(incident.recovery)
            return f"back in service by {cured}, " + (f"{clicks} click" if clicks else "no person")
        if run.state != RunState.NOT_CURED:
            break
    return f"left to people: {run.runbook} {run.state}"


def _waits_for_jobs(run: Run) -> bool:
    return run.step < len(run.plan) and run.plan[run.step]["step"] == "wait_for_jobs"


def _spent(incident: Incident) -> dict[str, float]:
    """Each step with what was waited for before it, from the moment when the incident was
    opened."""
    part_of = {step: part for part, steps in PARTS.items() for step in steps}
    found, before = dict.fromkeys(PARTS, 0.0), incident.opened_at
    rows = StepRun.objects.filter(
        run__incident=incident, finished_at__isnull=False, name__in=part_of
    )
    for name, ended_at in rows.order_by("finished_at", "pk").values_list("name", "finished_at"):
        assert ended_at is not None
        found[part_of[name]] += (ended_at - before).total_seconds()
        before = ended_at
    return found


def main() -> None:
    logging.disable()
    for measure in (a_thousand_at_once, what_heals):
        print(f"-- {measure.__name__.replace('_', ' ')}")
        with database.use_temporary_database():
            measure()


if __name__ == "__main__":
    main()
