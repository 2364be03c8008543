"""Starting runs: for which incidents, once per node, and never more nodes out than the cap, however
many ask."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection

from detectors.faults import Action
from incidents import services as incidents
from incidents.evaluation.windows import Draft, WindowKind
from incidents.maintenance import planning
from incidents.models import Node
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.guards.table import Bounds, compute_cap
from runbooks.models import Mode, Run, RunState
from tests.runbooks.site import Site
from tests.services.patience import patient


@pytest.mark.django_db
def test_run_starts_at_once_for_the_incident_that_was_touched() -> None:
    site = Site(nodes=2)
    first, second = site.lose_gpu("gn001"), site.lose_gpu("gn002")
    started = services.start_due([second.pk], now=site.now, world=site.world)
    run = Run.objects.get()
    assert started == [run.pk]
    assert run.incident == second
    assert run.fault_type == "gpu.xid.79"
    assert services.is_due(run.pk, now=site.now)
    assert site.start() == [Run.objects.get(incident=first).pk]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fault_type", "resource"),
    [
        ("switch.rebooted", "switch/leaf-03"),
        ("facility.leak", "node/gn001"),
        ("report.user", "node/gn001"),
        ("gpu.xid.79", "node/unheard-of/gpu/0000:19:00.0"),
        ("gpu.xid.79", "node/-/gpu/0000:19:00.0"),
    ],
)
def test_no_run_starts_for_what_a_node_cannot_be_cured_of(fault_type: str, resource: str) -> None:
    site = Site(nodes=2)
    site.raise_fault(fault_type=fault_type, resource=resource)
    assert site.start() == []
    assert not Run.objects.exists()


@pytest.mark.django_db
def test_no_run_starts_on_a_node_under_maintenance_and_one_does_when_it_is_over() -> None:
    site = Site(nodes=2)
    draft = Draft(
        WindowKind.MAINTENANCE,
        "new tray",
        site.now,
        site.now + timedelta(hours=1),
        machines=("node/gn001",),
    )
    planning.plan(draft, author="ada", now=site.now)
    site.lose_gpu("gn001")
    assert site.start() == []
    site.now += timedelta(hours=1)
    assert len(site.start()) == 1


@pytest.mark.django_db
def test_a_run_that_goes_on_is_refused_its_next_act_once_people_work_on_the_node() -> None:
    site = Site(nodes=2)
    site.lose_gpu("gn001")
    site.start()
    draft = Draft(
        WindowKind.MAINTENANCE,
        "new tray",
        site.now,
        site.now + timedelta(hours=1),
        machines=("node/gn001",),
    )
    planning.plan(draft, author="ada", now=site.now)
    run = site.advance(Run.objects.get())
    assert not site.slurm.read_nodes()["gn001"].is_draining
    assert "gn001 is under maintenance until" in run.waiting_for
    assert "(ada: new tray)" in run.waiting_for


@pytest.mark.django_db
def test_a_silence_alone_stops_no_repair() -> None:
    site = Site(nodes=2)
    draft = Draft(
        WindowKind.SILENCE, "known", site.now, site.now + timedelta(hours=1), resource="node/gn001"
    )
    planning.plan(draft, author="ada", now=site.now)
    site.lose_gpu("gn001")
    assert len(site.start()) == 1


@pytest.mark.django_db
def test_no_run_starts_on_a_provisional_node() -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    Node.objects.filter(name="gn001").update(is_provisional=True)
    assert site.start() == []
    assert not incident.runs.exists()


@pytest.mark.django_db
def test_second_incident_of_a_node_waits_for_the_first_ones_run() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    site.advance(run)
    site.now += timedelta(hours=1)
    other = site.raise_fault(fault_type="gpu.xid.119", resource=site.gpu("gn001", 4))
    assert site.start() == []
    services.abort(run.pk, actor="alice", now=site.now)
    assert site.start() == [Run.objects.get(incident=other).pk]


@pytest.mark.django_db
def test_run_is_held_for_the_fault_types_hold_down_and_withdrawn_when_it_clears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    until = site.now + timedelta(minutes=3)
    monkeypatch.setattr("runbooks.engine.start._get_hold_end", lambda cause: until)
    assert site.start() == []
    run = site.run_of(incident)
    assert run.wake_at == until
    assert "begins at 03:03:00 UTC, unless the fault clears before" in site.story(incident)[-1]
    incidents.act(incident.pk, Trigger.FAULTS_CLEARED, actor="kintsugi", now=site.now)
    run = site.play(run)
    assert run.state == RunState.WITHDRAWN
    assert site.slurm.journal == []


@pytest.mark.django_db
def test_unapproved_run_is_withdrawn_when_its_incident_ends() -> None:
    site = Site(nodes=2, mode=Mode.APPROVAL)
    incident = site.lose_gpu()
    site.advance(site.begin(incident))
    incidents.act(
        incident.pk, Trigger.MARK_FALSE_POSITIVE, actor="alice", note="a drill", now=site.now
    )
    site.start()
    assert site.run_of(incident).state == RunState.WITHDRAWN


@pytest.mark.django_db
def test_due_runs_are_those_whose_time_has_come_or_whose_worker_is_gone() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    assert services.get_due_runs(site.now) == [run.pk]
    Run.objects.update(leased_until=site.now + timedelta(seconds=10))
    assert services.get_due_runs(site.now) == []
    assert services.get_due_runs(site.now + timedelta(seconds=11)) == [run.pk]
    Run.objects.update(wake_at=site.now + timedelta(minutes=1))
    assert services.get_due_runs(site.now + timedelta(seconds=11)) == []


@pytest.mark.django_db
def test_incident_that_asks_for_more_than_a_reboot_gets_the_runbook_that_asks() -> None:
    site = Site(nodes=2)
    run = site.begin(site.raise_fault(action=Action.COLD_CYCLE))
    assert run.runbook == "drain_and_ask"


def at_once(count: int, work: Callable[[int], object]) -> list[object]:
    """Runs `work(0..count-1)` in as many threads that start together. Raises what any of them
    raises."""
    gate = threading.Barrier(count)

    def one(number: int) -> object:
        try:
            gate.wait(timeout=patient(30))
            return work(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.usefixtures("database_on_disk")
@pytest.mark.django_db(transaction=True)
def test_cap_holds_when_twenty_workers_drain_twenty_nodes_at_once() -> None:
    site = Site(nodes=60, bounds=Bounds(breaker_share=1))  # so many at once would trip the breaker
    runs = [site.begin(site.stall_gpu(name)) for name in site.names[:20]]
    at_once(20, lambda number: services.advance(runs[number].pk, now=site.now, world=site.world))
    out = [name for name, node in site.slurm.read_nodes().items() if node.is_out]
    assert len(out) == compute_cap(60) == 3
    assert Run.objects.filter(claimed_at__isnull=False).count() == 3
    refused = Run.objects.get(pk=runs[19].pk) if runs[19].node.name not in out else None
    assert refused is None or "the cap is 3" in refused.waiting_for


@pytest.mark.usefixtures("database_on_disk")
@pytest.mark.django_db(transaction=True)
def test_one_run_starts_when_twenty_workers_start_it_at_once() -> None:
    site = Site(nodes=2)
    incident = site.lose_gpu()
    started = at_once(
        20, lambda _: services.start_due([incident.pk], now=site.now, world=site.world)
    )
    assert Run.objects.count() == 1
    assert sum(len(ids) for ids in started if isinstance(ids, list)) == 1


@pytest.mark.usefixtures("database_on_disk")
@pytest.mark.django_db(transaction=True)
def test_one_worker_drains_when_twenty_are_rung_for_one_run() -> None:
    site = Site(nodes=2)
    run = site.begin(site.lose_gpu())
    at_once(20, lambda _: services.advance(run.pk, now=site.now, world=site.world))
    assert [act[0] for act in site.slurm.journal].count("drain") == 1


@pytest.mark.django_db
def test_next_node_is_drained_when_one_comes_back() -> None:
    site = Site(nodes=20)
    first, second = site.begin(site.stall_gpu("gn001")), site.begin(site.stall_gpu("gn002"))
    site.advance(first)
    second = site.advance(second)
    assert "1 of 20 nodes of partition gpu are out (gn001), and the cap is 1" in second.waiting_for
    assert second.steps.get().outcome == "refused"
    site.play(first)
    second = site.play(second, limit=timedelta(minutes=20))
    assert second.state == RunState.SUCCEEDED
    told = [line for line in site.story(second.incident) if "the cap is" in line]
    assert len(told) == 1
    assert "Asked again at" in told[0]


@pytest.mark.django_db
def test_drains_of_people_and_of_slurm_count_against_the_cap() -> None:
    site = Site(nodes=20)
    site.slurm.human_drain("gn009", "bob tests")
    run = site.advance(site.begin(site.stall_gpu("gn001")))
    assert "(gn009)" in run.waiting_for
    assert site.slurm.journal == []
