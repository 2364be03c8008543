"""The database's clock is set back by an hour, as when NTP mends one that was wrong since its boot:
nothing waits for the hour to pass again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models import Q

from incidents.checks import clock_steps, heartbeats
from incidents.checks.heartbeats import PartReport, Process
from incidents.models import Fault, Heartbeat, Incident, Notification, PollChunk
from runbooks.models import Mode, Run, RunbookMode, RunState
from tests.builders import NOW
from tests.kintsugi.test_pipeline import DRAIN_REBOOT_VERIFY, START, House, _lose_gpu

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@pytest.fixture
def armed(tmp_path: Path) -> House:
    RunbookMode.objects.create(
        runbook=DRAIN_REBOOT_VERIFY, mode=Mode.ARMED, set_by="test", set_at=START
    )
    return House(tmp_path)


def set_back(house: House) -> None:
    write_heartbeat(house)
    house.now -= HOUR
    write_heartbeat_of_another_process(house)


def write_heartbeat(house: House) -> None:
    heartbeats.write(Process("mgmt-1", 100, "0.2.0", START), [PartReport("web")], house.now)


def write_heartbeat_of_another_process(house: House) -> None:
    heartbeats.write(Process("mgmt-1", 101, "0.2.0", START), [PartReport("beat")], house.now)


def test_a_repair_under_way_is_gone_on_with_at_once(armed: House) -> None:
    """The simulated node's own clock was set back as well: it ends its boot an hour late."""
    armed.pipeline.ingest([_lose_gpu(armed)])
    armed.answer()
    armed.let_pass(timedelta(minutes=2))
    assert Run.objects.get().state == RunState.RUNNING
    set_back(armed)
    turns = []
    for _ in range(20):
        armed.let_pass(timedelta(seconds=30))
        turns.append(Run.objects.get().fence)
    assert turns[-1] > turns[0]
    armed.let_pass(timedelta(minutes=90))
    assert Run.objects.get().state == RunState.SUCCEEDED


def test_a_fault_that_comes_again_after_its_repair_is_no_old_one(armed: House) -> None:
    armed.pipeline.ingest([_lose_gpu(armed)])
    armed.answer()
    armed.let_pass(timedelta(hours=2))
    assert Run.objects.get().state == RunState.SUCCEEDED
    set_back(armed)
    armed.let_pass(timedelta(minutes=1))
    armed.pipeline.ingest([_lose_gpu(armed)])
    armed.answer()
    assert Fault.objects.filter(fault_type="gpu.xid.79", is_active=True).count() == 1
    assert Run.objects.count() == 2


def test_people_are_told_once_by_how_much_and_what_goes_on(armed: House) -> None:
    set_back(armed)
    armed.pipeline.evaluate_own_health()
    fault = Fault.objects.get(fault_type=clock_steps.FAULT_TYPE)
    assert fault.count == 1
    assert "set back by 1 h" in fault.evidence.get().excerpt
    armed.let_pass(timedelta(hours=2))
    assert not Fault.objects.get(fault_type=clock_steps.FAULT_TYPE).is_active


def test_nothing_of_what_waits_lies_further_ahead_than_it_did(armed: House) -> None:
    armed.pipeline.ingest([_lose_gpu(armed)])
    armed.pipeline.poll_due(timedelta(seconds=5))
    before = _list_waits(armed)
    set_back(armed)
    armed.pipeline.evaluate_own_health()
    after = _list_waits(armed)
    assert before
    assert after == before


def _list_waits(house: House) -> dict[str, timedelta]:
    """How long from now each poll, message and run waits."""
    waits = {f"poll {row.pk}": row.next_poll_at - house.now for row in PollChunk.objects.all()}
    unsent = Notification.objects.filter(due_at__gt=house.now)
    waits |= {f"message {row.pk}": row.due_at - house.now for row in unsent}
    waiting = Run.objects.filter(~Q(wake_at=None), wake_at__gt=house.now)
    waits |= {f"run {row.pk}": row.wake_at - house.now for row in waiting if row.wake_at}
    return {name: wait for name, wait in waits.items() if wait > timedelta(0)}


class TestHowAStepShows:
    def test_heartbeats_of_the_last_minute_show_none(self) -> None:
        heartbeats.write(Process("mgmt-1", 100, "0.2.0", NOW), [PartReport("web")], NOW)
        assert clock_steps.get_step_back(NOW + 10 * SECOND) is None

    def test_readings_of_two_processes_that_differ_by_a_little_show_none(self) -> None:
        heartbeats.write(Process("mgmt-2", 100, "0.2.0", NOW), [PartReport("web")], NOW + SECOND)
        assert clock_steps.get_step_back(NOW) is None

    def test_it_is_as_long_as_the_latest_heartbeat_lies_ahead(self) -> None:
        heartbeats.write(Process("mgmt-1", 100, "0.2.0", NOW), [PartReport("web")], NOW)
        assert clock_steps.get_step_back(NOW - HOUR) == HOUR

    def test_it_shows_after_every_process_has_written_again(self) -> None:
        process = Process("mgmt-1", 100, "0.2.0", NOW)
        heartbeats.write(process, [PartReport("web")], NOW)
        heartbeats.write(process, [PartReport("web")], NOW - HOUR + 5 * SECOND)
        assert clock_steps.get_step_back(NOW - HOUR + 10 * SECOND) == HOUR - 10 * SECOND

    def test_heartbeats_go_on_once_it_was_followed(self) -> None:
        process = Process("mgmt-1", 100, "0.2.0", NOW)
        heartbeats.write(process, [PartReport("web")], NOW)
        clock_steps.move_times_back(HOUR, NOW - HOUR)
        heartbeats.write(process, [PartReport("web")], NOW - HOUR + 10 * SECOND)
        assert Heartbeat.objects.get().seen_at == NOW - HOUR + 10 * SECOND

    def test_it_is_seen_once(self) -> None:
        heartbeats.write(Process("mgmt-1", 100, "0.2.0", NOW), [PartReport("web")], NOW)
        clock_steps.move_times_back(HOUR, NOW - HOUR)
        assert clock_steps.get_step_back(NOW - HOUR) is None
        assert Heartbeat.objects.get().seen_at == NOW - HOUR
        assert not Incident.objects.exists()
