"""A minor repair waits for an idle moment of its node instead of keeping new jobs off at once, holds
no place meanwhile, and is drained at once where anything graver stands there."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.slurm.reservations import Reservation
from incidents import services as incidents
from incidents.models import Incident
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.guards.verdicts import Bounds
from runbooks.models import AuditEntry, Mode, Run, RunState, StopSwitch
from runbooks.node.idle_moment import LONGEST, RESERVED, SHORTLY
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
        " drained then. No job begins there that could run past 2025-01-18 03:00 UTC: from then on"
        f" gn001 is reserved for an hour (kintsugi_{run.pk}-0-drain)."
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


def list_reservations(site: Site) -> list[Reservation]:
    return [one for one in site.slurm.list_reservations() if one.name.startswith("kintsugi_")]


def test_the_node_is_reserved_from_the_last_jobs_limit_on_for_an_hour() -> None:
    site = a_site()
    limit = site.now + timedelta(days=3)
    begin(site, ends_in=timedelta(days=3))
    (reservation,) = list_reservations(site)
    assert (reservation.nodes, reservation.flags) == ((NODE,), frozenset({"IGNORE_JOBS"}))
    assert (reservation.starts_at, reservation.ends_at) == (limit, limit + SHORTLY)
    assert site.slurm.read_nodes((NODE,))[NODE].is_serving
    entry = AuditEntry.objects.get(act="reserve")
    assert entry.text.startswith("gn001 is reserved from 2025-01-18 03:00 UTC for an hour")


def test_jobs_that_end_before_it_move_it_no_further() -> None:
    site = a_site()
    run = begin(site, ends_in=timedelta(days=3))
    (before,) = list_reservations(site)
    site.slurm.add_job("18", nodes=[NODE], ends_at=site.now + timedelta(days=2))
    pass_time(site, run, timedelta(days=1))
    assert list_reservations(site) == [before]


def test_a_job_without_a_limit_lets_nothing_be_reserved() -> None:
    site = a_site()
    run = begin(site)
    assert list_reservations(site) == []
    assert "(now: without a limit)" in run.waiting_for


def test_whoever_takes_the_reservation_away_is_not_overruled() -> None:
    site = a_site()
    run = begin(site, ends_in=timedelta(days=3))
    site.slurm.end_reservation(list_reservations(site)[0].name)
    run = pass_time(site, run, timedelta(days=1))
    assert list_reservations(site) == []
    assert run.state == RunState.RUNNING


def test_once_its_hour_is_over_and_jobs_run_again_it_is_made_anew() -> None:
    """The guards refused the drain when the moment came."""
    site = a_site()
    run = begin(site, ends_in=timedelta(days=2))
    site.now += timedelta(days=2) + SHORTLY
    site.slurm.finish_job("17001")
    limit = site.now + timedelta(days=1)
    site.slurm.add_job("19", nodes=[NODE], ends_at=limit)
    site.advance(run)
    assert [reservation.starts_at for reservation in list_reservations(site)] == [limit]


def test_a_reservation_that_slurm_does_not_give_is_told_and_not_asked_for_each_minute() -> None:
    site = a_site()
    foreign = Reservation(
        "course",
        (NODE,),
        frozenset(),
        site.now + timedelta(days=3),
        site.now + timedelta(days=4),
    )
    site.slurm.add_reservation(foreign)
    run = begin(site, ends_in=timedelta(days=3))
    assert "Jobs may follow one another until then: " in run.waiting_for
    assert "overlaps with another reservation" in run.waiting_for
    assert AuditEntry.objects.get(act="reserve").phase == AuditEntry.Phase.FAILED
    run = pass_time(site, run, timedelta(minutes=5))
    assert AuditEntry.objects.filter(act="reserve").count() == 1
    site.slurm.end_reservation("course")
    run = pass_time(site, run, timedelta(hours=1))
    assert "is reserved for an hour" in run.waiting_for


def test_nothing_is_reserved_while_a_guard_would_refuse_the_drain() -> None:
    site = a_site()
    StopSwitch.objects.create(reason="power works", engaged_by="alice", engaged_at=site.now)
    run = begin(site, ends_in=timedelta(days=3))
    assert list_reservations(site) == []
    StopSwitch.objects.update(released_at=site.now)
    pass_time(site, run, timedelta(minutes=2))
    assert len(list_reservations(site)) == 1


def test_nothing_is_reserved_where_a_person_is_to_be_asked_first() -> None:
    site = a_site()
    run = begin(site, ends_in=timedelta(days=3))
    site.slurm.end_reservation(list_reservations(site)[0].name)
    run.facts.pop(RESERVED)
    run.save()
    site.set_mode(Mode.APPROVAL, "gpu_reset")
    pass_time(site, run, timedelta(minutes=2))
    assert list_reservations(site) == []


def test_a_node_whose_root_refuses_is_not_reserved() -> None:
    site = a_site()
    site.nodes.nodes[NODE].never = "mine until Friday"
    run = begin(site, ends_in=timedelta(days=3))
    assert list_reservations(site) == []
    assert run.state == RunState.FAILED


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
