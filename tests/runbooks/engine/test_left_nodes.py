"""A node that a run has left drained for another incident of it is not forgotten when that incident
needs it no more."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from detectors import resources
from detectors.catalog.catalog import load
from detectors.faults import EventKind, FaultEvent, Recovery, event_id
from detectors.provenance import Provenance
from fixtures.cluster.facets.host import HostFacet
from fixtures.cluster.facets.services import ServicesFacet
from incidents import services as incidents
from incidents.models import Incident
from incidents.vocabulary.lifecycle import State, Trigger
from runbooks import services
from runbooks.guards.policy import DRAIN_AND_ASK, DRAIN_REBOOT_VERIFY
from runbooks.models import Mode, Run, RunState
from runbooks.node import looking
from tests.runbooks.site import KERNEL_RECORD, Site, a_context
from tests.security.test_forged_text import UDP

pytestmark = pytest.mark.django_db
NODE = "gn001"
NIC = f"{resources.node(NODE)}/nic/mlx5_0"
FABRIC_MANAGER = "nvidia-fabricmanager"
HOUR = timedelta(hours=1)


def acts(site: Site) -> list[str]:
    return [act[0] for act in site.slurm.journal]


def begin_with_job(site: Site) -> Run:
    """A run that has drained its node for a fault that is not there."""
    site.slurm.add_job("77", nodes=[NODE])
    run = site.play(site.begin(site.raise_fault()), limit=timedelta(minutes=1))
    site.now += timedelta(minutes=4)
    return run


def lose_nic(site: Site) -> Incident:
    return site.raise_fault(fault_type="nic.missing", resource=NIC)


def find_nic(site: Site) -> None:
    """The card answers again."""
    row = load()["nic.missing"]
    site.now += timedelta(seconds=1)
    event = FaultEvent(
        event_id=event_id("back", NIC, site.now, EventKind.CLEARED),
        fault_type=row.id,
        event=EventKind.CLEARED,
        resource=NIC,
        source="test",
        occurred_at=site.now,
        observed_at=site.now,
        severity=row.severity,
        action=row.action,
        component=row.component,
        excerpt="mlx5_0 is back",
        provenance=KERNEL_RECORD,
    )
    incidents.ingest([event], now=site.now)


def leave_for_nic(site: Site) -> tuple[Run, Incident]:
    run = begin_with_job(site)
    other = lose_nic(site)
    run = site.play(run)
    assert (run.state, acts(site)) == (RunState.WITHDRAWN, ["drain"])
    assert f"stays drained for incident #{other.pk}" in run.outcome
    return run, other


def look_on(site: Site, run: Run, limit: timedelta = HOUR) -> Run:
    """At the ended run, whenever it wants to be looked at."""
    ends_at = site.now + limit
    run.refresh_from_db()
    while run.wake_at is not None and run.wake_at <= ends_at:
        site.now = max(site.now, run.wake_at)
        services.advance(run.pk, now=site.now, world=site.world)
        run.refresh_from_db()
    return run


def test_it_is_given_back_when_the_other_fault_has_gone_before_a_run_began() -> None:
    site = Site()
    run, other = leave_for_nic(site)
    find_nic(site)
    run = look_on(site, run)
    assert acts(site) == ["drain", "resume"]
    assert f"incident #{other.pk} needs it no more" in site.story(run.incident)[-1]


def test_it_is_given_back_at_once_where_the_other_fault_had_gone_before() -> None:
    site = Site()
    run = begin_with_job(site)
    other = lose_nic(site)
    find_nic(site)
    other.refresh_from_db()
    assert other.state == State.MONITORING
    run = site.play(run)
    assert (run.state, acts(site)) == (RunState.WITHDRAWN, ["drain", "resume"])


def test_a_person_is_asked_once_where_no_runbook_may_act_for_the_other_fault() -> None:
    site = Site()
    run, other = leave_for_nic(site)
    for runbook in (DRAIN_REBOOT_VERIFY, DRAIN_AND_ASK):
        site.set_mode(Mode.SHADOW, runbook)
    assert site.play(site.begin(other)).state == RunState.SHADOWED
    run = look_on(site, run)
    other.refresh_from_db()
    assert f"Repair {NODE} and resume it" in other.needs_human
    told = [line for line in site.story(other) if f"{NODE} stays drained" in line]
    assert len(told) == 1
    incidents.act(other.pk, Trigger.RESOLVE, actor="ada", note="card seated", now=site.now)
    look_on(site, run)
    assert acts(site) == ["drain", "resume"]


def test_the_run_of_the_other_incident_takes_it_over() -> None:
    site = Site()
    run, other = leave_for_nic(site)
    site.start()
    site.advance(site.run_of(other), times=2)
    run = look_on(site, run)
    assert run.wake_at is None
    assert acts(site) == ["drain", "drain"]


def test_what_a_person_does_with_it_stands() -> None:
    site = Site()
    run, _ = leave_for_nic(site)
    site.slurm.drain(NODE, "hands inside, do not touch")
    find_nic(site)
    run = look_on(site, run)
    state = site.slurm.read_nodes((NODE,))[NODE]
    assert (state.is_draining, state.reason) == (True, "hands inside, do not touch")
    assert run.wake_at is None


def stop(site: Site, unit: str) -> None:
    node = site.nodes.nodes[NODE]
    node.facet(ServicesFacet).active.discard(unit)
    node.facet(HostFacet).down.add(unit)


def poll_services(site: Site, told_by: Provenance = KERNEL_RECORD) -> Incident:
    """What the host's detector finds comes, told by whom a test says."""
    inspection = looking.inspect_node(a_context(site), only=["host"])
    found = [replace(event, provenance=told_by) for event in inspection.raised]
    incidents.ingest(found, now=site.now)
    return Incident.objects.get(fault_type="node.service.down")


