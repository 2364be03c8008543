"""A made month of dry runs: a wrong rule before a patch day, and real faults that people mended
late. The report must not speak for the wrong rule, nor against the true repairs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import pytest

from kintsugi.periodic import job_watch, node_watch
from runbooks import services
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY
from runbooks.models import Mode, Run
from tests.runbooks.site import EPOCH, Site

pytestmark = pytest.mark.django_db
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
SHIFT = 8 * HOUR
# Fourteen days after the first look; the wrong rule speaks on its eve.
PATCH_DAY, EVE = 14 * DAY, timedelta(hours=10)
MENDED_AFTER = 30 * HOUR


class Month:
    """Forty nodes, all runbooks in shadow, and a clock that looks three times a day, and where something happens."""

    def __init__(self) -> None:
        self.site = Site(nodes=40, mode=Mode.SHADOW)
        self.jobs = 0
        self.look()

    def look(self) -> None:
        site = self.site
        node_watch.look_at_nodes(site.now, site.world)
        job_watch.update_jobs(site.now, site.slurm)
        for run_id in services.get_due_runs(site.now):
            services.advance(run_id, now=site.now, world=site.world)

    def pass_time(self, duration: timedelta) -> None:
        self.site.now += duration
        self.look()

    def wait_until(self, after: timedelta) -> None:
        while self.site.now < EPOCH + after:
            self.site.now = min(EPOCH + after, self.site.now + SHIFT)
            self.look()

    def start_runs(self) -> None:
        for run_id in self.site.start():
            services.advance(run_id, now=self.site.now, world=self.site.world)
        for _ in range(2):
            self.pass_time(5 * MINUTE)

    def tell_wrongly(self, node: str) -> None:
        self.site.raise_fault(node)
        self.start_runs()

    def break_node(self, node: str) -> None:
        """Its GPU is really lost, and the job that begins there next is lost with it."""
        self.site.lose_gpu(node)
        self.start_runs()
        self.jobs += 1
        self.site.slurm.add_job(str(self.jobs), nodes=[node])
        self.pass_time(20 * MINUTE)
        self.site.slurm.finish_job(str(self.jobs), "NODE_FAIL")
        self.pass_time(MINUTE)

    def mend(self, nodes: Sequence[str], reason: str) -> None:
        """As a person does it: drain, reboot, resume."""
        for act in (
            partial(self.site.slurm.human_drain, reason=reason),
            self.site.slurm.human_reboot,
            self.site.slurm.human_resume,
        ):
            for node in nodes:
                act(node)
            self.pass_time(5 * MINUTE)

    def play(self) -> None:
        names = self.site.names
        broken_at = {names[20 + turn]: (2 + 3 * turn) * DAY for turn in range(4)}
        broken_at |= {names[24 + turn]: (18 + 3 * turn) * DAY for turn in range(2)}
        plan = [(at, self.break_node, node) for node, at in broken_at.items()]
        plan += [
            (PATCH_DAY - EVE + turn * HOUR / 4, self.tell_wrongly, names[turn])
            for turn in range(12)
        ]
        for at, act, node in sorted(plan, key=lambda step: step[0]):
            if at > PATCH_DAY > self.site.now - EPOCH:
                self.patch()
            self.wait_until(at)
            act(node)
            if act == self.break_node:
                self.wait_until(at + MENDED_AFTER)
                self.mend([node], "GPU lost")
        self.wait_until(30 * DAY)

    def patch(self) -> None:
        self.wait_until(PATCH_DAY)
        for first in range(0, 40, 8):
            self.mend(self.site.names[first : first + 8], "kernel update")


def test_a_month_with_a_wrong_rule_before_a_patch_day() -> None:
    """Counted by acts it read: 36 of 36 acts of the wrong rule agreed with people, who drained,
    rebooted and resumed each node within the day, and 18 of 18 of the true repairs differed."""
    month = Month()
    month.play()
    now = month.site.now
    episodes = services.load_episodes(EPOCH, now)
    assert Run.objects.filter(runbook=DRAIN_REBOOT_VERIFY).count() == len(episodes) == 18
    report = services.compute_report(episodes)
    # R 4.3, binom.test(12, 18)$conf.int: 0.4099 and 0.8666.
    well = report.well
    assert (well.count, well.of) == (12, 18)
    assert (well.low, well.high) == pytest.approx((0.4099, 0.8666), abs=1e-4)
    assert (report.died.count, report.died.of, report.jobs_died) == (6, 6, 6)
    # From Kintsugi's drain, within the minute, to that of the person.
    assert report.hours == pytest.approx(6 * 30, abs=6)
    assert (report.held.count, report.held.of, report.held_hours) == (0, 6, 0)
    assert (report.unknown, report.left_out) == (0, 0)
    (patch,) = services.list_external_drains(EPOCH, now, episodes)
    assert (patch.reason, patch.by) == ("kernel update", "bob")
    # The nodes with an episode of their own stand in that.
    assert len(patch.nodes) == 40 - 16
