"""Windows that begin while a run is under way: no step but those that look, wait, tell and ask does
anything there."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fixtures.cluster.gpu import Presence
from incidents import services as incidents
from incidents.evaluation.windows import WindowKind
from incidents.maintenance import planning
from incidents.maintenance.planning import Draft
from incidents.models import Silence
from incidents.vocabulary.lifecycle import Trigger
from runbooks.library import library
from runbooks.models import RunState
from runbooks.steps.cold_cycle import ColdCycle
from runbooks.steps.diagnose_in_job import DiagnoseInJob
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
# They look, wait, tell, ask, or write rows of our own.
QUIET = {
    *("confirm_on_node", "wait_for_boot", "wait_for_neighbours", "watch", "notify", "ask_person"),
    *("open_vendor_case", "await_part", "pause_pollers"),
}


def a_window(site: Site, *, lasts: timedelta = 4 * HOUR) -> None:
    draft = Draft(
        WindowKind.MAINTENANCE, "hands inside", site.now, site.now + lasts, machines=("node/gn001",)
    )
    planning.plan(draft, author="bob", now=site.now)


def at_step(name: str) -> object:
    return lambda run: run.plan[run.step]["step"] == name


def commands(site: Site) -> list[str]:
    """What runs on the node apart from us: tests and resets."""
    return sorted(site.nodes.nodes["gn001"].apart)


def acts(site: Site) -> list[str]:
    return [act[0] for act in site.slurm.journal]


@pytest.mark.parametrize(
    "step", [*library.STEPS, DiagnoseInJob()], ids=lambda step: type(step).__name__
)
def test_every_step_but_those_that_look_wait_tell_and_ask_is_held_by_a_maintenance(
    step: object,
) -> None:
    is_held = step.act is not None or step.touches_node  # type: ignore[attr-defined]
    assert is_held == (step.name not in QUIET)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "step",
    ["drain", "wait_for_jobs", "confirm_on_node", "reboot", "wait_for_boot", "verify", "resume"],
)
def test_nothing_is_done_to_the_node_while_a_window_lasts_wherever_it_began(step: str) -> None:
    site = Site(nodes=2)
    run = site.play(site.begin(site.lose_gpu()), until=at_step(step))
    before, running = acts(site), commands(site)
    a_window(site)
    over_at = site.now + 4 * HOUR
    run = site.play(run, limit=4 * HOUR - timedelta(minutes=1))
    assert (acts(site), commands(site)) == (before, running)
    assert run.state == RunState.RUNNING
    assert "gn001 is under maintenance until" in run.waiting_for
    site.now = over_at
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert acts(site) == ["drain", "reboot", "resume"]


def test_a_node_that_was_verified_before_a_window_is_verified_again_after_it() -> None:
    site = Site(nodes=2)
    run = site.play(site.begin(site.lose_gpu()), until=at_step("resume"))
    a_window(site, lasts=HOUR)
    run = site.play(run, limit=timedelta(minutes=30))
    site.nodes.nodes["gn001"].gpus[4].presence = Presence.MISSING  # the tray is not all the way in
    run = site.play(run, limit=2 * HOUR)
    assert run.state == RunState.FAILED
    assert acts(site) == ["drain", "reboot"]
    assert "gn001 did not pass after its reboot" in run.outcome
    assert any(
        "The maintenance of gn001 is over: Kintsugi looks at it anew" in line
        for line in site.story(run.incident)
    )


def test_a_fault_that_people_mended_in_a_window_is_confirmed_anew_before_anything_is_rebooted() -> (
    None
):
    site = Site(nodes=2)
    run = site.play(site.begin(site.lose_gpu()), until=at_step("reboot"))
    a_window(site, lasts=HOUR)
    run = site.play(run, limit=timedelta(minutes=30))
    site.nodes.nodes["gn001"].gpus[0].presence = Presence.PRESENT
    run = site.play(run, limit=2 * HOUR)
    assert acts(site) == ["drain"]
    assert "is not confirmed on gn001" in run.waiting_for


def test_a_node_is_not_handed_back_inside_a_window_when_its_incident_ends() -> None:
    site = Site(nodes=2)
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=2))
    a_window(site)
    incidents.act(
        run.incident_id, Trigger.MARK_FALSE_POSITIVE, actor="ann", note="a drill", now=site.now
    )
    run = site.advance(run)
    assert run.state == RunState.WITHDRAWN
    assert acts(site) == ["drain"]
    assert "gn001 is under maintenance until" in run.outcome
    assert "Resume it afterwards: scontrol update NodeName=gn001 State=RESUME" in run.outcome


def test_a_node_that_is_off_is_not_switched_on_while_hands_may_be_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ColdCycle, "needs_approval", False)
    site = Site(nodes=2)
    run = site.begin(site.raise_fault())
    run.plan = [
        library.plan_step(name, {}).as_row()
        for name in ("drain", "wait_for_jobs", "cold_cycle", "wait_for_boot")
    ]
    run.save()
    run = site.play(run, until=lambda run: "seen_off_at" in run.facts)
    a_window(site)
    run = site.play(run, limit=4 * HOUR - timedelta(minutes=1))
    assert site.power.journal.count(("on", "gn001")) == 0
    assert "is left off meanwhile" in run.waiting_for
    Silence.objects.update(ended_at=site.now)
    run = site.play(run, until=lambda run: run.finished_at is not None)
    assert site.power.journal.count(("on", "gn001")) == 1


def test_a_boot_that_does_not_end_is_not_cancelled_while_people_work_there() -> None:
    site = Site(nodes=2)
    site.slurm.hung.add("gn001")
    run = site.play(site.begin(site.lose_gpu()), until=at_step("wait_for_boot"))
    a_window(site)
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.RUNNING
    assert "gn001 has not come back, and gn001 is under maintenance" in run.waiting_for
    assert acts(site) == ["drain", "reboot"]
