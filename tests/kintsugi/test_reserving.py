"""Which reservations become windows, and how often Slurm is asked."""

from __future__ import annotations

from datetime import timedelta

import pytest

from detectors.slurm_reservations import Reservation
from fixtures.memory_slurm import MemorySlurm
from incidents.models import Silence
from kintsugi.reserving import Reserving
from tests.builders import NOW, a_node

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def a_slurm(*flags: str) -> MemorySlurm:
    slurm = MemorySlurm({"gn001": ["gpu"]}, cluster_name="test", now=lambda: NOW)
    slurm.add_reservation(Reservation("r1", ("gn001",), frozenset(flags), NOW, NOW + timedelta(hours=1)))
    return slurm


def test_a_reservation_for_jobs_is_no_planned_work() -> None:
    Reserving().due(NOW, a_slurm("IGNORE_JOBS"))
    assert not Silence.objects.exists()


def test_slurm_is_asked_once_a_minute() -> None:
    a_node("gn001")
    slurm, reserving = a_slurm("MAINT"), Reserving()
    reserving.due(NOW, slurm)
    slurm.end_reservation("r1")
    reserving.due(NOW + timedelta(seconds=55), slurm)
    assert Silence.objects.get().ended_at is None
    reserving.due(NOW + MINUTE, slurm)
    assert Silence.objects.get().ended_at == NOW + MINUTE


def test_a_slurm_that_does_not_answer_ends_no_window() -> None:
    slurm = a_slurm("MAINT")
    Reserving().due(NOW, slurm)
    slurm.is_answering = False
    Reserving().due(NOW + MINUTE, slurm)
    assert Silence.objects.get().ended_at is None
