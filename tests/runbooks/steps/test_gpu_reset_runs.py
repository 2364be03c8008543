"""Whole runs that reset GPUs: cured, not cured, killed in the middle, and with our own looks away
meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.faults import Recovery
from fixtures.cluster.facets.services import ServicesFacet
from incidents.models import Fault, Incident, PollPause
from incidents.polling import poll_pauses
from incidents.vocabulary.lifecycle import State
from runbooks import services
from runbooks.engine import turn as running
from runbooks.models import CureAttempt, Mode, Run, RunState, StepRun
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db

# A double bit error: the vendor asks for a reset.
FAULT = "gpu.xid.48"


def a_site(*, needs: Recovery = Recovery.GPU_RESET) -> tuple[Site, Incident]:
    site = Site(nodes=20)
    site.set_mode(Mode.ARMED, "gpu_reset")
    site.nodes.inject("gpu_ecc_uncorrectable", "gn001/gpu/0", needs=needs)
    return site, site.raise_fault(fault_type=FAULT)


def began(site: Site, incident: Incident) -> Run:
    site.now += timedelta(minutes=2)  # past any hold-down
    run = site.begin(incident)
    assert run.runbook == "gpu_reset"
    return run


def resets(site: Site) -> int:
    return sum(gpu.resets for gpu in site.nodes.nodes["gn001"].gpus)


def test_gpu_is_reset_verified_and_its_node_is_back_without_a_reboot() -> None:
    site, incident = a_site()
    run = site.play(began(site, incident))
    incident.refresh_from_db()
    assert run.state == RunState.SUCCEEDED
    assert incident.state == State.MONITORING
    assert incident.recovery == Recovery.GPU_RESET
    assert site.nodes.nodes["gn001"].boots == 0
    assert resets(site) == 1
    assert CureAttempt.objects.get().rung == Recovery.GPU_RESET
    assert not Fault.objects.filter(fault_type=FAULT, is_active=True).exists()


def test_our_looks_are_away_during_the_reset_and_back_at_the_end() -> None:
    site, incident = a_site()
    run = site.play(began(site, incident), until=lambda run: run.step == 5)
    assert "gpu" in poll_pauses.get_paused_detectors("gn001", site.now)
    site.play(run)
    assert not PollPause.objects.exists()


def test_fault_that_outlasts_the_reset_ends_the_run_uncured_and_the_rung_is_judged() -> None:
    site, incident = a_site(needs=Recovery.NODE_RESTART)
    run = site.play(began(site, incident))
    assert run.state == RunState.NOT_CURED
    cure = CureAttempt.objects.get()
    assert (cure.rung, cure.has_cured) == (Recovery.GPU_RESET, False)
    assert site.slurm.read_nodes(("gn001",))["gn001"].is_draining
    assert not PollPause.objects.exists()


def test_lost_gpu_is_not_reset_and_the_rung_counts_as_tried() -> None:
    site, incident = a_site()
    run = site.play(began(site, incident), until=lambda run: run.step == 5)
    site.nodes.inject("gpu_lost", "gn001/gpu/0")
    run = site.play(run)
    assert run.state == RunState.NOT_CURED
    assert resets(site) == 0
    assert CureAttempt.objects.get().has_cured is False


class _Killed(BaseException):
    """The worker dies here."""


@pytest.mark.parametrize("point", ["leased", "allowed", "attempted", "acted", "stored"])
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_reset_is_done_once_wherever_its_worker_is_killed(point: str, turn: int) -> None:
    site, incident = a_site()
    run = site.play(began(site, incident), until=lambda run: run.step == 5)
    site.advance(run, times=turn)
    run.refresh_from_db()
    site.now = max(site.now, run.wake_at or site.now)

    def dies(at: str) -> None:
        if at == point:
            raise _Killed

    try:
        running.advance(run.pk, now=site.now, world=site.world, at=dies)
    except _Killed:
        site.now += timedelta(minutes=5)
    for _ in range(60):
        run.refresh_from_db()
        if run.finished_at is not None:
            break
        site.now += timedelta(seconds=30)
        services.advance(run.pk, now=site.now, world=site.world)
    assert run.state == RunState.SUCCEEDED
    assert resets(site) == 1
    assert CureAttempt.objects.count() == 1
    assert "nvidia-dcgm" in site.nodes.nodes["gn001"].facet(ServicesFacet).active


def test_report_of_the_reset_stands_with_its_step() -> None:
    site, incident = a_site()
    site.play(began(site, incident))
    row = StepRun.objects.get(name="reset_gpu", outcome__in=("done", "already_done"))
    assert "was successfully reset" in row.evidence["nvidia-smi --gpu-reset"]
