"""A lease is kept while its turn goes on, and runs out within seconds once nobody works on it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runbooks import heartbeat, leasing, running, services
from runbooks.leasing import LEASE
from runbooks.models import Run
from tests.runbooks.site import Site
from tests.services.ports import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("database_on_disk")]


def _lease(run: Run) -> timedelta:
    """How long after the run's start its lease ends."""
    ends_at = Run.objects.values_list("leased_until", flat=True).get(pk=run.pk)
    assert ends_at is not None
    return ends_at - run.started_at


def test_a_turn_that_takes_long_keeps_its_lease() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    seen: list[timedelta] = []

    def slow(point: str) -> None:
        if point == "leased":
            wait_until(lambda: _lease(run) >= LEASE + 2 * heartbeat.BEAT, within_s=20, what="two beats")
            seen.append(_lease(run))
            assert services.due(site.now + LEASE + timedelta(seconds=1)) == []

    running.advance(run.pk, now=site.now, world=site.world, at=slow)
    assert seen
    run.refresh_from_db()
    assert (run.step, run.leased_until) == (1, None)


def test_a_lease_that_nobody_keeps_runs_out() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    assert leasing.take(run.pk, site.now) is not None
    assert services.due(site.now + LEASE) == []
    assert services.due(site.now + LEASE + timedelta(milliseconds=1)) == [run.pk]


def test_a_lease_that_was_taken_over_is_not_renewed_by_the_late_worker() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    late = leasing.take(run.pk, site.now)
    assert late is not None
    site.now += LEASE + timedelta(seconds=1)
    assert leasing.take(run.pk, site.now) is not None
    with heartbeat.beating(late):
        before = _lease(run)
        with heartbeat.beating(Run(pk=run.pk, fence=run.fence + 2)):
            wait_until(lambda: _lease(run) > before, within_s=20, what="a beat of the one who holds it")
        grown = _lease(run)
        assert grown < before + 3 * heartbeat.BEAT
