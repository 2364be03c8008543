"""Which reservations become windows, and how often Slurm is asked."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.slurm.reservations import Reservation
from fixtures.memory_slurm import MemorySlurm
from incidents.models import Silence
from kintsugi.periodic.reserving import follow_reservations
from tests.builders import NOW, a_node
from tests.kintsugi.beaten import Beaten

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def a_slurm(*flags: str) -> MemorySlurm:
    slurm = MemorySlurm({"gn001": ["gpu"]}, cluster_name="test", now=lambda: NOW)
    slurm.add_reservation(
        Reservation("r1", ("gn001",), frozenset(flags), NOW, NOW + timedelta(hours=1))
    )
    return slurm


def test_a_reservation_for_jobs_is_no_planned_work() -> None:
    follow_reservations(NOW, a_slurm("IGNORE_JOBS"))
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
    follow_reservations(NOW, slurm)
    slurm.is_answering = False
    follow_reservations(NOW + MINUTE, slurm)
    assert Silence.objects.get().ended_at is None
