"""A node that stays drained for an incident that people have closed: they are asked for it once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.inventory import node_states
from incidents.models import Incident, Notification
from incidents.state import transitions
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.models import Run, RunState
from tests.runbooks.site import Site

NODE = "gn001"
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def begin_repair_that_fails(site: Site) -> Run:
    """A run whose node's root refuses its reboot, after its drain."""
    run = site.begin(site.lose_gpu(NODE))
    site.play(run, until=lambda run: run.plan[run.step]["step"] == "reboot", limit=HOUR)
    site.nodes.nodes[NODE].never = "under test by Mai"
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.FAILED
    return run


def close(site: Site) -> Incident:
    incident = Incident.objects.get()
    acted = transitions.act(
        incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="mai", note="looked at it", now=site.now
    )
    assert acted is not None
    incident.refresh_from_db()
    return incident


def look(site: Site) -> None:
    node_states.record_look(
        site.slurm.read_nodes(), site.now, took=timedelta(0), slurm_user="slurm"
    )


def pass_time(site: Site, span: timedelta) -> int:
    """A look at the nodes and a sweep after that time; about how many nodes people were asked."""
    site.now += span
    look(site)
    return services.sweep_left_drains(site.now)


@pytest.mark.django_db
def test_people_are_asked_once_for_a_node_that_nobody_gives_back() -> None:
    site = Site(nodes=5)
    run = begin_repair_that_fails(site)
    assert pass_time(site, HOUR) == 0, "its incident is open, and asks already"
    incident = close(site)
    assert incident.needs_human == ""
    assert pass_time(site, 2 * MINUTE) == 1
    incident.refresh_from_db()
    assert f"scontrol update NodeName={NODE} State=RESUME" in incident.needs_human
    entry = incident.timeline.get(kind="drain_left")
    assert entry.text.startswith(f"{NODE} stays drained, though incident #{incident.pk} is closed")
    assert f"run {run.pk}" in entry.text
    assert Notification.objects.filter(incident=incident, reason="drain_left").count() == 1
    assert pass_time(site, HOUR) == 0


@pytest.mark.django_db
def test_nobody_is_asked_for_a_node_that_a_person_resumes_when_they_close_the_incident() -> None:
    site = Site(nodes=5)
    begin_repair_that_fails(site)
    close(site)
    assert pass_time(site, MINUTE / 4) == 0
    site.slurm.resume(NODE)
    assert pass_time(site, 2 * MINUTE) == 0


@pytest.mark.django_db
def test_a_node_that_a_person_has_drained_since_is_theirs() -> None:
    site = Site(nodes=5)
    begin_repair_that_fails(site)
    close(site)
    site.slurm.drain(NODE, "hands inside")
    assert pass_time(site, 2 * MINUTE) == 0


@pytest.mark.django_db
def test_words_like_ours_that_no_run_has_written_are_a_persons() -> None:
    site = Site(nodes=5)
    run = begin_repair_that_fails(site)
    close(site)
    text = f"kintsugi:{run.incident_id} gpu.xid.79: vendor case 1 open"
    site.slurm.drain(NODE, text)
    assert pass_time(site, 2 * MINUTE) == 0


@pytest.mark.django_db
def test_a_run_that_is_withdrawn_by_the_closing_says_itself_what_becomes_of_its_node() -> None:
    site = Site(nodes=5)
    run = site.begin(site.lose_gpu(NODE))
    site.play(run, until=lambda run: run.plan[run.step]["step"] == "reboot", limit=HOUR)
    close(site)
    run = site.play(run, limit=HOUR)
    assert run.state == RunState.WITHDRAWN
    assert pass_time(site, 2 * MINUTE) == 0
