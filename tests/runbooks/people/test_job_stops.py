"""Leave for a node's own check to stop a job: the guards of a drain, and none of a run's rights."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from incidents.models import Node
from runbooks import services
from runbooks.guards.policy import DRAIN_AND_ASK
from runbooks.guards.table import compute_cap
from runbooks.models import JobStop, Mode
from runbooks.people.job_stops import LEASE
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
LOST = ["gpu.lost"]


def ask(site: Site, node: str = "gn001", faults: list[str] | None = None) -> services.Leave:
    return services.may_stop_job(
        node, LOST if faults is None else faults, now=site.now, world=site.world
    )


@pytest.fixture
def site() -> Site:
    return Site(nodes=40)


def test_a_lost_gpu_may_stop_a_job_while_the_runbook_is_armed(site: Site) -> None:
    leave = ask(site)
    assert (leave.is_granted, leave.reason) == (True, "gpu.lost on gn001")
    assert JobStop.objects.get().expires_at == site.now + LEASE


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.SHADOW, Mode.APPROVAL])
def test_nothing_is_stopped_while_the_runbook_is_not_armed(site: Site, mode: Mode) -> None:
    site.set_mode(mode)
    site.set_mode(mode, DRAIN_AND_ASK)
    leave = ask(site)
    assert not leave.is_granted
    assert f"not armed but {mode}" in leave.reason or mode is Mode.OFF
    assert not JobStop.objects.exists()


def test_leaves_count_against_the_cap_until_they_end(site: Site) -> None:
    limit = compute_cap(40)
    assert [ask(site, f"gn{number:03d}").is_granted for number in range(1, limit + 2)] == [
        True
    ] * limit + [False]
    site.now += LEASE + timedelta(seconds=1)
    assert ask(site, "gn009").is_granted


def test_the_stop_file_ends_all_leaves(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    site = Site(nodes=40, stop_file=stop)
    assert ask(site).is_granted
    stop.touch()
    leave = ask(site, "gn002")
    assert not leave.is_granted
    assert "stop switch" in leave.reason


def test_the_stop_switch_ends_all_leaves(site: Site) -> None:
    services.stop("maintenance", actor="ada", now=site.now)
    assert not ask(site).is_granted


def test_a_node_that_the_inventory_does_not_hold_is_never_acted_upon(site: Site) -> None:
    Node.objects.filter(name="gn001").update(is_provisional=True)
    assert "not in the inventory" in ask(site).reason
    assert "not in the inventory" in ask(site, "other").reason


@pytest.mark.parametrize("faults", [[], ["nic.link.down"], ["no.such.type"]])
def test_a_fault_that_calls_for_no_runbook_stops_no_job(site: Site, faults: list[str]) -> None:
    assert not ask(site, faults=faults).is_granted


def test_nothing_is_stopped_while_slurm_cannot_say_who_is_out(site: Site) -> None:
    site.slurm.is_answering = False
    leave = ask(site)
    assert not leave.is_granted
    assert "Unable to contact slurm controller" in leave.reason
