"""A drain that slurmctld has forgotten is none that a person has ended."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runbooks import services
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY
from runbooks.models import Breaker, Mode, Run, RunState
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


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
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_draining
    assert any(
        "slurmctld restarted and has forgotten the drain" in line
        for line in site.story(run.incident)
    )
    assert site.play(run).state == RunState.SUCCEEDED
    assert site.slurm.reboots("gn001") == 1


@pytest.mark.parametrize("began_after", [timedelta(days=-3), timedelta(seconds=-2)])
def test_a_node_that_is_back_without_such_a_restart_was_resumed_by_a_person(
    began_after: timedelta,
) -> None:
    site = Site()
    run = _drained(site)
    _lose_drain(site, began_after=began_after)
    run = site.advance(run, times=2)
    assert run.state == RunState.ABORTED
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_draining


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


def waits_for_jobs(run: Run) -> bool:
    return "Kintsugi waits for the end" in run.waiting_for


def a_lost_state(*nodes: str) -> tuple[Site, list[Run]]:
    """Runs that hold their nodes, and hours later a slurmctld that knows nothing of that."""
    site = Site(nodes=60)
    runs = []
    for node in nodes:
        site.slurm.add_job(f"7{node}", nodes=[node])
        run = site.begin(site.lose_gpu(node))
        runs.append(site.play(run, until=waits_for_jobs))
        assert site.slurm.read_nodes((node,))[node].is_draining
    site.now += 3 * HOUR
    site.slurm.lose_state(site.now - timedelta(minutes=1))
    return site, [site.advance(run) for run in runs]


def test_a_slurmctld_that_lost_its_state_is_one_question_to_a_person() -> None:
    """Nothing is drained, nothing is given up: people may have resumed these nodes."""
    site, runs = a_lost_state("gn001", "gn002")
    before = len(site.slurm.journal)
    for _ in range(5):
        site.now += timedelta(minutes=1)
        runs = [site.advance(run) for run in runs]
    assert [run.state for run in runs] == [RunState.RUNNING, RunState.RUNNING]
    assert len(site.slurm.journal) == before
    (question,) = Breaker.objects.all()
    assert "it may have lost its state" in question.why
    assert all("it may have lost its state" in run.waiting_for for run in runs)


def test_who_closes_the_breaker_has_the_forgotten_nodes_drained_again() -> None:
    site, (run, other) = a_lost_state("gn001", "gn002")
    services.abort(other.pk, actor="bob", now=site.now)
    services.close_breaker("StateSaveLocation was lost", actor="bob", now=site.now)
    run = site.advance(run)
    nodes = site.slurm.read_nodes()
    assert nodes["gn001"].is_draining
    assert not nodes["gn002"].is_draining, "its run was aborted: it stays in service"
    site.slurm.finish_job("7gn001")
    assert site.play(run, limit=3 * HOUR).state == RunState.SUCCEEDED


def test_one_node_that_is_back_while_others_are_still_drained_was_resumed_by_a_person() -> None:
    site, _ = a_lost_state()
    runs = []
    for node in ("gn001", "gn002"):
        site.slurm.add_job(f"7{node}", nodes=[node])
        runs.append(site.play(site.begin(site.lose_gpu(node)), until=waits_for_jobs))
    site.now += HOUR
    site.slurm.configure("BOOT_TIME", f"{site.now:%Y-%m-%dT%H:%M:%S}")
    site.slurm.human_resume("gn001")
    site.now += timedelta(minutes=1)
    run = site.advance(runs[0])
    assert run.state == RunState.ABORTED, (run.waiting_for, site.slurm.read_nodes())
    assert not Breaker.objects.exists()


def test_a_person_resumes_a_node_whose_drain_slurmctld_showed_since_it_was_restarted() -> None:
    """It was restarted right after the drain, and had kept it."""
    site = Site()
    site.slurm.add_job("7", nodes=["gn001"])
    run = site.begin(site.lose_gpu())
    run = site.play(run, until=waits_for_jobs)
    site.slurm.configure("BOOT_TIME", f"{site.now + timedelta(seconds=4):%Y-%m-%dT%H:%M:%S}")
    run = site.play(run, limit=HOUR)
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_draining
    site.now += HOUR
    site.slurm.human_resume("gn001")
    run = site.advance(run, times=2)
    assert run.state == RunState.ABORTED, site.story(run.incident)
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_draining


def test_a_person_resumes_a_node_that_was_drained_within_a_second_of_slurmctlds_start() -> None:
    """It prints its start in whole seconds."""
    site = Site()
    site.slurm.configure("BOOT_TIME", f"{site.now:%Y-%m-%dT%H:%M:%S}")
    site.slurm.add_job("7", nodes=["gn001"])
    run = site.begin(site.lose_gpu())
    for _ in range(3):
        site.now += timedelta(milliseconds=200)
        run = site.advance(run)
    assert waits_for_jobs(run)
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_draining
    site.now += timedelta(milliseconds=200)
    site.slurm.human_resume("gn001")
    run = site.play(run)
    assert run.state == RunState.ABORTED, site.story(run.incident)
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_draining


def test_a_person_resumes_a_node_whose_drain_was_shown_as_a_step_found_nothing_to_do() -> None:
    """slurmctld was restarted within the second of the drain, and no job was on the node."""
    site = Site()
    site.set_mode(Mode.OFF, DRAIN_REBOOT_VERIFY)
    run = site.advance(site.begin(site.lose_gpu()))
    site.slurm.configure("BOOT_TIME", f"{site.now:%Y-%m-%dT%H:%M:%S}")
    site.now += timedelta(milliseconds=200)
    run = site.advance(run)
    assert run.plan[run.step]["step"] == "ask_person"
    site.slurm.human_resume("gn001")
    run = site.play(run)
    assert run.state == RunState.ABORTED, site.story(run.incident)
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_draining


def test_a_reboot_that_a_person_cancelled_after_slurmctld_showed_it_is_not_asked_for_again() -> (
    None
):
    """slurmctld was restarted right after it was asked, and had kept that."""
    site = Site()
    run = site.begin(site.lose_gpu())
    site.slurm.send_reboots_after(timedelta(minutes=30))
    run = site.play(run, until=lambda run: run.plan[run.step]["step"] == "wait_for_boot")
    site.slurm.configure("BOOT_TIME", f"{site.now + timedelta(seconds=2):%Y-%m-%dT%H:%M:%S}")
    run = site.play(run, limit=timedelta(minutes=1))
    assert "REBOOT_REQUESTED" in site.slurm.read_nodes(("gn001",))["gn001"].flags
    site.slurm.cancel_reboot("gn001", reason="")
    run = site.play(run, limit=timedelta(minutes=5))
    asked = [act[0] for act in site.slurm.journal].count("reboot")
    assert asked == 1, site.story(run.incident)


def test_a_drain_whose_reason_is_left_was_not_forgotten_by_a_restarted_slurmctld() -> None:
    """From 23.11 to 25.11 a resume leaves it where no accounts are kept."""
    site = Site(slurm={"SLURM_VERSION": "24.11.5"})
    site.slurm.keeps_accounts = False
    run = _drained(site)
    _lose_drain(site, began_after=timedelta(seconds=4))
    run = site.advance(run, times=2)
    assert run.state == RunState.ABORTED, site.story(run.incident)
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_draining


def test_a_drain_that_the_slurmctld_before_showed_in_the_second_of_the_restart_is_made_again() -> (
    None
):
    """A start is printed in whole seconds: 12:00:29.9 as 12:00:29, after a look at 12:00:29.1."""
    site = Site()
    site.slurm.add_job("7", nodes=["gn001"])
    run = site.begin(site.lose_gpu())
    run = site.play(run, until=waits_for_jobs)
    site.slurm.configure("BOOT_TIME", "2025-01-15T00:00:00")
    run = site.advance(run)
    _lose_drain(site, began_after=timedelta(0))
    run = site.advance(run, times=2)
    assert run.state == RunState.RUNNING, site.story(run.incident)
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_draining
