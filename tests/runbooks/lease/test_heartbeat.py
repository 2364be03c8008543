"""A lease is kept while its turn goes on, and runs out within seconds once nobody works on it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import pytest
from django.db import OperationalError, connection, transaction

from kintsugi.replay import database
from runbooks import services
from runbooks.engine import turn
from runbooks.lease import heartbeat, lease
from runbooks.lease.lease import LEASE
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
            wait_until(
                lambda: _lease(run) >= LEASE + 2 * heartbeat.BEAT, within_s=20, what="two beats"
            )
            seen.append(_lease(run))
            assert services.get_due_runs(site.now + LEASE + timedelta(seconds=1)) == []

    turn.advance(run.pk, now=site.now, world=site.world, at=slow)
    assert seen
    run.refresh_from_db()
    assert (run.step, run.leased_until) == (1, None)


def test_a_turn_is_kept_by_a_heartbeat_that_has_beaten_for_a_replay_before() -> None:
    site = Site(nodes=2)
    run = lease.acquire(site.begin(site.lose_gpu()).pk, site.now)
    assert run is not None
    heart = heartbeat._Heart()
    with database.use_temporary_database(), heart.keep_alive(Run(pk=run.pk, fence=run.fence)):
        begun = heart._turns[(run.pk, run.fence)]
        wait_until(
            lambda: heart._turns[(run.pk, run.fence)] != begun,
            within_s=20,
            what="a beat in the replay",
        )
    before = _lease(run)
    with heart.keep_alive(run):
        wait_until(lambda: _lease(run) > before, within_s=20, what="a beat after the replay")


def test_a_lease_that_nobody_keeps_runs_out() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    assert lease.acquire(run.pk, site.now) is not None
    assert services.get_due_runs(site.now + LEASE) == []
    assert services.get_due_runs(site.now + LEASE + timedelta(milliseconds=1)) == [run.pk]


def test_a_lease_that_was_taken_over_is_not_renewed_by_the_late_worker() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    late = lease.acquire(run.pk, site.now)
    assert late is not None
    site.now += LEASE + timedelta(seconds=1)
    assert lease.acquire(run.pk, site.now) is not None
    with heartbeat.keep_alive(late):
        before = _lease(run)
        with heartbeat.keep_alive(Run(pk=run.pk, fence=run.fence + 2)):
            wait_until(
                lambda: _lease(run) > before, within_s=20, what="a beat of the one who holds it"
            )
        grown = _lease(run)
        assert grown < before + 3 * heartbeat.BEAT


def test_a_beat_that_the_database_refuses_is_made_up_for_by_the_next() -> None:
    site = Site(nodes=2)
    run = lease.acquire(site.begin(site.lose_gpu()).pk, site.now)
    assert run is not None
    before, heart, beat = _lease(run), heartbeat._Heart(), heartbeat.BEAT.total_seconds()
    heart._turns[(run.pk, run.fence)] = (0.0, 0.0)

    def refuse(*_: Any) -> NoReturn:
        raise OperationalError("database is locked")

    with connection.execute_wrapper(refuse):
        heart._renew(heart._get_late(beat), beat)
    assert _lease(run) == before
    heart._renew(heart._get_late(2 * beat), 2 * beat)
    assert _lease(run) == before + 2 * heartbeat.BEAT
    assert heart._get_late(2.5 * beat) == {}


def test_a_turn_within_its_callers_transaction_is_left_alone() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    with transaction.atomic(), heartbeat.keep_alive(run):
        assert (run.pk, run.fence) not in heartbeat._heart._turns
    with heartbeat.keep_alive(run):
        assert (run.pk, run.fence) in heartbeat._heart._turns
