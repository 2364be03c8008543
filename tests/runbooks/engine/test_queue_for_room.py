"""Many runs wait for room: the gravest asks first, then the oldest, and slurmctld is not asked by all of them
each minute."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.provenance import Forger, Provenance, Transport
from incidents.models import Incident, Node, Notification
from runbooks import services
from runbooks.fleet import breaker
from runbooks.guards.policy import DRAIN_REBOOT_VERIFY
from runbooks.guards.verdicts import Bounds, Refusal
from runbooks.models import RunState
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db

FORGED = Provenance("10.9.8.7", Transport.UDP, program="kernel", forger=Forger.ANYONE)


def test_runs_that_wait_for_room_ask_in_turns_of_twenty_the_oldest_first() -> None:
    site = Site(nodes=46, bounds=Bounds(cap_nodes=1, breaker_share=1.0, per_hour=1000))
    incidents = [site.stall_gpu(name) for name in site.names]
    site.start()
    first, *others = [site.run_of(incident) for incident in incidents]
    assert site.advance(first).claimed_at is not None
    asked_again = [site.advance(run).wake_at for run in others]
    minute = timedelta(minutes=1)
    assert [at - site.now for at in asked_again if at] == [minute] * 20 + [2 * minute] * 20 + [
        3 * minute
    ] * 5


def test_the_oldest_takes_the_place_that_comes_free() -> None:
    site = Site(nodes=4, bounds=Bounds(cap_nodes=1, breaker_share=1.0, per_hour=1000))
    incidents = [site.stall_gpu(name) for name in site.names]
    site.start()
    first, second, third, _ = [site.run_of(incident) for incident in incidents]
    site.advance(first)
    site.advance(second)
    site.advance(third)
    site.play(first)
    site.now += timedelta(minutes=5)
    assert site.advance(second).claimed_at is not None
    assert site.advance(third).claimed_at is None


def a_full_site(**bounds: object) -> Site:
    """One place, which a node that bob has taken out holds."""
    limits = {"cap_nodes": 1, "breaker_share": 1.0, "per_hour": 1000, **bounds}
    site = Site(nodes=20, bounds=Bounds(**limits))  # type: ignore[arg-type]
    site.slurm.human_drain("gn020", "bob: new fans")
    return site


def test_a_node_that_is_seen_to_be_of_no_use_is_drained_beyond_every_limit_on_number() -> None:
    site = a_full_site(per_hour=0, pod_floor=1.0)
    site.slurm.add_waiting_job("17", nodes=19, partitions=["gpu"])
    incident = site.lose_gpu()
    run = site.advance(site.begin(incident))

    assert site.slurm.read_nodes()["gn001"].is_draining
    (told,) = incident.timeline.filter(kind="beyond_limit")
    assert told.text.startswith("gn001 is drained beyond a limit, since it is of no use to any job")
    assert "is seen there" in told.text
    assert "the limit is 0 an hour" in told.text
    assert Notification.objects.filter(incident=incident, reason="beyond_limit").exists()
    assert run.claimed_at is not None


def test_a_line_that_the_node_itself_does_not_bear_out_is_held_by_the_cap() -> None:
    site = a_full_site()
    run = site.advance(site.begin(site.raise_fault()))
    assert not site.slurm.read_nodes()["gn001"].is_draining
    assert "the cap is 1" in run.waiting_for


def test_a_node_that_cannot_be_looked_at_is_held_by_the_cap() -> None:
    site = a_full_site()
    incident = site.lose_gpu()
    site.shell.silent.add("gn001")
    run = site.advance(site.begin(incident))
    assert "the cap is 1" in run.waiting_for


def test_the_breaker_alone_holds_a_node_that_is_of_no_use() -> None:
    site = a_full_site()
    breaker.trip("14 of 20 nodes turned bad", site.now)
    run = site.advance(site.begin(site.lose_gpu()))
    assert site.slurm.journal == []
    assert run.facts["refused"] == Refusal.BREAKER


def test_a_person_decides_on_the_repair_where_the_drain_could_not_wait_for_them() -> None:
    site = Site(nodes=20, bounds=Bounds(cap_nodes=1, approval_above=1, breaker_share=1.0))
    first, second = (site.begin(site.lose_gpu(name)) for name in ("gn001", "gn002"))
    site.advance(first)
    second = site.play(second, until=lambda run: run.state == RunState.AWAITING_APPROVAL)
    assert site.slurm.read_nodes()["gn002"].is_drained
    assert second.plan[second.step]["step"] == "reboot"
    assert site.slurm.reboots("gn002") == 0


def test_the_gravest_takes_the_place_that_comes_free_and_then_the_oldest() -> None:
    site = a_full_site()
    minor = site.begin(site.raise_fault("gn001", fault_type="gpu.ecc.row_remap_pending"))
    major = site.begin(site.stall_gpu("gn002"))
    for run in (minor, major):
        assert "the cap is 1" in site.advance(run).waiting_for
    site.slurm.human_resume("gn020")
    site.now += timedelta(minutes=5)

    minor = site.advance(minor)
    assert "gn002 goes first, with a graver fault" in minor.waiting_for
    assert site.advance(major).claimed_at is not None
    assert site.advance(minor).claimed_at is None


def test_a_lesser_run_that_only_waits_for_its_jobs_end_holds_no_place() -> None:
    site = Site(nodes=20, bounds=Bounds(cap_nodes=1, breaker_share=1.0))
    site.slurm.add_job("17", nodes=["gn001"], ends_at=site.now + timedelta(minutes=30))
    minor = site.begin(site.raise_fault("gn001", fault_type="gpu.ecc.row_remap_pending"))
    site.play(minor, until=lambda run: run.step > 0 and run.waiting_for != "")
    assert site.slurm.read_nodes()["gn001"].is_draining

    major = site.advance(site.begin(site.stall_gpu("gn002")))
    assert major.claimed_at is not None
    another = site.advance(site.begin(site.stall_gpu("gn003")))
    assert "(gn002)" in another.waiting_for


def a_fault_with_a_forged_text(site: Site, node: str) -> Incident:
    """A GPU really has uncorrectable errors; anybody may have written that it is lost."""
    site.raise_fault(node, told_by=FORGED)
    site.nodes.inject("gpu_ecc_uncorrectable", f"{node}/gpu/0")
    return site.raise_fault(node, fault_type="gpu.ecc.uncorrectable")


def test_a_text_that_makes_an_incident_grave_takes_no_place_from_a_run_that_waits_for_jobs() -> (
    None
):
    site = Site(nodes=20, bounds=Bounds(cap_nodes=1, breaker_share=1.0))
    site.slurm.add_job("17", nodes=["gn001"], ends_at=site.now + timedelta(minutes=30))
    first = site.begin(site.stall_gpu("gn001"))
    site.play(first, until=lambda run: run.step > 0 and run.waiting_for != "")

    forged = site.begin(a_fault_with_a_forged_text(site, "gn002"))
    assert forged.incident.severity == "critical"
    assert forged.fault_type == "gpu.ecc.uncorrectable"
    forged = site.advance(forged)
    assert forged.claimed_at is None
    assert "the cap is 1" in forged.waiting_for


def test_no_place_is_kept_for_a_run_that_a_text_alone_makes_grave() -> None:
    site = a_full_site()
    forged = site.begin(a_fault_with_a_forged_text(site, "gn002"))
    older = site.begin(site.stall_gpu("gn001"))
    for run in (forged, older):
        assert "the cap is 1" in site.advance(run).waiting_for
    site.slurm.human_resume("gn020")
    site.now += timedelta(minutes=5)
    assert site.advance(older).claimed_at is not None


def test_a_place_is_kept_for_a_run_that_a_person_has_asked_for_whoever_told_of_its_fault() -> None:
    site = a_full_site()
    incident = site.raise_fault("gn002", told_by=FORGED)
    services.start_manual_run(
        DRAIN_REBOOT_VERIFY, incident.pk, actor="bob", note="seen by hand", now=site.now
    )
    asked_for = site.run_of(incident)
    older = site.begin(site.stall_gpu("gn001"))
    for run in (asked_for, older):
        assert "the cap is 1" in site.advance(run).waiting_for
    site.slurm.human_resume("gn020")
    site.now += timedelta(minutes=5)
    assert "gn002 goes first, with a graver fault" in site.advance(older).waiting_for
    assert site.advance(asked_for).claimed_at is not None


def test_a_boot_by_anybody_counts_as_a_reboot() -> None:
    site = Site()
    Node.objects.filter(name="gn001").update(boot_seen_at=site.now - timedelta(hours=2))
    run = site.begin(site.lose_gpu())
    run = site.play(run, until=lambda run: "refused" in run.facts)
    assert run.facts["refused"] == Refusal.REBOOTED_LATELY
    assert "booted at 2025-01-15 01:00 UTC, by no run of Kintsugi's" in run.waiting_for
    assert site.slurm.reboots("gn001") == 0
    site.now += timedelta(hours=22)
    site.play(run, until=lambda run: site.slurm.reboots("gn001") > 0)
    assert site.slurm.reboots("gn001") == 1
