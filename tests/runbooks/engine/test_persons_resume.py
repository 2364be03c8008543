"""A node that a person put back in service while its fault stands: left there, and asked about at
once, once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fixtures.cluster.gpu import Presence
from incidents import services as incidents
from incidents.models import Incident, Notification
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.models import Mode, Run, RunState
from runbooks.slurm import node_comments
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def minutes(site: Site, count: int, *, polls: bool) -> None:
    """Time goes on, with a poll a minute where there are any, and workers that do what is due."""
    for _ in range(count * 2):
        site.now += MINUTE / 2
        if polls and site.now.second == 0:
            site.poll()
        for run_id in services.get_due_runs(site.now):
            services.advance(run_id, now=site.now, world=site.world)


def asked(incident: Incident) -> list[str]:
    return list(incident.timeline.filter(kind="still_standing").values_list("text", flat=True))


def drained_by_bob_and_resumed(site: Site) -> Incident:
    site.slurm.human_drain("gn001", "bob: tray swap")
    incident = site.lose_gpu()
    run = site.advance(site.begin(incident))
    minutes(site, 3, polls=True)
    site.slurm.human_resume("gn001")
    minutes(site, 2, polls=False)
    run.refresh_from_db()
    assert run.state == RunState.FAILED
    return incident


def test_a_person_who_resumes_our_node_finds_no_comment_of_ours_there() -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    run = site.advance(site.begin(incident))
    site.slurm.comments["gn001"] = node_comments.format_comment(incident.pk, "https://c/incidents/")
    site.slurm.comments["gn002"] = "bob: spare PSU"
    site.slurm.human_resume("gn001")
    minutes(site, 2, polls=False)
    run.refresh_from_db()
    assert run.state == RunState.ABORTED
    assert site.slurm.comments == {"gn002": "bob: spare PSU"}


def test_new_polls_after_a_persons_resume_ask_a_person_at_once_and_once() -> None:
    site = Site(nodes=2)
    incident = drained_by_bob_and_resumed(site)
    assert asked(incident) == []
    minutes(site, 2, polls=True)
    (text,) = asked(incident)
    assert text.startswith("gn001 takes jobs, since a person resumed it")
    assert f"gpu.lost on {site.gpu('gn001')} is still there: last polled as active at" in text
    incident.refresh_from_db()
    assert incident.needs_human.startswith("Take gn001 out again")
    assert f"kintsugi runbook start drain_reboot_verify {incident.pk}" in incident.needs_human
    minutes(site, 60, polls=True)
    assert len(asked(incident)) == 1
    assert [act for act in site.slurm.journal if act[0] == "drain"] == []
    assert Notification.objects.filter(incident=incident, reason="still_standing").count() == 1


def test_a_persons_resume_in_the_middle_of_our_repair_is_asked_about_as_well() -> None:
    site = Site(nodes=2)
    site.slurm.add_job("77", nodes=["gn001"])
    incident = site.lose_gpu()
    site.advance(site.begin(incident))
    minutes(site, 2, polls=True)
    site.slurm.human_resume("gn001")
    minutes(site, 8, polls=True)
    assert Run.objects.get().state == RunState.ABORTED
    assert len(asked(incident)) == 1


def test_nothing_is_asked_while_no_poll_has_seen_it_since() -> None:
    site = Site(nodes=2)
    incident = drained_by_bob_and_resumed(site)
    minutes(site, 30, polls=False)
    assert asked(incident) == []


def test_nothing_is_asked_of_a_node_that_is_mended() -> None:
    site = Site(nodes=2)
    incident = drained_by_bob_and_resumed(site)
    site.nodes.nodes["gn001"].gpus[0].presence = Presence.PRESENT
    minutes(site, 10, polls=True)
    assert asked(incident) == []


def test_nothing_is_asked_of_a_node_that_a_person_has_taken_out_again() -> None:
    site = Site(nodes=2)
    incident = drained_by_bob_and_resumed(site)
    site.slurm.human_drain("gn001", "bob: my mistake")
    minutes(site, 10, polls=True)
    assert asked(incident) == []


def test_a_person_is_asked_once_a_run_of_another_incident_has_left_the_node() -> None:
    site = Site(nodes=2)
    incident = drained_by_bob_and_resumed(site)
    minutes(site, 60, polls=False)
    services.stop("looking at the cooling", actor="bob", now=site.now)
    site.set_mode(Mode.ARMED, "isolate_node")
    other = site.begin(site.raise_fault(fault_type="node.lockup", resource="node/gn001"))
    minutes(site, 5, polls=True)
    assert (other.state, asked(incident)) == (RunState.RUNNING, [])
    services.abort(other.pk, actor="bob", now=site.now)
    minutes(site, 10, polls=True)
    assert len(asked(incident)) == 1


def test_nobody_looks_any_more_when_the_incident_is_over() -> None:
    site = Site(nodes=2)
    incident = drained_by_bob_and_resumed(site)
    incidents.act(incident.pk, Trigger.RESOLVE, actor="bob", note="reseated", now=site.now)
    minutes(site, 10, polls=False)
    assert asked(incident) == []
    assert Run.objects.get().wake_at is None
