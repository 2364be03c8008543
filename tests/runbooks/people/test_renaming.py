"""A node gets another name in mid-run: one history, one run, one drain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.apps import apps
from django.core import serializers

from detectors.evaluation.judge import Memory, Sample
from detectors.faults import fingerprint
from incidents.models import (
    Alias,
    Fault,
    Incident,
    InService,
    Node,
    Poll,
    PollChunk,
    Silence,
)
from incidents.polling import polling
from incidents.services import ingest
from runbooks.models import AuditEntry, Run, RunState
from runbooks.outcomes import Controlled, ControlRefused, Outcome
from runbooks.people import renaming
from runbooks.shadow import shadow_log
from tests.builders import an_event
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
OLD, NEW = "gn001", "rack7-gn1"


def rename_in_slurm(site: Site) -> None:
    """And the machine itself."""
    site.slurm.rename(OLD, NEW)
    node = site.nodes.nodes.pop(OLD)
    node.name = NEW
    site.nodes.nodes[NEW] = node


def rename(site: Site, new: str = NEW) -> Outcome:
    return renaming.rename(
        OLD, new, actor="ada", why="rows are numbered", world=site.world, now=site.now
    )


def under_way(step: str) -> tuple[Site, Run]:
    site = Site(nodes=3)
    run = site.begin(site.lose_gpu())
    run = site.play(run, until=lambda run: run.plan[run.step]["step"] == step)
    return site, run


def rows_with(name: str) -> Iterator[str]:
    """Each column that holds the name or a path of it and nothing else, of all tables."""
    path = f"node/{name}"
    for app in ("incidents", "runbooks"):
        for model in apps.get_app_config(app).get_models():
            for row in serializers.serialize("python", model._default_manager.all()):
                for column, value in {**row["fields"], "pk": row["pk"]}.items():
                    texts = json.dumps(value, default=str)
                    is_here = f'"{name}"' in texts or f'"{path}"' in texts
                    if is_here or f'"{path}/' in texts or f"\\n{name}\\n" in texts:
                        yield f"{model.__name__}.{column}"


@pytest.mark.parametrize("step", ["wait_for_jobs", "confirm_on_node", "reboot", "verify"])
def test_a_run_under_way_ends_well_under_the_new_name(step: str) -> None:
    site, run = under_way(step)
    reason = site.slurm.read_nodes((OLD,))[OLD].reason.split(" : ")[0]
    rename_in_slurm(site)
    assert not site.slurm.read_nodes((NEW,))[NEW].is_out, (
        "Slurm keeps no drain for a name that is gone"
    )
    outcome = rename(site)
    assert isinstance(outcome, Controlled), outcome
    assert site.slurm.read_nodes((NEW,))[NEW].reason == reason
    run = site.play(run)
    assert run.state == RunState.SUCCEEDED, run.outcome
    assert not site.slurm.read_nodes((NEW,))[NEW].is_out
    assert site.slurm.reboots(OLD) + site.slurm.reboots(NEW) == 1
    assert Run.objects.count() == 1


def test_faults_incidents_parts_polls_and_windows_have_one_history() -> None:
    site, _run = under_way("wait_for_jobs")
    node = Node.objects.get(name=OLD)
    gpu = site.gpu(OLD)
    InService.objects.create(
        part="gpu", serial="S1", slot=gpu, owner=f"node/{OLD}", from_at=site.now, came="seen"
    )
    memory = Memory(samples={(gpu, "gpu.ecc"): Sample(3, site.now)})
    Poll.objects.create(
        detector="gpu", kind="node", target=OLD, memory=polling.pack(memory, site.now)
    )
    PollChunk.objects.create(
        detector="gpu",
        kind="node",
        number=0,
        next_poll_at=site.now,
        size=2,
        targets=f"\n{OLD}\ngn002\n",
    )
    Silence.objects.create(
        kind="maintenance",
        resource=f"node/{OLD}",
        machines=[f"node/{OLD}", "node/gn002"],
        reason="x",
        author="ada",
        recorded_at=site.now,
        starts_at=site.now - timedelta(days=2),
        ends_at=site.now - timedelta(days=1),
    )
    rename_in_slurm(site)
    assert isinstance(rename(site), Controlled)
    assert Node.objects.get(pk=node.pk).name == NEW
    fault = Fault.objects.get()
    assert fault.resource == gpu.replace(OLD, NEW)
    assert fault.fingerprint == fingerprint(fault.resource, fault.fault_type, fault.qualifier)
    poll = Poll.objects.get(detector="gpu", target=NEW)
    known = polling.unpack(bytes(poll.memory), site.now)
    assert known.samples[gpu.replace(OLD, NEW), "gpu.ecc"].value == 3
    assert PollChunk.objects.get(detector="gpu", number=0).targets == f"\n{NEW}\ngn002\n"
    told_then = {"Fault.best_provenance", "Fault.last_provenance", "AuditEntry.node"}
    assert set(rows_with(OLD)) - told_then == {"Alias.name"}
    incident = Incident.objects.get()
    text = f"{OLD} is called {NEW} from now on, says ada: rows are numbered"
    assert incident.timeline.filter(kind="renamed", text=text).count() == 1
    assert AuditEntry.objects.filter(act="rename", node=NEW, actor="ada").count() == 1


def test_a_line_that_still_comes_under_the_old_name_counts_for_the_same_fault() -> None:
    site, _ = under_way("wait_for_jobs")
    event = an_event(
        resource=site.gpu(OLD), fault_type="gpu.xid.79", occurred_at=site.now, observed_at=site.now
    )
    rename_in_slurm(site)
    rename(site)
    site.now += timedelta(seconds=30)
    ingest([event], now=site.now)
    fault = Fault.objects.get()
    assert (fault.owner, fault.count) == (f"node/{NEW}", 2)
    assert Alias.objects.get(name=OLD).resource == f"node/{NEW}"


def test_a_worker_that_was_at_the_run_stores_nothing_more() -> None:
    site, run = under_way("wait_for_jobs")
    before = Run.objects.get(pk=run.pk)
    rename_in_slurm(site)
    rename(site)
    after = Run.objects.get(pk=run.pk)
    assert after.fence > before.fence
    assert after.wake_at == site.now


def test_a_drain_that_an_ended_run_has_left_stands_under_the_new_name() -> None:
    site = Site(nodes=3)
    run = site.play(site.begin(site.lose_gpu(is_dead=True)))
    shadow_log.record_external_acts(site.slurm.read_nodes(), site.now)
    shadow_log.record_external_acts(site.slurm.read_nodes(), site.now)
    assert run.finished_at is not None
    reason = site.slurm.read_nodes((OLD,))[OLD].reason.split(" : ")[0]
    rename_in_slurm(site)
    assert isinstance(rename(site), Controlled)
    assert site.slurm.read_nodes((NEW,))[NEW].reason == reason


def test_a_persons_drain_is_theirs_to_write_anew() -> None:
    site = Site(nodes=3)
    shadow_log.record_external_acts(site.slurm.read_nodes(), site.now)
    site.slurm.human_drain(OLD, "bob: hands inside")
    shadow_log.record_external_acts(site.slurm.read_nodes(), site.now)
    rename_in_slurm(site)
    outcome = rename(site)
    assert isinstance(outcome, ControlRefused)
    assert 'gn001 was taken out by a person ("bob: hands inside")' in outcome.reason
    site.slurm.human_drain(NEW, "bob: hands inside")
    assert isinstance(rename(site), Controlled)
    assert site.slurm.journal == []


@pytest.mark.parametrize("history", ["fault", "part"])
def test_two_histories_are_not_made_one(history: str) -> None:
    site = Site(nodes=3)
    site.add_node(NEW)
    if history == "fault":
        site.nodes.nodes[NEW] = site.nodes.nodes["gn002"]
        site.raise_fault(NEW, resource=f"node/{NEW}/gpu/0000:19:00.0")
    else:
        InService.objects.create(
            part="gpu",
            serial="S1",
            slot=f"node/{NEW}/gpu/0000:19:00.0",
            owner=f"node/{NEW}",
            from_at=site.now,
            to_at=site.now,
            came="seen",
        )
    site.slurm.rename(OLD, NEW)
    outcome = rename(site)
    assert isinstance(outcome, ControlRefused)
    assert f"{NEW} has a history of its own" in outcome.reason
    assert Node.objects.filter(name=OLD).exists()


def test_an_empty_row_of_the_new_name_makes_room() -> None:
    site = Site(nodes=3)
    site.add_node(NEW)
    site.slurm.rename(OLD, NEW)
    pk = Node.objects.get(name=OLD).pk
    assert isinstance(rename(site), Controlled)
    assert Node.objects.get(name=NEW).pk == pk


@pytest.mark.parametrize(
    ("new", "why"),
    [
        ("gn900", "Slurm knows no node gn900"),
        ("gn002", "Slurm knows both gn001 and gn002"),
        ("GN 1", "is no node's name"),
        (OLD, "is called so already"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_changes_nothing(new: str, why: str) -> None:
    site = Site(nodes=2)
    outcome = rename(site, new)
    assert isinstance(outcome, ControlRefused)
    assert why in outcome.reason
    assert set(Node.objects.values_list("name", flat=True)) == {OLD, "gn002"}


def test_slurm_that_does_not_answer_renames_nothing() -> None:
    site = Site(nodes=1)
    site.slurm.is_answering = False
    outcome = rename(site)
    assert isinstance(outcome, ControlRefused)
    assert "nothing was renamed" in outcome.reason