def play_until_verified(site: Site, told_by: Provenance = KERNEL_RECORD) -> tuple[Run, Incident]:
    """A GPU is lost, which a reboot brings back. Half an hour later, while the node's job goes on,
    one of its services dies for itself, and it dies again after the reboot."""
    site.slurm.add_job("77", nodes=[NODE])
    run = site.play(site.begin(site.lose_gpu()), limit=timedelta(minutes=30))
    stop(site, FABRIC_MANAGER)
    other = poll_services(site, told_by)
    assert other.pk != run.incident_id
    site.slurm.finish_job("77")
    run = site.play(run, until=lambda run: run.plan[run.step]["step"] == "verify")
    stop(site, FABRIC_MANAGER)
    return run, other


def test_a_run_whose_fault_is_cured_passes_its_node_on_to_the_other_incident() -> None:
    site = Site()
    site.set_mode(Mode.ARMED, "isolate_node")
    run, other = play_until_verified(site)
    run = site.play(run)
    assert (run.state, acts(site)) == (RunState.SUCCEEDED, ["drain", "reboot"])
    assert f"stays drained for incident #{other.pk}" in run.outcome
    run.incident.refresh_from_db()
    assert (run.incident.state, run.incident.needs_human) == (State.MONITORING, "")
    assert run.incident.recovery == Recovery.NODE_RESTART
    assert run.incident.restored_at is None  # its node is still out
    following = site.play(site.begin(other), limit=HOUR)
    assert following.state == RunState.SUCCEEDED
    assert acts(site) == ["drain", "reboot", "drain", "resume"]
    assert look_on(site, run).wake_at is None
    assert acts(site) == ["drain", "reboot", "drain", "resume"]


def test_nothing_is_passed_on_to_an_incident_for_which_no_runbook_may_act() -> None:
    site = Site()
    for runbook in ("isolate_node", DRAIN_AND_ASK):
        site.set_mode(Mode.SHADOW, runbook)
    run, _ = play_until_verified(site)
    run = site.play(run)
    assert run.state == RunState.NOT_CURED
    assert f"Examine {NODE}" in Incident.objects.get(pk=run.incident_id).needs_human


def test_nothing_is_passed_on_to_an_incident_that_only_a_text_tells_of() -> None:
    site = Site()
    site.set_mode(Mode.ARMED, "isolate_node")
    run, _ = play_until_verified(site, told_by=UDP)
    assert site.play(run).state == RunState.NOT_CURED


def test_nothing_is_passed_on_where_more_is_found_than_the_other_incident_knows() -> None:
    site = Site()
    site.set_mode(Mode.ARMED, "isolate_node")
    run, _ = play_until_verified(site)
    stop(site, "munge")
    assert site.play(run).state == RunState.NOT_CURED


def test_its_own_fault_that_stands_calls_for_the_next_rung_whatever_else_is_there() -> None:
    site = Site()
    site.set_mode(Mode.ARMED, "isolate_node")
    run, _ = play_until_verified(site)
    site.nodes.inject("gpu_dead", f"{NODE}/gpu/0")
    assert site.play(run).state == RunState.NOT_CURED


def test_a_rebooted_node_that_the_other_incident_needs_no_more_is_a_persons_to_test() -> None:
    site = Site()
    site.set_mode(Mode.ARMED, "isolate_node")
    run, other = play_until_verified(site)
    run = site.play(run)
    incidents.act(other.pk, Trigger.RESOLVE, actor="ada", note="restarted", now=site.now)
    run = look_on(site, run)
    assert acts(site) == ["drain", "reboot"]
    asked = Incident.objects.get(pk=run.incident_id).needs_human
    assert asked.startswith(f"Test {NODE} and resume it")
