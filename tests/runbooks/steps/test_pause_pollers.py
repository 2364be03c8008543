"""The step `pause_pollers`: our own looks are away before a GPU is reset, and come back with the
verification."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.models import Poll
from incidents.polling import poll_pauses
from runbooks.library import library
from runbooks.step import Context, Done, Wait
from runbooks.steps.pause_pollers import DETECTORS, PausePollers
from runbooks.steps.verify import Verify
from tests.runbooks.site import Site, a_context

pytestmark = pytest.mark.django_db


def a_turn(site: Site) -> Context:
    return a_context(site, params=library.plan_step("pause_pollers", {}).params)


def test_pollers_of_the_gpus_are_paused_and_others_are_not() -> None:
    site = Site(nodes=1)
    assert isinstance(PausePollers().run(a_turn(site)), Done)
    assert poll_pauses.get_paused_detectors("gn001", site.now) == set(DETECTORS)


def test_look_that_is_under_way_is_waited_for() -> None:
    site = Site(nodes=1)
    lease = site.now + timedelta(minutes=1)
    Poll.objects.create(
        detector="gpu", kind="node", target="gn001", next_poll_at=site.now, leased_until=lease
    )
    assert isinstance(PausePollers().run(a_turn(site)), Wait)
    Poll.objects.update(leased_until=None)
    assert isinstance(PausePollers().run(a_turn(site)), Done)


def test_pause_ends_with_the_verification() -> None:
    site = Site(nodes=1)
    PausePollers().run(a_turn(site))
    Verify().run(a_context(site))
    assert poll_pauses.get_paused_detectors("gn001", site.now) == frozenset()
