"""Runs that act on no node: a switch is watched, storage is watched, a transceiver's neighbours are
named."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from detectors.faults import Action
from detectors.slurm.reservations import Reservation
from incidents import services as incidents
from incidents.models import Cable, Incident, Module, Port, Switch
from incidents.vocabulary.lifecycle import Trigger
from runbooks import services
from runbooks.models import Mode, Run, RunState
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def a_watched_switch(site: Site) -> Incident:
    Switch.objects.create(name="leaf-01")
    return site.raise_fault(fault_type="switch.fan", resource="switch/leaf-01")


@pytest.fixture
def site() -> Site:
    site = Site(nodes=4)
    for runbook in ("switch_watch", "storage_watch", "reseat_or_replace_transceiver"):
        site.set_mode(Mode.ARMED, runbook)
    return site


def test_switch_is_watched_and_nothing_is_done(site: Site) -> None:
    incident = a_watched_switch(site)
    run = site.advance(site.begin(incident))
    assert (run.runbook, run.node, run.place) == ("switch_watch", None, "leaf-01")
    assert "leaf-01 is watched: 1 fault stands (switch.fan on switch/leaf-01)" in run.waiting_for
    assert site.slurm.journal == []


def test_person_is_asked_when_it_lasts_and_told_once_a_day(site: Site) -> None:
    incident = a_watched_switch(site)
    run = site.play(site.begin(incident), limit=timedelta(minutes=20))
    incident.refresh_from_db()
    assert incident.needs_human == ""
    site.play(run, limit=timedelta(days=2, hours=1))
    incident.refresh_from_db()
    assert "Look at leaf-01: Kintsugi watches it and changes nothing there." in incident.needs_human
    told = [line for line in site.story(incident) if "is watched" in line]
    assert len(told) == 4  # at once, after half an hour, and after each of two days
    assert site.slurm.journal == []


def test_watch_goes_on_through_the_quiet_period_and_ends_with_the_incident(site: Site) -> None:
    incident = a_watched_switch(site)
    run = site.advance(site.begin(incident))
    incidents.act(incident.pk, Trigger.FAULTS_CLEARED, actor="kintsugi", now=site.now)
    run = site.advance(run)
    assert run.state == RunState.RUNNING
    incidents.act(incident.pk, Trigger.RESOLVE, actor="alice", now=site.now)
    run = site.advance(run)
    assert run.state == RunState.SUCCEEDED
    assert "its incident is resolved" in run.outcome


def test_shadow_says_that_it_would_watch(site: Site) -> None:
    site.set_mode(Mode.SHADOW, "switch_watch")
    incident = a_watched_switch(site)
    run = site.advance(site.begin(incident))
    assert run.state == RunState.SHADOWED
    assert site.story(incident)[-1] == (
        "Shadow mode: Kintsugi would watch leaf-01 and report, changing nothing. It would only look, tell and ask:"
        " nothing of it stands in the dry-run report."
    )
    assert services.load_episodes(site.now, site.now) == []


def test_watch_about_a_node_leaves_the_node_free_for_a_repair(site: Site) -> None:
    stored = site.raise_fault(fault_type="storage.disk.failing", resource="node/gn001")
    site.start()
    lost = site.raise_fault(fault_type="gpu.xid.79", resource=site.gpu("gn002"))
    other = site.raise_fault(
        fault_type="gpu.xid.79", resource=site.gpu("gn001"), action=Action.REBOOT
    )
    site.start()
    runs = {run.incident_id: run for run in Run.objects.all()}
    assert runs[stored.pk].node is None
    assert runs[lost.pk].node is not None
    if other.pk != stored.pk:
        assert runs[other.pk].node is not None


def test_one_watch_to_an_incident(site: Site) -> None:
    incident = a_watched_switch(site)
    site.start()
    site.start()
    assert Run.objects.filter(incident=incident).count() == 1


def begin_at_shared_module(site: Site, **job: Any) -> Run:
    wired(site)
    site.slurm.add_job("7", nodes=["gn002"], **job)
    incident = site.raise_fault(
        fault_type="nic.transceiver.rx_power_low", resource="node/gn001/nic/mlx5_0"
    )
    return site.advance(site.begin(incident))


def get_question(run: Run) -> str:
    question: str = Incident.objects.get(pk=run.incident_id).needs_human
    return question


def test_who_is_to_pull_a_shared_module_is_told_how_both_nodes_come_to_be_free(site: Site) -> None:
    ends_at = site.now + timedelta(hours=5)
    run = begin_at_shared_module(site, ends_at=ends_at)
    assert get_question(run) == (
        "Pull nothing yet: gn001, gn002 hang on switch/leaf-01/module/1. At 2025-01-15 08:00 UTC the"
        " last job there has reached its limit. No other begins that would run past it, once you"
        " have reserved them for two hours: TZ=UTC scontrol create reservation"
        f" ReservationName=incident-{run.incident_id} StartTime=2025-01-15T08:00:00 Duration=120"
        " Nodes=gn001,gn002 Users=root Flags=MAINT,IGNORE_JOBS. Kintsugi takes that for a"
        " maintenance."
    )


def test_a_job_that_begins_meanwhile_asks_nobody_anew(site: Site) -> None:
    run = begin_at_shared_module(site, ends_at=site.now + timedelta(hours=5))
    before = get_question(run)
    site.slurm.add_job("8", nodes=["gn001"], ends_at=site.now + timedelta(hours=9))
    site.now += timedelta(minutes=10)
    run = site.advance(run)
    assert "gn001: 8; gn002: 7" in run.waiting_for
    assert get_question(run) == before


def test_a_maintenance_that_holds_both_is_named_instead(site: Site) -> None:
    starts_at = site.now + timedelta(hours=5)
    run = begin_at_shared_module(site, ends_at=starts_at)
    flags = frozenset({"MAINT", "IGNORE_JOBS"})
    nodes = ("gn001", "gn002", "gn003")
    planned = Reservation("works", nodes, flags, starts_at, starts_at + timedelta(hours=2))
    site.slurm.add_reservation(planned)
    site.now += timedelta(minutes=10)
    run = site.advance(run)
    assert get_question(run).endswith(
        "They are reserved for it from 2025-01-15 08:00 UTC on (works)."
    )


def test_while_a_job_there_has_no_limit_they_may_be_drained(site: Site) -> None:
    run = begin_at_shared_module(site)
    assert get_question(run).endswith("Drain them if it cannot wait for their jobs' ends.")


def wired(site: Site) -> None:
    """One module of leaf-01 carries a NIC of gn001 and one of gn002."""
    switch = Switch.objects.create(name="leaf-01")
    module = Module.objects.create(switch=switch, name="1")
    for number, node in enumerate(("gn001", "gn002")):
        port = Port.objects.create(switch=switch, name=f"Ethernet{number}", module=module)
        Cable.objects.create(a=f"node/{node}/nic/mlx5_0", b=port.resource)


def test_neighbour_on_the_same_module_is_named_and_its_job_is_waited_for(site: Site) -> None:
    wired(site)
    site.slurm.add_job("7", nodes=["gn002"])
    incident = site.raise_fault(
        fault_type="nic.transceiver.rx_power_low", resource="node/gn001/nic/mlx5_0"
    )
    run = site.advance(site.begin(incident))
    assert (run.runbook, run.node) == ("reseat_or_replace_transceiver", None)
    assert "switch/leaf-01/module/1 carries gn001, gn002" in run.waiting_for
    incident.refresh_from_db()
    assert "Pull nothing yet" in incident.needs_human
    site.slurm.finish_job("7")
    run = site.play(run, until=lambda run: run.step > 0)
    assert run.step == 1
    assert "it can be pulled now" in run.steps.filter(index=0).latest("pk").text
    site.advance(run)
    incident.refresh_from_db()
    assert "Reseat the transceiver" in incident.needs_human
    assert site.slurm.journal == []
