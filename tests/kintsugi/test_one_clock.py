"""What may wait for Slurm has its own entry in the beat, and a Slurm that hangs holds up nothing
else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from fixtures.memory_slurm import MemorySlurm
from incidents.checks import periodic_tasks, slurm_reach
from incidents.checks.overload import Pace
from incidents.faults.fault_views import SILENT_TARGET
from incidents.models import Fault, Incident, Notification, PeriodicTask, VendorCase
from kintsugi import tasks
from kintsugi.periodic import periods
from kintsugi.pipeline import WAITS_FOR_SLURM
from kintsugi.servers import embedded
from runbooks.slurm.protocol import SlurmError
from tests.builders import NOW, a_fault, a_node
from tests.deployment import UNITS, Unit
from tests.incidents.vendor.test_vendor_cases import a_case
from tests.kintsugi.beaten import Beaten

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


class HangingSlurm:
    """Answers nothing until the test lets go; then it says that it could not be asked."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.is_asked, self.may_end = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        def hang(*arguments: object, **more: object) -> None:
            self.questions.append(name)
            self.is_asked.set()
            self.may_end.wait(60)
            raise SlurmError(f"{name} gave no answer")

        return hang


@contextmanager
def hanging(site: Beaten, slurm: HangingSlurm, task: str) -> Iterator[None]:
    """A process that waits for Slurm in this task, while the block runs."""

    def work() -> None:
        try:
            getattr(site.another(), task)()
        finally:
            connection.close()

    process = threading.Thread(target=work)
    process.start()
    try:
        assert slurm.is_asked.wait(30)
        yield
    finally:
        slurm.may_end.set()
        process.join(30)
    assert not process.is_alive()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
@pytest.mark.parametrize("task", [name for name in WAITS_FOR_SLURM if name != "compare"])
def test_a_slurm_that_hangs_holds_up_no_sweep_and_is_asked_by_one_process(task: str) -> None:
    slurm = HangingSlurm()
    site = Beaten(slurm)
    case: VendorCase = a_case()
    for number in range(3):
        a_node(f"gn10{number}")
        a_fault(SILENT_TARGET, f"node/gn10{number}", at=NOW)
    site.now = NOW + 30 * DAY
    with hanging(site, slurm, task):
        asked = len(slurm.questions)
        site.now += MINUTE
        getattr(site.pipeline, task)()
        assert len(slurm.questions) == asked
        site.pipeline.sweep()
        assert Notification.objects.filter(reason="vendor_late", incident=case.incident).exists()
        site.pipeline.poll_due(periods.POLL_DUE)
        assert len(slurm.questions) == asked
        assert PeriodicTask.objects.get(name=task).leased_until is not None
    assert PeriodicTask.objects.get(name=task).leased_until is None


@pytest.mark.django_db
def test_a_sweep_concludes_from_what_slurm_last_answered() -> None:
    for number in range(3):
        a_fault(SILENT_TARGET, f"node/gn10{number}", at=NOW)
    names = ["gn100", "gn101", "gn102", "gn103"]
    assert slurm_reach.list_heard(names, NOW) == ()
    slurm_reach.ask(NOW, lambda silent: [name for name in silent if name != "gn101"])
    assert slurm_reach.list_heard(names, NOW + MINUTE) == {"gn100", "gn102"}
    slurm_reach.ask(NOW + MINUTE, lambda silent: None)
    assert slurm_reach.list_heard(names, NOW + MINUTE) is None
    assert slurm_reach.list_heard(names, NOW + 4 * MINUTE) == ()


@pytest.mark.django_db
def test_slurm_is_not_asked_about_a_few_silent_machines() -> None:
    for number in range(2):
        a_fault(SILENT_TARGET, f"node/gn10{number}", at=NOW)
    slurm = HangingSlurm()
    Beaten(slurm).pipeline.ask_reach()
    assert slurm.questions == []


@pytest.mark.django_db
def test_a_queue_that_nobody_serves_is_told_and_a_beat_that_was_away_is_not() -> None:
    slurm = MemorySlurm({"gn001": ["gpu"]}, cluster_name="test", now=lambda: NOW)
    site = Beaten(slurm, pace=lambda: Pace(1.0, timedelta(hours=1)))
    late = Fault.objects.filter(fault_type=periodic_tasks.FAULT_TYPE)
    site.pipeline.tick()
    site.now += timedelta(hours=8)
    site.pipeline.sweep()
    site.now += MINUTE
    site.pipeline.tick()
    assert not late.exists()
    for _ in range(12):
        site.now += MINUTE
        site.pipeline.sweep()
    assert late.get().is_active
    assert Incident.objects.get().needs_human or Notification.objects.exists()
    site.pipeline.tick()
    site.now += MINUTE
    site.pipeline.sweep()
    assert not late.get().is_active


def test_each_has_an_entry_in_the_beat_with_a_queue_and_an_expiry_of_its_own() -> None:
    entries = settings.CELERY_BEAT_SCHEDULE
    assert set(entries) == {"sweep", "poll_due", "prune_history", *WAITS_FOR_SLURM}
    for name, entry in entries.items():
        assert entry["task"] == getattr(tasks, name).name
        assert entry["options"]["queue"] == ("slurm" if name in WAITS_FOR_SLURM else "sweep")
        assert entry["options"]["expires"] == entry["schedule"].total_seconds()


def test_every_queue_has_a_worker_and_what_waits_for_others_one_of_its_own() -> None:
    """A Slack, a slurmctld or nodes that do not answer hold up neither faults nor repairs."""
    routed = {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()}
    queues = {settings.CELERY_TASK_DEFAULT_QUEUE, *routed}
    served = [words for words in map(_queues, UNITS) if words]
    assert sorted(name for words in served for name in words) == sorted(queues)
    waiting = [words for words in served if {"notify", "poll", "slurm"} & {*words}]
    assert sorted(waiting) == [["notify"], ["poll"], ["slurm"]]
    assert sorted(words.split(",") for words in embedded.WORKERS) == sorted(served)


def _queues(unit: str) -> list[str]:
    words = Unit.read(unit).command
    return words[words.index("--queues") + 1].split(",") if "--queues" in words else []
