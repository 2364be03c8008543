"""The impact block of an incident's page, and who may say that owners were told."""

from __future__ import annotations

from datetime import timedelta

import pytest

from incidents.impact import capacity
from incidents.models import Cable, Fault, IncidentJob, Node, Switch
from tests.incidents.builders import T0
from tests.incidents.impact.test_impact import a_fault, gpu_lost_on, listed
from tests.incidents.jobs.test_jobs import a_record, ended
from tests.kintsugi.people import People, people

__all__ = ["people"]

pytestmark = pytest.mark.django_db


def test_the_page_says_that_jobs_are_not_known_until_slurm_was_asked(people: People) -> None:
    incident = gpu_lost_on()
    page = people.viewer.get(f"/incidents/incident/{incident.pk}/change/").content.decode()
    assert "Jobs are not known yet: Slurm has not been asked." in page


def test_the_page_shows_each_job_its_owner_and_its_loss(people: People) -> None:
    incident = gpu_lost_on()
    listed(
        ended("1", at=T0 + timedelta(minutes=6), state="NODE_FAIL"),
        a_record("2", gpus=0),
        at=T0 + timedelta(hours=1),
    )
    page = people.viewer.get(f"/incidents/incident/{incident.pk}/change/").content.decode()
    for words in ("NODE_FAIL", "hangs", "at least 1.6", "alice", "2 jobs of 1 person"):
        assert words in page
    assert "I told the owners" not in page


def test_an_engineer_says_that_the_owners_were_told_and_a_viewer_may_not(people: People) -> None:
    incident = gpu_lost_on()
    listed(ended(), at=T0 + timedelta(minutes=1))
    address = f"/incidents/incident/{incident.pk}/told/"
    assert people.viewer.post(address).status_code == 403
    assert people.on_call.get(address).status_code == 405
    assert people.on_call.post("/incidents/incident/9999/told/").status_code == 404
    assert IncidentJob.objects.get().owner_told_at is None
    assert (
        "I told the owners"
        in people.on_call.get(f"/incidents/incident/{incident.pk}/change/").content.decode()
    )
    assert people.on_call.post(address).status_code == 302
    assert IncidentJob.objects.get().owner_told_at is not None
    assert incident.timeline.get(kind="owner_told").actor == "omar"


def test_what_is_left_counts_nodes_of_partitions_and_links_of_rails() -> None:
    Node.objects.bulk_create(
        Node(name=f"gn00{number}", partitions=["gpu", "all"]) for number in range(1, 4)
    )
    for rail in (0, 1):
        Switch.objects.create(name=f"leaf-0{rail}", role="leaf", pod="a", rail=rail)
        for number in range(1, 4):
            port = f"switch/leaf-0{rail}/port/Ethernet{number}"
            Cable.objects.create(a=f"node/gn00{number}/nic/mlx5_{rail}", b=port)
    a_fault("node/gn001", "slurm.node_down")
    a_fault("node/gn002/nic/mlx5_0", "nic.link.down", severity="major")
    a_fault("switch/leaf-01", "switch.rebooted", severity="critical")
    assert [(each.name, each.left, each.total) for each in capacity.list_of_partitions()] == [
        ("all", 2, 3),
        ("gpu", 2, 3),
    ]
    assert [(each.name, each.left, each.total) for each in capacity.list_of_rails()] == [
        ("0", 2, 3),
        ("1", 0, 3),
    ]
    Fault.objects.update(is_active=False)
    assert {each.left for each in (*capacity.list_of_partitions(), *capacity.list_of_rails())} == {
        3
    }
