"""Many runs wait for room: who came first asks first, and slurmctld is not asked by all of them
each minute."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runbooks.guards.verdicts import Bounds
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def test_runs_that_wait_for_room_ask_in_turns_of_twenty_the_oldest_first() -> None:
    site = Site(nodes=46, bounds=Bounds(cap_nodes=1, breaker_share=1.0, per_hour=1000))
    incidents = [site.lose_gpu(name) for name in site.names]
    site.start()
    first, *others = [site.run_of(incident) for incident in incidents]
    assert site.advance(first).claimed_at is not None
    asked_again = [site.advance(run).wake_at for run in others]
    minute = timedelta(minutes=1)
    assert [at - site.now for at in asked_again if at] == [minute] * 20 + [2 * minute] * 20 + [
        3 * minute
    ] * 5


def test_the_oldest_takes_the_place_that_comes_free() -> None:
    site = Site(nodes=4, bounds=Bounds(cap_nodes=1, breaker_share=1.0, per_hour=1000))
    incidents = [site.lose_gpu(name) for name in site.names]
    site.start()
    first, second, third, _ = [site.run_of(incident) for incident in incidents]
    site.advance(first)
    site.advance(second)
    site.advance(third)
    site.play(first)
    site.now += timedelta(minutes=5)
    assert site.advance(second).claimed_at is not None
    assert site.advance(third).claimed_at is None
