"""Each process writes that it is alive; what is long gone is removed."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from incidents.checks import heartbeats
from incidents.checks.heartbeats import Disk, PartBacklog, PartReport, Process
from incidents.models import Heartbeat
from tests.builders import NOW

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)
BEAT = PartReport("beat")


def a_process(pid: int = 100, host: str = "mgmt-1") -> Process:
    return Process(host, pid, "0.2.0", NOW)


def write(at: datetime, *, pid: int = 100, host: str = "mgmt-1", report: PartReport = BEAT) -> None:
    heartbeats.write(a_process(pid, host), [report], at)


def test_a_process_keeps_one_row_for_each_part_that_it_does() -> None:
    reports = [BEAT, PartReport("worker-poll", ("poll",))]
    for moment in (NOW, NOW + 10 * SECOND):
        heartbeats.write(a_process(), reports, moment)
    rows = Heartbeat.objects.order_by("part")
    assert [(row.part, row.queues, row.seen_at) for row in rows] == [
        ("beat", [], NOW + 10 * SECOND),
        ("worker-poll", ["poll"], NOW + 10 * SECOND),
    ]


def test_what_waits_at_a_part_stands_in_its_row_and_goes_from_it() -> None:
    backlog, disk = PartBacklog(4096, NOW), Disk("/var/lib/kintsugi", 10, 100)
    write(NOW, report=PartReport("receiver", (), backlog, disk))
    row = Heartbeat.objects.get()
    assert (row.backlog_bytes, row.backlog_since) == (4096, NOW)
    assert (row.directory, row.disk_free, row.disk_size) == ("/var/lib/kintsugi", 10, 100)
    write(NOW + 10 * SECOND, report=PartReport("receiver", (), PartBacklog(0, None), disk))
    row.refresh_from_db()
    assert (row.backlog_bytes, row.backlog_since) == (0, None)


def test_a_gap_in_what_it_writes_is_remembered() -> None:
    write(NOW)
    write(NOW + 30 * SECOND)
    assert Heartbeat.objects.get().unbroken_since == NOW
    write(NOW + 300 * SECOND)
    assert Heartbeat.objects.get().unbroken_since == NOW + 300 * SECOND


def test_a_process_that_stands_in_for_a_silent_one_takes_its_row() -> None:
    write(NOW)
    write(NOW + 90 * SECOND, pid=101)
    assert Heartbeat.objects.get().pid == 101


def test_two_living_processes_of_one_part_have_a_row_each_and_the_later_one_counts() -> None:
    write(NOW)
    write(NOW + 5 * SECOND, pid=101)
    assert Heartbeat.objects.count() == 2
    assert [row.pid for row in heartbeats.list_latest()] == [101]


def test_a_process_gone_for_a_day_is_forgotten() -> None:
    write(NOW, host="mgmt-2")
    write(NOW + timedelta(days=1) - SECOND)
    assert Heartbeat.objects.count() == 2
    write(NOW + timedelta(days=1))
    assert Heartbeat.objects.get().host == "mgmt-1"
