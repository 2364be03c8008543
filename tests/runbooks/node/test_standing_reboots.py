"""A reboot of ours that Slurm has still to send, under a drain that is not the run's own: who is told
what of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbooks.node import drains
from runbooks.slurm.ownership import Written
from runbooks.step import Context, format_iso
from tests.runbooks.site import Site, a_context

pytestmark = pytest.mark.django_db


def queued_under(reason: str, *, written: tuple[Written, ...] = ()) -> Context:
    """gn001 of incident 7, whose run has asked for a reboot, drained by now with this reason."""
    site = Site(nodes=1)
    context = a_context(site)
    facts = {"drained_at": format_iso(site.now), "reboot_at": format_iso(site.now)}
    flags = context.state.flags | {"REBOOT_REQUESTED"}
    state = replace(context.state, flags=flags, reason=reason)
    return replace(context, facts=facts, state=state, find_written=lambda incident: written)


def test_a_person_is_told_that_it_stands_under_their_drain_and_how_to_cancel_it() -> None:
    said = drains.withdraw_own_reboot(queued_under("bob: hands inside"))
    assert "since that would take your drain or your words away" in said
    assert "scontrol cancel_reboot gn001" in said


def test_under_the_drain_of_another_run_nobody_is_spoken_to_as_its_owner() -> None:
    reason = "kintsugi:8/site-run gpu.lost: GPU lost"
    said = drains.withdraw_own_reboot(queued_under(reason, written=(Written(reason),)))
    assert said.endswith("since that would take the drain for incident #8 away with it.")


def test_it_is_told_once_of_each_drain() -> None:
    context = queued_under("bob: hands inside")
    assert drains.withdraw_own_reboot(context)
    assert drains.withdraw_own_reboot(context) == ""


@pytest.mark.parametrize("reason", ["Not responding", ""])
def test_on_a_node_that_went_down_in_service_it_is_left_since_it_may_be_a_persons(
    reason: str,
) -> None:
    """A person resumed the node, which cancelled ours, it crashed, and they asked for a reboot: a
    request leaves the reason that stands there."""
    context = queued_under(reason)
    flags = frozenset({"NOT_RESPONDING", "REBOOT_REQUESTED"})
    context = replace(context, state=replace(context.state, base="DOWN", flags=flags))
    said = drains.withdraw_own_reboot(context)
    assert "Whether Kintsugi had asked for that or somebody has since" in said
    assert "scontrol cancel_reboot gn001" in said
    assert drains.is_own_reboot_awaited(context.facts)
    assert drains.REBOOT_CANCELLED not in context.facts
