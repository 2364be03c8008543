"""A node that no job can use leaves service, is repaired where a boot repairs it, and comes back;
whoever can only write a text moves none."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors import resources
from detectors.provenance import Provenance
from fixtures.cluster.facets.host import HostFacet
from fixtures.cluster.facets.services import ServicesFacet
from incidents.models import Incident
from runbooks.fleet import breaker
from runbooks.models import Mode, Run, RunState
from runbooks.node import looking
from tests.runbooks.site import KERNEL_RECORD, Site, a_context
from tests.security.test_forged_text import NODE, UDP, a_site, count_acts, is_drained, turn

pytestmark = pytest.mark.django_db
FABRIC_MANAGER = "nvidia-fabricmanager"
LINES = {
    "node.lockup": "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]",
    "node.machine_check": "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400",
    "storage.nvme.lost": "nvme nvme1: Device not ready; aborting reset, CSTS=0x1",
    "nic.firmware.unhealthy": (
        "mlx5_core 0000:0c:00.0: poll_health:789:(pid 0): device's health compromised"
    ),
}


def an_armed_site(nodes: int = 6) -> Site:
    site = a_site(nodes)
    site.set_mode(Mode.ARMED, "isolate_node")
    return site


def find_resource(site: Site, fault_type: str) -> str:
    """What the node's own kernel names in that line."""
    log = looking.read_kernel_log(a_context(site))
    site.slurm.resume(NODE)
    site.slurm.journal.clear()
    site.now += timedelta(minutes=5)
    return next(fact.resource for fact in log.raised if fact.fault_type == fault_type)


def lose_fabric_manager(site: Site, told_by: Provenance = KERNEL_RECORD) -> Incident:
    node = site.nodes.nodes[NODE]
    node.facet(ServicesFacet).active.discard(FABRIC_MANAGER)
    node.facet(HostFacet).down.add(FABRIC_MANAGER)
    return claim_service_is_down(site, told_by)


def claim_service_is_down(site: Site, told_by: Provenance) -> Incident:
    resource = f"{resources.node(NODE)}/service/{FABRIC_MANAGER}"
    (seen,) = [*list_services_down(site), resource][:1]
    return site.raise_fault(NODE, fault_type="node.service.down", resource=seen, told_by=told_by)


def list_services_down(site: Site) -> list[str]:
    inspection = looking.inspect_node(a_context(site), only=["host"])
    site.slurm.resume(NODE)
    site.slurm.journal.clear()
    site.now += timedelta(minutes=5)
    return [
        event.resource for event in inspection.raised if event.fault_type == "node.service.down"
    ]


@pytest.mark.parametrize("fault_type", LINES)
def test_what_the_nodes_own_kernel_says_is_isolated_rebooted_verified_and_given_back(
    fault_type: str,
) -> None:
    site = an_armed_site()
    site.nodes.nodes[NODE].kernel(LINES[fault_type], at=site.now)
    resource = find_resource(site, fault_type)
    site.raise_fault(NODE, fault_type=fault_type, resource=resource, told_by=UDP)
    turn(site, 1, timedelta(0))
    assert is_drained(site)
    turn(site, 60, timedelta(seconds=20))
    assert count_acts(site) == (1, 0, 0, 0)
    assert not is_drained(site)
    assert Run.objects.latest("pk").state == RunState.SUCCEEDED


@pytest.mark.parametrize("fault_type", LINES)
def test_the_same_line_by_anybody_moves_nothing(fault_type: str) -> None:
    site = an_armed_site()
    resource = f"{resources.node(NODE)}/part"
    site.raise_fault(NODE, fault_type=fault_type, resource=resource, told_by=UDP)
    turn(site, 12, timedelta(seconds=20))
    assert not is_drained(site)
    assert not Run.objects.filter(claimed_at__isnull=False).exists()
    assert "See who wrote it" in Incident.objects.latest("pk").needs_human


@pytest.mark.parametrize("setting", ["config.service", "config.munge"])
def test_a_node_without_a_service_is_isolated_whatever_setting_explains_that(setting: str) -> None:
    site = an_armed_site()
    node = site.nodes.nodes[NODE]
    node.facet(ServicesFacet).active.discard(FABRIC_MANAGER)
    node.facet(HostFacet).down.add(FABRIC_MANAGER)
    for fault_type in (setting, "node.service.down"):
        place = resources.node(NODE)
        site.raise_fault(NODE, fault_type=fault_type, resource=place, told_by=KERNEL_RECORD)
        site.now += timedelta(seconds=5)
    incident = Incident.objects.get()
    assert incident.fault_type == setting
    turn(site, 3, timedelta(seconds=20))
    run = Run.objects.get()
    assert (run.runbook, run.fault_type) == ("isolate_node", "node.service.down")
    assert is_drained(site)


def test_a_node_without_its_fabric_manager_is_isolated_and_comes_back_with_it() -> None:
    site = an_armed_site()
    lose_fabric_manager(site)
    turn(site, 1, timedelta(0))
    assert is_drained(site)
    turn(site, 60, timedelta(seconds=20))
    assert count_acts(site) == (0, 0, 0, 0)
    assert not is_drained(site)
    assert site.nodes.nodes[NODE].facet(ServicesFacet).orders == [("restart", FABRIC_MANAGER)]


def test_a_node_whose_service_stays_dead_is_not_given_back() -> None:
    site = an_armed_site()
    incident = lose_fabric_manager(site)
    run = site.begin(incident)
    site.play(run, until=lambda run: run.plan[run.step]["step"] == "verify")
    node = site.nodes.nodes[NODE]
    node.facet(ServicesFacet).active.discard(FABRIC_MANAGER)
    node.facet(HostFacet).down.add(FABRIC_MANAGER)
    run = site.play(run)
    assert run.state == RunState.NOT_CURED
    assert is_drained(site)
    assert incident.needs_human or Incident.objects.get(pk=incident.pk).needs_human


def test_a_mount_that_is_gone_everywhere_trips_the_breaker_and_drains_no_fleet() -> None:
    site = an_armed_site(nodes=20)
    for name in site.names[:8]:
        site.raise_fault(
            name, fault_type="storage.mount.missing", resource=f"node/{name}/mount/scratch"
        )
    turn(site, 3, timedelta(seconds=20))
    assert breaker.get_open_breaker() is not None
    assert not any(state.is_draining for state in site.slurm.read_nodes().values())


def test_an_unfit_node_is_drained_beyond_the_cap() -> None:
    site = an_armed_site(nodes=20)
    site.slurm.human_drain("gn020", "bob: new fans")
    lose_fabric_manager(site)
    turn(site, 1, timedelta(0))
    assert is_drained(site)
