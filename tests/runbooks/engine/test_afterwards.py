"""A resume that slurmctld has forgotten is made again by the run that made it, and over nobody's
head."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from incidents import services as incidents
from incidents.models import Incident
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.engine import turn
from runbooks.lease.lease import LEASE
from runbooks.models import AuditEntry, Run, RunState, StepRun
from runbooks.slurm.protocol import NodeState
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


class Killed(BaseException):
    """The worker is gone: nothing catches it."""


def _given_back(site: Site) -> Run:
    run = site.play(site.begin(site.lose_gpu()))
    assert run.state == RunState.SUCCEEDED, run.outcome
    return run


def _node(site: Site) -> NodeState:
    return site.slurm.read_nodes(("gn001",))["gn001"]


def _sweeps(site: Site, *, lasts: timedelta = timedelta(minutes=3)) -> None:
    """As the sweep does: every few seconds, whatever is due."""
    ends_at = site.now + lasts
    while site.now < ends_at:
        site.now += timedelta(seconds=5)
        for run_id in services.get_due_runs(site.now):
            services.advance(run_id, now=site.now, world=site.world)


def _resumes(site: Site) -> int:
    return site.slurm.journal.count(("resume", "gn001"))


def test_a_resume_that_slurmctld_has_forgotten_is_made_again() -> None:
    site = Site()
    run = _given_back(site)
    site.slurm.lose_resume("gn001")
    assert _node(site).is_draining
    _sweeps(site)
    assert not _node(site).is_out
    assert _resumes(site) == 2
    run.refresh_from_db()
    assert (run.state, run.wake_at) == (RunState.SUCCEEDED, None)
    again = "slurmctld has forgotten that gn001 was given back: it stood drained as before. Kintsugi resumed it again."
    assert site.story(run.incident).count(again) == 1
    acts = list(
        AuditEntry.objects.filter(run=run.pk, act="resume")
        .order_by("pk")
        .values_list("phase", flat=True)
    )
    assert acts == ["begun", "done", "begun", "done"]


def test_one_look_is_all_where_slurmctld_has_kept_it() -> None:
    site = Site()
    run = _given_back(site)
    assert services.get_due_runs(site.now) == []
    _sweeps(site)
    assert services.get_due_runs(site.now + timedelta(days=1)) == []
    assert _resumes(site) == 1
    assert Run.objects.get(pk=run.pk).steps.filter(name="resume").count() == 1


def test_a_slurmctld_that_is_away_is_asked_until_it_is_back() -> None:
    site = Site()
    _given_back(site)
    site.slurm.lose_resume("gn001")
    site.slurm.is_answering = False
    _sweeps(site, lasts=timedelta(minutes=10))
    site.slurm.is_answering = True
    _sweeps(site, lasts=timedelta(minutes=1))
    assert not _node(site).is_out


def test_a_node_handed_back_because_its_incident_was_a_false_alarm_is_looked_after_too() -> None:
    site = Site()
    incident = site.lose_gpu()
    run = site.advance(site.begin(incident))
    incidents.act(
        incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="alice", note="a test", now=site.now
    )
    site.now += timedelta(seconds=1)
    assert site.advance(run).state == RunState.WITHDRAWN
    site.slurm.lose_resume("gn001")
    _sweeps(site)
    assert not _node(site).is_out


def _redrained_by_a_person(site: Site, run: Run) -> None:
    site.slurm.human_drain("gn001", "bob: memory test")


def _drained_by_a_person_in_our_words(site: Site, run: Run) -> None:
    site.now += timedelta(seconds=2)
    site.slurm.human_drain("gn001", run.facts["reason"])


def _reopened(site: Site, run: Run) -> None:
    site.slurm.lose_resume("gn001")
    Incident.objects.filter(pk=run.incident_id).update(state="open")


def _wanted_by_another(site: Site, run: Run) -> None:
    site.slurm.lose_resume("gn001")
    site.raise_fault("gn001", fault_type="gpu.xid.48", resource=site.gpu("gn001", 5))


def _booted(site: Site, run: Run) -> None:
    site.now += timedelta(seconds=5)
    site.slurm.lose_resume("gn001")
    site.slurm.switch_off("gn001")
    site.slurm.switch_on("gn001")


@pytest.mark.parametrize(
    "happens",
    [
        _redrained_by_a_person,
        _drained_by_a_person_in_our_words,
        _reopened,
        _wanted_by_another,
        _booted,
    ],
)
def test_a_node_that_somebody_or_something_has_touched_since_is_left_as_it_is(
    happens: Callable[[Site, Run], None],
) -> None:
    site = Site()
    run = _given_back(site)
    happens(site, run)
    _sweeps(site)
    assert _node(site).is_draining
    assert _resumes(site) == 1
    assert services.get_due_runs(site.now + timedelta(days=1)) == []


def test_a_person_is_asked_where_the_node_has_booted_since_it_was_verified() -> None:
    site = Site()
    run = _given_back(site)
    _booted(site, run)
    _sweeps(site)
    asked = Incident.objects.get(pk=run.incident_id).needs_human
    assert asked == "Test gn001, and resume it: scontrol update NodeName=gn001 State=RESUME"
    assert any("it has booted since it was verified" in line for line in site.story(run.incident))


def test_a_node_whose_slurmd_is_silent_is_resumed_when_it_answers() -> None:
    site = Site()
    run = _given_back(site)
    site.slurm.lose_resume("gn001")
    record = site.slurm._nodes.records["gn001"]
    record.flags.add("NOT_RESPONDING")
    _sweeps(site)
    assert _resumes(site) == 1
    assert "systemctl status slurmd" in Incident.objects.get(pk=run.incident_id).needs_human
    record.flags.discard("NOT_RESPONDING")
    _sweeps(site)
    assert not _node(site).is_out
    assert Incident.objects.get(pk=run.incident_id).needs_human == ""


def test_a_person_is_asked_when_slurmctld_forgets_it_a_fourth_time() -> None:
    site = Site()
    run = _given_back(site)
    for _ in range(4):
        site.slurm.lose_resume("gn001")
        _sweeps(site, lasts=timedelta(seconds=35))
    assert _node(site).is_draining
    assert _resumes(site) == 4
    assert "resume it" in Incident.objects.get(pk=run.incident_id).needs_human


@pytest.mark.parametrize("point", ["leased", "attempted", "acted", "stored"])
def test_a_worker_that_dies_over_it_is_made_good_by_the_next(point: str) -> None:
    site = Site()
    run = _given_back(site)
    site.slurm.lose_resume("gn001")
    site.now += timedelta(seconds=31)

    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    with pytest.raises(Killed):
        turn.advance(run.pk, now=site.now, world=site.world, at=die)
    site.now += LEASE
    _sweeps(site)
    assert not _node(site).is_out
    assert _resumes(site) == 2
    assert not run.steps.filter(outcome=StepRun.Outcome.ATTEMPTED).exists()
    assert sum("resumed it again" in line for line in site.story(run.incident)) == 1
