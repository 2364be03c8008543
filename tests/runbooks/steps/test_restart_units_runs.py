"""Whole runs for a dead service or a lost mount: a restart ends it without a reboot, and whatever a
restart does not end is rebooted as before. No text chooses what is restarted."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors import resources
from detectors.catalog.catalog import load
from detectors.faults import EventKind, FaultEvent, event_id
from fixtures.cluster.facets.gpu import GpuFacet
from fixtures.cluster.facets.host import HostFacet
from fixtures.cluster.facets.services import ServicesFacet
from incidents import services as incidents
from incidents.models import Expectation, Fault, Incident
from incidents.vocabulary.lifecycle import State
from runbooks import services
from runbooks.engine import turn as running
from runbooks.models import AuditEntry, Mode, Run, RunState, StepRun, StopSwitch
from tests.runbooks.site import KERNEL_RECORD, Site
from tests.security.test_forged_text import UDP

pytestmark = pytest.mark.django_db
NODE = "gn001"
FABRIC_MANAGER = "nvidia-fabricmanager"
DOWN, MISSING = "node.service.down", "storage.mount.missing"
LIMIT = timedelta(hours=1)


def a_site(mode: Mode = Mode.ARMED) -> Site:
    site = Site(nodes=6, mode=mode, verify_command=("true",))
    site.set_mode(mode, "isolate_node")
    Expectation.objects.create(kind="node", role="", mounts=["/lustre", "/home"])
    return site


def host(site: Site) -> HostFacet:
    return site.nodes.nodes[NODE].facet(HostFacet)


def units(site: Site) -> ServicesFacet:
    return site.nodes.nodes[NODE].facet(ServicesFacet)


def lose_service(site: Site, name: str = FABRIC_MANAGER) -> Incident:
    host(site).down.add(name)
    units(site).active.discard(name)
    return raise_fault(site)


def raise_fault(site: Site, fault_type: str = DOWN) -> Incident:
    incident = site.raise_fault(NODE, fault_type=fault_type, resource=resources.node(NODE))
    site.now += timedelta(minutes=5)
    return incident


def see_well(site: Site) -> None:
    """A poll finds the service running."""
    fault = Fault.objects.get(fault_type=DOWN, is_active=True)
    row = load()[DOWN]
    cleared = FaultEvent(
        event_id=event_id("poll", fault.resource, site.now, EventKind.CLEARED),
        fault_type=DOWN,
        event=EventKind.CLEARED,
        resource=fault.resource,
        source="poll",
        occurred_at=site.now,
        observed_at=site.now,
        severity=row.severity,
        action=row.action,
        component=row.component,
        excerpt="service.active = True",
        provenance=KERNEL_RECORD,
    )
    incidents.ingest([cleared], now=site.now)


def play(site: Site, incident: Incident) -> Run:
    site.start()
    run = Run.objects.filter(incident=incident).latest("pk")
    assert run.runbook == "isolate_node"
    return site.play(run, limit=LIMIT)


def play_to_restart(site: Site, incident: Incident) -> Run:
    site.start()
    run = Run.objects.filter(incident=incident).latest("pk")
    return site.play(run, until=lambda run: run.plan[run.step]["step"] == "restart_units")


def is_drained(site: Site) -> bool:
    return site.slurm.read_nodes((NODE,))[NODE].is_draining


def orders(site: Site) -> list[tuple[str, str]]:
    return units(site).orders


def test_a_dead_service_is_restarted_and_the_node_is_back_without_a_reboot() -> None:
    site = a_site()
    incident = lose_service(site)
    run = play(site, incident)
    incident.refresh_from_db()
    assert (run.state, incident.state) == (RunState.SUCCEEDED, State.MONITORING)
    assert orders(site) == [("restart", FABRIC_MANAGER)]
    assert (site.slurm.reboots(NODE), is_drained(site)) == (0, False)
    told = "nvidia-fabricmanager.service on gn001 was started, and its detector sees it run."
    assert any(text.startswith(told) for text in site.story(incident))


def test_a_lost_mount_is_mounted_and_the_node_is_back_without_a_reboot() -> None:
    site = a_site()
    host(site).unmounted.add("/lustre")
    run = play(site, raise_fault(site, MISSING))
    assert run.state == RunState.SUCCEEDED
    assert orders(site) == [("start", "lustre.mount")]
    assert (site.slurm.reboots(NODE), is_drained(site)) == (0, False)
    assert host(site).unmounted == set()


def test_all_that_is_seen_dead_is_started_in_the_order_in_which_it_needs_each_other() -> None:
    site = a_site()
    host(site).down.add("slurmd")
    host(site).unmounted.add("/home")
    run = play(site, lose_service(site, "munge"))
    assert run.state == RunState.SUCCEEDED
    expected = [("restart", "munge"), ("start", "home.mount"), ("restart", "slurmd")]
    assert orders(site) == expected
    assert site.slurm.reboots(NODE) == 0


def test_the_steps_that_were_spared_are_not_made_and_the_node_is_verified() -> None:
    site = a_site()
    run = play(site, lose_service(site))
    names = list(StepRun.objects.filter(run=run).values_list("name", flat=True))
    assert names[-3:] == ["restart_units", "verify", "resume"]
    row = StepRun.objects.get(run=run, name="restart_units", outcome="done")
    assert "asked to restart" in row.evidence["systemctl"]


@pytest.mark.parametrize("how", ["broken", "short_lived"])
def test_a_service_that_does_not_stay_up_has_its_node_rebooted(how: str) -> None:
    site = a_site()
    getattr(units(site), how).add(FABRIC_MANAGER)
    incident = lose_service(site)
    run = play(site, incident)
    assert run.state == RunState.SUCCEEDED
    assert orders(site) == [("restart", FABRIC_MANAGER)]
    assert (site.slurm.reboots(NODE), is_drained(site)) == (1, False)
    told = "A restart of services does not end node.service.down on gn001: "
    assert any(text.startswith(told) for text in site.story(incident))


def test_a_mount_whose_server_is_away_is_tried_once_and_the_node_rebooted() -> None:
    site = a_site()
    host(site).unmounted.add("/lustre")
    units(site).broken.add("lustre.mount")
    play(site, raise_fault(site, MISSING))
    assert orders(site) == [("start", "lustre.mount")]
    assert site.slurm.reboots(NODE) == 1


def test_gpus_that_a_process_uses_are_waited_for_and_a_person_is_asked() -> None:
    site = a_site()
    incident = lose_service(site)
    site.nodes.nodes[NODE].facet(GpuFacet).processes = [(4242, "python3", 3)]
    run = play_to_restart(site, incident)
    site.advance(run, times=2)
    assert "Process 4242 (python3) holds GPU" in run.waiting_for
    assert "Process 4242" in Incident.objects.get(pk=incident.pk).needs_human
    assert orders(site) == []
    site.nodes.nodes[NODE].facet(GpuFacet).processes = []
    assert site.play(run, limit=LIMIT).state == RunState.SUCCEEDED
    assert (len(orders(site)), site.slurm.reboots(NODE)) == (1, 0)


def test_gpus_that_stay_in_use_have_the_node_rebooted_and_nothing_restarted() -> None:
    site = a_site()
    incident = lose_service(site)
    site.nodes.nodes[NODE].facet(GpuFacet).processes = [(4242, "python3", 3)]
    run = play(site, incident)
    assert (orders(site), site.slurm.reboots(NODE)) == ([], 1)
    assert run.state == RunState.SUCCEEDED


def test_a_service_that_is_not_in_the_table_has_its_node_rebooted() -> None:
    site = a_site()
    Expectation.objects.update(services=["slurmd", "site-agent"])
    host(site).units.append("site-agent")
    incident = lose_service(site, "site-agent")
    play(site, incident)
    assert (orders(site), site.slurm.reboots(NODE)) == ([], 1)
    story = " ".join(site.story(incident))
    assert "site-agent is neither a service that Kintsugi restarts nor a mount" in story


@pytest.mark.parametrize("name", ["sshd", "munge.service; reboot", "nvidia-persistenced"])
def test_what_a_text_names_is_not_restarted(name: str) -> None:
    site = a_site()
    host(site).down.add(FABRIC_MANAGER)
    incident = raise_fault(site)
    for resource in (f"node/{NODE}/service/{name}", f"node/{NODE}"):
        site.raise_fault(
            NODE, fault_type=DOWN, resource=resource, source=f"{name} is dead", told_by=UDP
        )
    play(site, incident)
    assert orders(site) == [("restart", FABRIC_MANAGER)]


def test_a_text_alone_restarts_nothing() -> None:
    site = a_site()
    site.raise_fault(NODE, fault_type=DOWN, resource=f"node/{NODE}", told_by=UDP)
    site.now += timedelta(minutes=5)
    site.start()
    for run in Run.objects.all():
        site.play(run, limit=LIMIT)
    assert (orders(site), site.slurm.reboots(NODE), is_drained(site)) == ([], 0, False)


def test_what_a_restart_cannot_end_is_rebooted_at_once() -> None:
    site = a_site()
    line = "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]"
    site.nodes.nodes[NODE].kernel(line, at=site.now)
    host(site).down.add(FABRIC_MANAGER)
    incident = site.raise_fault(NODE, fault_type="node.lockup", resource=resources.node(NODE))
    site.now += timedelta(minutes=5)
    play(site, incident)
    assert (orders(site), site.slurm.reboots(NODE)) == ([], 1)


def test_what_came_back_by_itself_is_not_restarted() -> None:
    site = a_site()
    run = play_to_restart(site, lose_service(site))
    host(site).down.clear()
    run = site.play(run, limit=LIMIT)
    assert run.state == RunState.SUCCEEDED
    assert (orders(site), site.slurm.reboots(NODE)) == ([], 0)


def test_a_service_that_is_dead_again_within_a_day_has_its_node_rebooted() -> None:
    site = a_site()
    play(site, lose_service(site))
    see_well(site)
    site.now += timedelta(hours=3)
    incidents.sweep(now=site.now)
    incident = lose_service(site)
    services.start_due(None, now=site.now, world=site.world)
    run = site.play(Run.objects.latest("pk"), limit=LIMIT)
    assert run.state == RunState.SUCCEEDED
    assert (len(orders(site)), site.slurm.reboots(NODE)) == (1, 1)
    assert "restarted services there at" in " ".join(site.story(incident))


def test_a_poll_that_sees_it_run_before_the_node_is_verified_ends_no_run() -> None:
    site = a_site()
    run = play_to_restart(site, lose_service(site))
    site.advance(run)
    see_well(site)
    incidents.sweep(now=site.now)
    run = site.play(run, limit=LIMIT)
    assert (run.state, is_drained(site)) == (RunState.SUCCEEDED, False)
    assert StepRun.objects.filter(run=run, name="verify", outcome="done").exists()


def test_it_is_in_the_audit_log() -> None:
    site = a_site()
    play(site, lose_service(site))
    rows = AuditEntry.objects.filter(act="restart_units").order_by("pk")
    assert list(rows.values_list("phase", flat=True)) == ["begun", "done"]


def test_in_shadow_nothing_is_restarted_and_it_is_written_down() -> None:
    site = a_site(Mode.SHADOW)
    incident = lose_service(site)
    site.start()
    site.play(Run.objects.get(incident=incident), limit=LIMIT)
    assert (orders(site), is_drained(site)) == ([], False)
    assert "restart its dead services" in " ".join(site.story(incident))


def test_the_stop_switch_holds_it() -> None:
    site = a_site()
    run = play_to_restart(site, lose_service(site))
    StopSwitch.objects.create(reason="power works", engaged_by="alice", engaged_at=site.now)
    run = site.play(run, limit=timedelta(minutes=10))
    assert (orders(site), site.slurm.reboots(NODE), run.state) == ([], 0, RunState.RUNNING)
    assert "The stop switch is engaged" in run.waiting_for


def test_the_nodes_own_root_may_refuse_it() -> None:
    site = a_site()
    run = play_to_restart(site, lose_service(site))
    site.nodes.nodes[NODE].never = "tests until Monday"
    run = site.play(run, limit=LIMIT)
    assert (orders(site), site.slurm.reboots(NODE), run.state) == ([], 0, RunState.FAILED)


def test_an_incident_that_a_person_closes_keeps_the_node_out_once_it_was_begun() -> None:
    site = a_site()
    run = play_to_restart(site, lose_service(site))
    site.advance(run)
    incident = run.incident
    incident.refresh_from_db()
    Incident.objects.filter(pk=incident.pk).update(state=State.FALSE_POSITIVE)
    run = site.play(run, limit=LIMIT)
    assert run.state == RunState.WITHDRAWN
    assert is_drained(site)
    assert "resume it when it is well" in run.outcome


class _Killed(BaseException):
    """The worker dies here."""


@pytest.mark.parametrize("point", ["leased", "allowed", "attempted", "acted", "stored"])
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_it_is_done_once_wherever_its_worker_is_killed(point: str, turn: int) -> None:
    site = a_site()
    run = play_to_restart(site, lose_service(site))
    site.advance(run, times=turn)
    site.now = max(site.now, run.wake_at or site.now)

    def dies(at: str) -> None:
        if at == point:
            raise _Killed

    try:
        running.advance(run.pk, now=site.now, world=site.world, at=dies)
    except _Killed:
        site.now += timedelta(minutes=5)
    run = site.play(run, limit=LIMIT)
    assert run.state == RunState.SUCCEEDED
    assert orders(site) == [("restart", FABRIC_MANAGER)]
    assert site.slurm.reboots(NODE) == 0
