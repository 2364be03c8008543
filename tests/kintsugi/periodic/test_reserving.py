"""Which reservations become windows, and how often Slurm is asked."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from detectors.slurm.reservations import Reservation
from fixtures.memory_slurm import MemorySlurm
from incidents.models import Silence
from kintsugi.periodic.reserving import follow_reservations, remove_needless
from runbooks.models import AuditEntry, Mode, Run
from runbooks.slurm.protocol import format_own_name
from runbooks.step import World
from tests.builders import NOW, a_node
from tests.kintsugi.beaten import Beaten
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def a_slurm(*flags: str) -> MemorySlurm:
    slurm = MemorySlurm({"gn001": ["gpu"]}, cluster_name="test", now=lambda: NOW)
    slurm.add_reservation(
        Reservation("r1", ("gn001",), frozenset(flags), NOW, NOW + timedelta(hours=1))
    )
    return slurm


def a_world(slurm: MemorySlurm) -> World:
    return replace(Site(nodes=0).world, slurm=slurm, writer=slurm)


def begin_minor_repair(site: Site) -> Run:
    """Its node runs a job of three days, and is reserved from then on."""
    site.set_mode(Mode.ARMED, "gpu_reset")
    site.slurm.add_job("17", nodes=["gn001"], ends_at=site.now + timedelta(days=3))
    site.nodes.inject("gpu_ecc_uncorrectable", "gn001/gpu/0")
    incident = site.raise_fault("gn001", fault_type="gpu.ecc.row_remap_pending")
    site.now += timedelta(minutes=2)
    run = site.advance(site.begin(incident), times=2)
    assert len(site.slurm.list_reservations()) == 1
    return run


def remove(site: Site, **changes: Any) -> list[str]:
    """The names of the reservations that are left."""
    world = replace(site.world, **changes)
    remove_needless(site.slurm.list_reservations(), site.now, world)
    return [reservation.name for reservation in site.slurm.list_reservations()]


def test_a_reservation_for_jobs_is_no_planned_work() -> None:
    follow_reservations(NOW, a_world(a_slurm("IGNORE_JOBS")))
    assert not Silence.objects.exists()


def test_slurm_is_asked_once_a_minute() -> None:
    a_node("gn001")
    slurm = a_slurm("MAINT")
    site = Beaten(slurm)
    site.pipeline.follow_reservations()
    slurm.end_reservation("r1")
    site.now = NOW + timedelta(seconds=55)
    site.pipeline.follow_reservations()
    assert Silence.objects.get().ended_at is None
    site.now = NOW + MINUTE
    site.pipeline.follow_reservations()
    assert Silence.objects.get().ended_at == NOW + MINUTE


def test_a_slurm_that_does_not_answer_ends_no_window() -> None:
    slurm = a_slurm("MAINT")
    follow_reservations(NOW, a_world(slurm))
    slurm.is_answering = False
    follow_reservations(NOW + MINUTE, a_world(slurm))
    assert Silence.objects.get().ended_at is None


def test_while_a_minor_repair_waits_its_node_stays_reserved() -> None:
    site = Site(nodes=20)
    run = begin_minor_repair(site)
    assert remove(site) == [f"kintsugi_{run.pk}-0-drain"]


def test_once_its_node_is_drained_the_reservation_goes() -> None:
    site = Site(nodes=20)
    run = begin_minor_repair(site)
    site.slurm.finish_job("17")
    site.now += timedelta(minutes=1)
    site.play(run, until=lambda run: run.step > 0)
    assert remove(site) == []
    entry = AuditEntry.objects.get(act="unreserve")
    assert entry.text == (
        f"The reservation kintsugi_{run.pk}-0-drain is taken away: nothing waits for an idle moment"
        " of gn001."
    )


def test_once_its_run_is_over_the_reservation_goes() -> None:
    site = Site(nodes=20)
    run = begin_minor_repair(site)
    Run.objects.filter(pk=run.pk).update(state="aborted", finished_at=site.now)
    assert remove(site) == []


def test_a_process_that_only_looks_takes_none_away() -> None:
    site = Site(nodes=20)
    run = begin_minor_repair(site)
    Run.objects.filter(pk=run.pk).update(state="aborted", finished_at=site.now)
    assert remove(site, writer=None) == [f"kintsugi_{run.pk}-0-drain"]


@pytest.mark.parametrize(
    "name", [format_own_name("4711-0-drain"), format_own_name("1-2-diagnose"), "maintenance-1"]
)
def test_what_no_run_of_ours_made_for_that_is_left(name: str) -> None:
    site = Site(nodes=20)
    ends_at = site.now + timedelta(hours=1)
    found = Reservation(name, ("gn001",), frozenset({"IGNORE_JOBS"}), site.now, ends_at)
    site.slurm.add_reservation(found)
    assert remove(site) == [name]


def test_a_slurm_that_refuses_is_asked_again() -> None:
    site = Site(nodes=20)
    run = begin_minor_repair(site)
    Run.objects.filter(pk=run.pk).update(state="aborted", finished_at=site.now)
    shown = site.slurm.list_reservations()
    site.slurm.is_answering = False
    assert remove_needless(shown, site.now, site.world) == 0
    site.slurm.is_answering = True
    assert remove_needless(shown, site.now, site.world) == 1
