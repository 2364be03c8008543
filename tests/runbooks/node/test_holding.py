"""A drain that slurmctld has forgotten is none that a person has ended."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runbooks.models import Run, RunState
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def _drained(site: Site) -> Run:
    return site.advance(site.begin(site.lose_gpu()))


def _lose_drain(site: Site, *, began_after: timedelta) -> None:
    """slurmctld died and began anew without what it was told last."""
    began_at = site.now + began_after
    site.slurm.configure("BOOT_TIME", f"{began_at:%Y-%m-%dT%H:%M:%S}")
    site.slurm.human_resume("gn001")
    site.now += timedelta(minutes=2)


def test_a_drain_lost_by_a_restart_of_slurmctld_is_made_again() -> None:
    site = Site()
    run = _drained(site)
    _lose_drain(site, began_after=timedelta(seconds=4))
    run = site.advance(run, times=2)
    assert run.state == RunState.RUNNING
    assert site.slurm.nodes(("gn001",))["gn001"].is_draining
    assert any(
        "slurmctld restarted and has forgotten the drain" in line
        for line in site.story(run.incident)
    )
    assert site.play(run).state == RunState.SUCCEEDED
    assert site.slurm.reboots("gn001") == 1


@pytest.mark.parametrize(
    "began_after", [timedelta(days=-3), timedelta(seconds=-2), timedelta(seconds=31)]
)
def test_a_node_that_is_back_without_such_a_restart_was_resumed_by_a_person(
    began_after: timedelta,
) -> None:
    site = Site()
    run = _drained(site)
    _lose_drain(site, began_after=began_after)
    run = site.advance(run, times=2)
    assert run.state == RunState.ABORTED
    assert not site.slurm.nodes(("gn001",))["gn001"].is_draining


def test_a_reboot_lost_by_a_restart_of_slurmctld_is_asked_for_again() -> None:
    site = Site()
    run = site.begin(site.lose_gpu())
    site.slurm.forgets = {"reboot"}
    run = site.play(run, until=lambda run: run.plan[run.step]["step"] == "wait_for_boot")
    site.slurm.forgets = set()
    site.slurm.configure("BOOT_TIME", f"{site.now + timedelta(seconds=2):%Y-%m-%dT%H:%M:%S}")
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert any("has forgotten the reboot of gn001" in line for line in site.story(run.incident))
    assert run.cures.count() == 1
    assert site.nodes.nodes["gn001"].boots == 1


def test_a_reboot_that_is_only_slow_is_not_asked_for_again() -> None:
    site = Site()
    run = site.begin(site.lose_gpu())
    site.slurm.hung.add("gn001")
    run = site.play(run, limit=timedelta(minutes=2))
    assert run.plan[run.step]["step"] == "wait_for_boot"
    assert [act[0] for act in site.slurm.journal].count("reboot") == 1
