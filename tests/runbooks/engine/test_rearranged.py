"""What becomes of a repair when people merge its incident into another, or find that the cause lies
elsewhere."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents import services as incidents
from incidents.models import Incident
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def waiting(site: Site) -> Incident:
    """A lost GPU whose run has drained the node and waits for the job on it."""
    site.slurm.add_job("1", nodes=["gn001"], user="sato")
    incident = site.lose_gpu("gn001")
    run = site.begin(incident)
    site.play(run, limit=timedelta(minutes=2))
    return incident


def test_the_run_of_a_merged_incident_is_withdrawn_and_gives_its_node_back() -> None:
    site = Site()
    incident = waiting(site)
    other = site.lose_gpu("gn002")
    done = incidents.merge(
        incident.pk, other.pk, actor="yuki", note="One power shelf.", now=site.now
    )
    assert isinstance(done, incidents.Rearranged)
    run = site.run_of(incident)
    site.play(run, limit=timedelta(minutes=5))
    run.refresh_from_db()
    assert run.state == "withdrawn"
    assert all(act[0] != "reboot" for act in site.slurm.journal)


def test_the_run_is_withdrawn_when_a_person_finds_the_root_on_another_machine() -> None:
    site = Site()
    incident = waiting(site)
    other = site.lose_gpu("gn002")
    elsewhere = other.root_fault
    assert elsewhere is not None
    incidents.merge(other.pk, incident.pk, actor="yuki", now=site.now)
    done = incidents.reroot(incident.pk, elsewhere.pk, actor="yuki", now=site.now)
    assert isinstance(done, incidents.Rearranged)
    run = site.run_of(incident)
    site.play(run, limit=timedelta(minutes=5))
    run.refresh_from_db()
    assert run.state == "withdrawn"
