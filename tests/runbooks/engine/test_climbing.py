"""The whole ladder on simulated nodes: each rung heals what it can, and what it cannot leads to the
next."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.faults import Recovery
from incidents import services as incidents
from incidents.models import Incident
from incidents.vocabulary.lifecycle import State, Trigger
from runbooks import services
from runbooks.engine import approvals
from runbooks.models import CureAttempt, Mode, Run, RunState
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db

LADDER = ("gpu_reset", "drain_reboot_verify", "cold_cycle", "vendor_replacement")
RESET, REBOOT, COLD, VENDOR = (
    Recovery.GPU_RESET,
    Recovery.NODE_RESTART,
    Recovery.COLD_CYCLE,
    Recovery.VENDOR_REPLACEMENT,
)


@pytest.fixture
def site() -> Site:
    site = Site(nodes=20)
    for runbook in LADDER:
        site.set_mode(Mode.ARMED, runbook)
    return site


def an_ill_gpu(site: Site, needs: Recovery) -> Incident:
    site.nodes.inject("gpu_ecc_uncorrectable", "gn001/gpu/0", needs=needs)
    return site.raise_fault(fault_type="gpu.ecc.row_remap_pending")


def climb(site: Site, incident: Incident, *, runs: int) -> list[Run]:
    """Plays each run to its end, and starts what follows; what waits for an approval gets it."""
    for _ in range(runs):
        site.start()
        run = Run.objects.filter(incident=incident).latest("pk")
        run = site.play(run, limit=timedelta(hours=1))
        while run.state == RunState.AWAITING_APPROVAL:
            services.approve(
                run.pk, actor="alice", seen=approvals.get_fingerprint(run), now=site.now
            )
            run = site.play(run, limit=timedelta(hours=1))
    return list(Run.objects.filter(incident=incident).order_by("pk"))


@pytest.mark.parametrize(("needs", "rungs"), [(RESET, 1), (REBOOT, 2), (COLD, 3)])
def test_node_comes_back_by_the_mildest_rung_that_heals_it(
    site: Site, needs: Recovery, rungs: int
) -> None:
    incident = an_ill_gpu(site, needs)
    runs = climb(site, incident, runs=rungs)
    assert [run.runbook for run in runs] == list(LADDER[:rungs]), [
        (run.runbook, run.outcome) for run in runs
    ]
    assert [run.state for run in runs] == [RunState.NOT_CURED] * (rungs - 1) + [
        RunState.SUCCEEDED
    ], runs[-1].outcome
    incident.refresh_from_db()
    assert (incident.state, incident.recovery) == (State.MONITORING, str(needs))
    assert not site.slurm.read_nodes(("gn001",))["gn001"].is_out
    assert [act[0] for act in site.slurm.journal].count(
        "drain"
    ) == 1  # it stays ours from rung to rung
    assert site.slurm.reboots("gn001") == (0 if needs is RESET else 1)


def test_what_no_rung_heals_is_the_vendors(site: Site) -> None:
    incident = an_ill_gpu(site, VENDOR)
    runs = climb(site, incident, runs=4)
    assert [run.runbook for run in runs] == list(LADDER)
    incident.refresh_from_db()
    assert incident.state == State.AWAITING_VENDOR
    assert [row.has_cured for row in CureAttempt.objects.order_by("pk")][:3] == [
        False,
        False,
        False,
    ]


def test_the_time_out_of_service_counts_from_the_first_rung(site: Site) -> None:
    incident = an_ill_gpu(site, REBOOT)
    climb(site, incident, runs=1)
    incident.refresh_from_db()
    since = incident.out_of_service_at
    climb(site, incident, runs=1)
    incident.refresh_from_db()
    assert since is not None
    assert incident.out_of_service_at == since


def test_the_next_rung_begins_at_once(site: Site) -> None:
    incident = an_ill_gpu(site, REBOOT)
    site.start()
    first = site.play(site.run_of(incident))
    assert first.state == RunState.NOT_CURED
    (begun,) = services.start_after(first.pk, now=site.now, world=site.world)
    second = Run.objects.get(pk=begun)
    assert (second.runbook, second.wake_at) == ("drain_reboot_verify", site.now)
    assert services.start_after(first.pk, now=site.now, world=site.world) == []


def test_rung_that_is_off_is_skipped(site: Site) -> None:
    site.set_mode(Mode.OFF, "drain_reboot_verify")
    incident = an_ill_gpu(site, COLD)
    assert [run.runbook for run in climb(site, incident, runs=2)] == ["gpu_reset", "cold_cycle"]


def test_person_is_asked_when_no_rung_is_left(site: Site) -> None:
    for runbook in LADDER[1:]:
        site.set_mode(Mode.OFF, runbook)
    incident = an_ill_gpu(site, REBOOT)
    runs = climb(site, incident, runs=2)
    assert [run.runbook for run in runs] == ["gpu_reset", "drain_and_ask"]
    incident.refresh_from_db()
    assert incident.needs_human
    assert site.start() == []


def test_lost_gpu_is_rebooted_for_and_not_reset(site: Site) -> None:
    incident = site.lose_gpu()
    assert [run.runbook for run in climb(site, incident, runs=1)] == ["drain_reboot_verify"]


def test_fault_that_is_back_within_a_day_of_a_reboot_is_power_cycled_for(site: Site) -> None:
    first = site.lose_gpu()
    climb(site, first, runs=1)
    incidents.act(first.pk, Trigger.RESOLVE, actor="alice", now=site.now)
    site.now += timedelta(hours=20)
    second = site.lose_gpu()
    site.start()
    run = site.run_of(second)
    assert run.runbook == "cold_cycle"
    assert "did not cure it" in run.facts["why"]


def test_third_time_in_14_days_is_the_vendors(site: Site) -> None:
    for _ in range(2):
        incident = site.lose_gpu()
        climb(site, incident, runs=1)
        incidents.act(incident.pk, Trigger.RESOLVE, actor="alice", now=site.now)
        site.now += timedelta(days=4)
        services.evaluate_outcomes(site.now)
    third = site.lose_gpu()
    site.start()
    run = site.run_of(third)
    assert run.runbook == "vendor_replacement"
    assert "2 restarts for it within 14 days" in run.facts["why"]
    assert site.slurm.reboots("gn001") == 2
