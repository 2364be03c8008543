"""A minor repair waits for an idle moment of its node instead of keeping new jobs off at once, holds
no place meanwhile, and is drained at once where anything graver stands there."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services as incidents
from incidents.models import Incident
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.guards.verdicts import Bounds
from runbooks.models import Mode, Run, RunState, StopSwitch
from runbooks.node.idle_moment import LONGEST, SHORTLY
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
NODE, MINOR = "gn001", "gpu.ecc.row_remap_pending"
LIMIT = timedelta(hours=1)


def a_site(*, cap: int = 5) -> Site:
    site = Site(nodes=20, bounds=Bounds(cap_nodes=cap, breaker_share=1.0))
    site.set_mode(Mode.ARMED, "gpu_reset")
    return site


def begin(site: Site, node: str = NODE, *, ends_in: timedelta | None = None) -> Run:
    """A job runs on the node, and its GPU has rows to remap."""
    ends_at = site.now + ends_in if ends_in is not None else None
    site.slurm.add_job(f"17{node[-3:]}", nodes=[node], ends_at=ends_at)
    site.nodes.inject("gpu_ecc_uncorrectable", f"{node}/gpu/0")
    incident = site.raise_fault(node, fault_type=MINOR)
    site.now += timedelta(minutes=2)
    return site.advance(site.begin(incident), times=2)


def is_drained(site: Site, node: str = NODE) -> bool:
    return site.slurm.read_nodes((node,))[node].is_draining


def pass_time(site: Site, run: Run, span: timedelta) -> Run:
    """To its end, in which the run is looked at once: each minute of a week takes the test long."""
    site.now += span
    return site.advance(run)


def overtake(site: Site) -> tuple[Run, Incident]:
    """A minor repair that waits, and an hour later another GPU of its node is lost."""
    minor = begin(site, ends_in=timedelta(days=3))
    minor = pass_time(site, minor, LIMIT)
    site.nodes.inject("gpu_lost", f"{NODE}/gpu/3")
    return minor, site.raise_fault(NODE, fault_type="gpu.lost", resource=site.gpu(NODE, 3))


def test_the_node_goes_on_taking_jobs_and_the_run_says_why() -> None:
    site = a_site()
    run = begin(site, ends_in=timedelta(days=3))
    assert not is_drained(site)
    assert run.claimed_at is None
    assert run.waiting_for == (
        "gpu.ecc.row_remap_pending is minor: gn001 goes on taking jobs until none runs there or the"
        " last one ends within the hour (now: at 2025-01-18 03:00 UTC at the latest), and is"
        " drained then."
    )
    assert run.waiting_for in site.story(run.incident)


def test_once_no_job_runs_there_it_is_drained_repaired_and_given_back() -> None:
    site = a_site()
    run = begin(site, ends_in=timedelta(days=3))
    site.slurm.finish_job("17001")
    run = site.play(run, limit=LIMIT)
    assert (run.state, is_drained(site)) == (RunState.SUCCEEDED, False)
    assert sum(gpu.resets for gpu in site.nodes.nodes[NODE].gpus) == 1


def test_it_is_looked_at_each_minute() -> None:
    site = a_site()
    run = pass_time(site, begin(site), timedelta(days=2))
    assert run.wake_at is not None
    assert run.wake_at - site.now <= timedelta(minutes=1)


def test_shortly_before_the_last_jobs_limit_it_is_drained_so_that_no_other_follows() -> None:
    site = a_site()
    run = begin(site, ends_in=timedelta(days=1))
    site.slurm.add_job("18", nodes=[NODE], ends_at=site.now + timedelta(hours=2))
    run = pass_time(site, run, timedelta(days=1) - SHORTLY - timedelta(minutes=4))
    assert not is_drained(site)
    pass_time(site, run, timedelta(minutes=5))
    assert is_drained(site)


def test_a_job_without_a_limit_is_waited_for_a_week_and_then_drained_around() -> None:
    site = a_site()
    run = begin(site)
    run = pass_time(site, run, LONGEST - timedelta(minutes=10))
    assert not is_drained(site)
    pass_time(site, run, timedelta(minutes=11))
    assert is_drained(site)


def test_it_holds_no_place_while_it_waits() -> None:
    site = a_site(cap=1)
    waiting = begin(site, ends_in=timedelta(days=3))
    graver = site.advance(site.begin(site.stall_gpu("gn002")))
    assert graver.claimed_at is not None
    assert is_drained(site, "gn002")
    site.slurm.finish_job("17001")
    site.now += timedelta(minutes=1)
    waiting = site.advance(waiting)
    assert "the cap is 1" in waiting.waiting_for
    assert not is_drained(site)


@pytest.mark.parametrize("fault_type", ["gpu.ecc.uncorrectable", "node.service.down"])
def test_a_graver_fault_on_the_node_has_it_drained_at_once(fault_type: str) -> None:
    site = a_site()
    run = begin(site, ends_in=timedelta(days=3))
    site.raise_fault(NODE, fault_type=fault_type, resource=f"node/{NODE}")
    pass_time(site, run, timedelta(minutes=1))
    assert is_drained(site)


def test_a_graver_incident_of_the_node_takes_it_over_within_seconds() -> None:
    site = a_site()
    minor, graver = overtake(site)
    assert graver.pk != minor.incident_id
    site.now += timedelta(seconds=5)
    site.start()
    minor = site.advance(minor)
    assert minor.state == RunState.WITHDRAWN
    assert f"incident #{graver.pk}, which is graver, calls for its node" in minor.outcome
    site.start()
    run = site.advance(Run.objects.latest("pk"), times=2)
    assert run.incident_id == graver.pk
    assert site.slurm.read_nodes((NODE,))[NODE].reason.startswith(f"kintsugi:{graver.pk}/")


def test_after_it_the_minor_repair_comes_again() -> None:
    site = a_site()
    minor, graver = overtake(site)
    site.start()
    site.advance(minor)
    site.start()
    site.slurm.finish_job("17001")
    site.play(Run.objects.get(incident=graver), limit=LIMIT)
    assert not is_drained(site)
    states = Run.objects.filter(incident=minor.incident_id).values_list("state", flat=True)
    assert set(states) <= {RunState.WITHDRAWN, RunState.SUCCEEDED}


def test_whoever_gives_leave_says_when() -> None:
    site = a_site()
    site.set_mode(Mode.APPROVAL, "gpu_reset")
    run = begin(site, ends_in=timedelta(days=3))
    assert run.state == RunState.AWAITING_APPROVAL


def test_a_graver_fault_alone_waits_for_no_idle_moment() -> None:
    site = a_site()
    site.slurm.add_job("17", nodes=[NODE], ends_at=site.now + timedelta(days=3))
    site.advance(site.begin(site.stall_gpu(NODE)))
    assert is_drained(site)


def test_a_person_who_begins_the_run_by_hand_waits_for_none() -> None:
    site = a_site()
    run = begin(site, ends_in=timedelta(days=3))
    run.state, run.finished_at = RunState.ABORTED, site.now
    run.save()
    services.start_manual_run(
        "gpu_reset", run.incident_id, actor="mai", note="now, please", now=site.now
    )
    by_hand = Run.objects.latest("pk")
    site.play(by_hand, until=lambda run: run.step > 0)
    assert is_drained(site)


def test_a_node_that_is_out_already_is_taken_over_as_before() -> None:
    site = a_site()
    site.slurm.slurm_drain(NODE, "Kill task failed")
    run = begin(site, ends_in=timedelta(days=3))
    assert "is minor" not in run.waiting_for
    assert site.slurm.read_nodes((NODE,))[NODE].reason.startswith("kintsugi:")


def test_an_incident_that_ends_meanwhile_leaves_no_trace_on_the_node() -> None:
    site = a_site()
    run = begin(site, ends_in=timedelta(days=3))
    journal = list(site.slurm.journal)
    incidents.act(run.incident_id, Trigger.RESOLVE, actor="mai", now=site.now)
    run = site.play(run, limit=LIMIT)
    assert (run.state, list(site.slurm.journal)) == (RunState.WITHDRAWN, journal)


def test_the_stop_switch_holds_the_drain_when_the_moment_comes() -> None:
    site = a_site()
    run = begin(site, ends_in=timedelta(days=3))
    StopSwitch.objects.create(reason="power works", engaged_by="alice", engaged_at=site.now)
    site.slurm.finish_job("17001")
    run = pass_time(site, run, timedelta(minutes=1))
    assert "The stop switch is engaged" in run.waiting_for
    assert not is_drained(site)
