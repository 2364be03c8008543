"""Kintsugi's faults of its own: a silent part, an old inbox, an old spool, a full disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from detectors.receivers.delivery import Backlog
from incidents import services
from incidents.checks import heartbeats, own_health
from incidents.checks.heartbeats import DatabaseView, Disk, PartBacklog, PartReport, Process
from incidents.models import Fault, Heartbeat, Incident
from tests.builders import NOW

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
GIB = 1024**3
QUIET = Backlog(0, 0, timedelta(0))
INGEST = PartReport("worker-ingest-sweep", ("ingest", "sweep"))
BEAT, WEB = PartReport("beat"), PartReport("web")


class OwnSite:
    """Processes that write every ten seconds while a test lets them, and somebody who looks."""

    def __init__(self, *reports: PartReport, host: str = "mgmt-1") -> None:
        self.now: datetime = NOW
        self.inbox = QUIET
        self.hosts = {host: dict(enumerate(reports, start=100))}

    def add(self, host: str, *reports: PartReport) -> None:
        self.hosts[host] = dict(enumerate(reports, start=100))

    def stop(self, part: str, host: str = "mgmt-1") -> None:
        running = self.hosts[host]
        self.hosts[host] = {pid: each for pid, each in running.items() if each.part != part}

    def run_for(self, length: timedelta) -> None:
        end = self.now + length
        while self.now < end:
            self.now += 10 * SECOND
            for host, running in self.hosts.items():
                for pid, report in running.items():
                    heartbeats.write(Process(host, pid, "0.2.0", NOW), [report], self.now)
            self.look()

    def look(self) -> None:
        services.ingest(services.evaluate_own_health(self.now, inbox=self.inbox), now=self.now)


def standing(fault_type: str = own_health.PART_SILENT) -> list[str]:
    faults = Fault.objects.active().filter(fault_type=fault_type).order_by("resource")
    return list(faults.values_list("resource", flat=True))


def text_of(fault_type: str) -> str:
    fault = Fault.objects.active().get(fault_type=fault_type)
    return fault.evidence.order_by("-occurred_at")[0].excerpt


def mentions(text: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word in text]


class TestSilentParts:
    def test_a_part_that_stops_is_told_after_a_minute_and_until_it_writes_again(self) -> None:
        site = OwnSite(BEAT, WEB, INGEST)
        site.run_for(5 * MINUTE)
        site.stop("beat")
        site.run_for(50 * SECOND)
        assert standing() == []
        site.run_for(20 * SECOND)
        assert standing() == ["kintsugi/mgmt-1/beat"]
        assert Incident.objects.get().owner == "kintsugi/mgmt-1"
        site.add("mgmt-1", BEAT, WEB, INGEST)
        site.run_for(10 * SECOND)
        assert standing() == []
        assert Fault.objects.get().count == 1

    def test_the_text_says_who_where_since_when_what_stops_and_what_to_do(self) -> None:
        site = OwnSite(BEAT, WEB, INGEST)
        site.run_for(5 * MINUTE)
        last = site.now
        site.stop(INGEST.part)
        site.run_for(2 * MINUTE)
        expected = [
            "worker-ingest-sweep on mgmt-1 (process 102, version 0.2.0)",
            f"has written nothing since {last:%Y-%m-%d %H:%M:%S} UTC",
            "events wait in the inbox",
            "what is due is not found",
            "`systemctl status kintsugi-ingest`",
            "ends a day after",
        ]
        assert mentions(text_of(own_health.PART_SILENT), expected) == expected

    def test_a_part_that_another_host_does_as_well_is_told_as_such(self) -> None:
        site = OwnSite(BEAT, WEB)
        site.add("mgmt-2", BEAT)
        site.run_for(5 * MINUTE)
        site.stop("beat")
        site.run_for(2 * MINUTE)
        assert "The same is done on mgmt-2" in text_of(own_health.PART_SILENT)

    def test_a_silent_beat_leads_to_a_redis_that_does_not_answer(self) -> None:
        site = OwnSite(BEAT, WEB, INGEST)
        site.run_for(5 * MINUTE)
        site.stop("beat")
        site.run_for(2 * MINUTE)
        assert "A Redis that does not answer stops it too" in text_of(own_health.PART_SILENT)
        assert "`kintsugi check`" in text_of(own_health.PART_SILENT)

    def test_parts_of_one_process_are_told_as_its_threads(self) -> None:
        site = OwnSite()
        process = Process("mgmt-1", 100, "0.2.0", NOW)
        for tick in range(60):
            site.now = NOW + tick * 10 * SECOND
            parts = [BEAT, WEB, INGEST] if tick < 40 else [WEB, INGEST]
            heartbeats.write(process, parts, site.now)
            site.look()
        assert "`kintsugi up` on mgmt-1" in text_of(own_health.PART_SILENT)

    def test_nobody_is_called_silent_after_the_database_was_away_from_all(self) -> None:
        site = OwnSite(BEAT, WEB, INGEST)
        site.run_for(5 * MINUTE)
        site.now += 10 * MINUTE
        site.look()
        heartbeats.write(Process("mgmt-1", 101, "0.2.0", NOW), [WEB], site.now)
        site.look()
        site.run_for(2 * MINUTE)
        assert not Fault.objects.exists()

    def test_a_site_that_starts_anew_calls_none_silent_that_is_about_to_start(self) -> None:
        site = OwnSite(BEAT, WEB, INGEST)
        site.run_for(5 * MINUTE)
        site.now += 60 * MINUTE
        site.stop("beat")
        site.run_for(50 * SECOND)
        assert standing() == []
        site.run_for(20 * SECOND)
        assert standing() == ["kintsugi/mgmt-1/beat"]

    def test_while_nobody_can_say_it_is_over_it_goes_on_standing(self) -> None:
        site = OwnSite(BEAT, WEB)
        site.run_for(5 * MINUTE)
        site.stop("beat")
        site.run_for(2 * MINUTE)
        site.now += 10 * MINUTE
        site.look()
        assert standing() == ["kintsugi/mgmt-1/beat"]

    def test_a_part_gone_for_a_day_is_no_longer_part_of_the_site(self) -> None:
        site = OwnSite(WEB)
        site.add("mgmt-2", BEAT)
        site.run_for(5 * MINUTE)
        site.stop("beat", host="mgmt-2")
        site.run_for(2 * MINUTE)
        assert standing() == ["kintsugi/mgmt-2/beat"]
        site.now += timedelta(days=1)
        site.run_for(2 * MINUTE)
        assert standing() == []
        assert not Heartbeat.objects.filter(host="mgmt-2").exists()

    def test_all_parts_of_a_host_that_died_are_one_incident(self) -> None:
        site = OwnSite(WEB)
        site.add("mgmt-2", BEAT, INGEST, PartReport("receiver"))
        site.run_for(5 * MINUTE)
        site.hosts.pop("mgmt-2")
        site.run_for(2 * MINUTE)
        assert len(standing()) == 3
        assert Incident.objects.get().owner == "kintsugi/mgmt-2"


class TestOldInbox:
    def test_events_that_wait_for_over_a_minute_are_told_until_they_are_worked_off(self) -> None:
        site = OwnSite(BEAT, INGEST)
        site.run_for(2 * MINUTE)
        for age, stands in ((60, False), (61, True), (45, True), (30, False), (45, False)):
            site.inbox = Backlog(7, 3 * 1024**2, age * SECOND)
            site.look()
            assert bool(standing(own_health.INBOX_OLD)) is stands, age
        assert Fault.objects.get().count == 1

    def test_the_text_says_how_much_waits_since_when_and_who_should_take_it(self) -> None:
        site = OwnSite(BEAT, INGEST)
        site.run_for(2 * MINUTE)
        site.inbox = Backlog(7, 3 * 1024**2, 2 * MINUTE)
        site.look()
        expected = [
            "7 batches of events (3.0 MiB)",
            f"since {site.now - 2 * MINUTE:%Y-%m-%d %H:%M:%S} UTC, for 2 min",
            "The workers on mgmt-1 do not get on",
            "systemctl status kintsugi-ingest",
        ]
        assert mentions(text_of(own_health.INBOX_OLD), expected) == expected

    def test_it_is_told_where_no_worker_ever_ran(self) -> None:
        site = OwnSite(BEAT)
        site.run_for(2 * MINUTE)
        site.inbox = Backlog(7, 100, 2 * MINUTE)
        site.look()
        assert "No worker takes them" in text_of(own_health.INBOX_OLD)

    def test_a_worker_that_died_is_told_once_and_not_by_its_inbox_as_well(self) -> None:
        site = OwnSite(BEAT, INGEST)
        site.run_for(2 * MINUTE)
        site.stop(INGEST.part)
        site.inbox = Backlog(7, 100, 45 * SECOND)
        site.run_for(70 * SECOND)
        site.inbox = Backlog(7, 100, 2 * MINUTE)
        site.run_for(MINUTE)
        assert (len(standing()), standing(own_health.INBOX_OLD)) == (1, [])


def a_receiver(size: int, since: datetime | None = None) -> PartReport:
    return PartReport("receiver", backlog=PartBacklog(size, since))


class TestOldSpool:
    def test_a_delivery_that_stands_still_is_told_until_it_moves(self) -> None:
        site = OwnSite(a_receiver(5 * 1024**2, NOW))
        site.run_for(MINUTE)
        assert standing(own_health.SPOOL_OLD) == []
        site.run_for(10 * SECOND)
        assert standing(own_health.SPOOL_OLD) == ["kintsugi/mgmt-1/spool"]
        expected = [
            "receiver on mgmt-1",
            "5.0 MiB",
            f"since {NOW:%Y-%m-%d %H:%M:%S} UTC",
            "journalctl -u kintsugi-receiver",
        ]
        assert mentions(text_of(own_health.SPOOL_OLD), expected) == expected
        site.add("mgmt-1", a_receiver(4 * 1024**2))
        site.run_for(10 * SECOND)
        assert standing(own_health.SPOOL_OLD) == []

    def test_a_long_delivery_that_gets_on_is_no_fault(self) -> None:
        site = OwnSite(a_receiver(GIB))
        site.run_for(5 * MINUTE)
        assert not Fault.objects.exists()

    def test_what_a_silent_receiver_has_on_disk_stays_told(self) -> None:
        site = OwnSite(a_receiver(5 * 1024**2, NOW), WEB)
        site.run_for(2 * MINUTE)
        site.stop("receiver")
        site.run_for(2 * MINUTE)
        assert standing(own_health.SPOOL_OLD) == ["kintsugi/mgmt-1/spool"]


def on_disk(free: float, size: float = 100 * GIB) -> PartReport:
    return PartReport("receiver", disk=Disk("/var/lib/kintsugi", int(free), int(size)))


class TestFullDisk:
    @pytest.mark.parametrize(
        ("size", "least"), [(100 * GIB, 2 * GIB), (5 * GIB, GIB / 2), (20 * GIB, 2 * GIB)]
    )
    def test_it_is_told_below_what_a_spool_may_need_and_ends_a_quarter_above(
        self, size: int, least: float
    ) -> None:
        site = OwnSite()
        for share, stands in ((1.01, False), (0.99, True), (1.2, True), (1.26, False)):
            site.add("mgmt-1", on_disk(least * share, size))
            site.run_for(10 * SECOND)
            assert bool(standing(own_health.DISK_FULL)) is stands, share
        assert Fault.objects.get().qualifier == "/var/lib/kintsugi"

    def test_the_text_names_directory_host_and_room(self) -> None:
        site = OwnSite(on_disk(GIB))
        site.run_for(10 * SECOND)
        expected = [
            "/var/lib/kintsugi on mgmt-1 has 1.0 GiB of 100.0 GiB free",
            "process 100",
            "less than the 2.0 GiB",
            "`df -h`",
        ]
        assert mentions(text_of(own_health.DISK_FULL), expected) == expected
        assert "Nothing can be written there" not in text_of(own_health.DISK_FULL)

    def test_one_that_takes_nothing_any_more_is_told_with_what_that_means_now(self) -> None:
        site = OwnSite(on_disk(0))
        site.run_for(10 * SECOND)
        expected = ["Nothing can be written there", "holds its senders back until there is room"]
        assert mentions(text_of(own_health.DISK_FULL), expected) == expected


def test_the_console_lists_what_stands_and_since_when() -> None:
    site = OwnSite(on_disk(GIB))
    site.run_for(10 * SECOND)
    ((since, text),) = own_health.list_standing()
    assert since == site.now
    assert "Make room" in text


class TestClocks:
    @staticmethod
    def write(host: str, ahead: timedelta, now: datetime) -> None:
        view = DatabaseView(clock_ahead=ahead)
        heartbeats.write(Process(host, 100, "0.2.0", NOW), [WEB], now, view)

    def look(self, now: datetime) -> None:
        services.ingest(services.evaluate_own_health(now, inbox=QUIET), now=now)

    def test_a_machine_whose_clock_is_wrong_is_told_with_its_name_and_by_how_much(self) -> None:
        self.write("mgmt-1", timedelta(0), NOW)
        self.write("mgmt-2", -timedelta(hours=1), NOW)
        self.look(NOW)
        assert standing(own_health.CLOCK_APART) == ["kintsugi/mgmt-2/clock"]
        expected = ["The clock of mgmt-2 is 1 h behind the database's", "`chronyc tracking`"]
        assert mentions(text_of(own_health.CLOCK_APART), expected) == expected

    @pytest.mark.parametrize(("ahead", "stands"), [(SECOND, False), (3 * SECOND, True)])
    def test_it_ends_when_the_two_agree_within_a_second(
        self, ahead: timedelta, stands: bool
    ) -> None:
        self.write("mgmt-1", 6 * SECOND, NOW)
        self.look(NOW)
        assert standing(own_health.CLOCK_APART) == ["kintsugi/mgmt-1/clock"]
        self.write("mgmt-1", ahead, NOW + 10 * SECOND)
        self.look(NOW + 10 * SECOND)
        assert bool(standing(own_health.CLOCK_APART)) is stands


class TestSlowDatabase:
    @staticmethod
    def look(*write_seconds: float, now: datetime = NOW) -> None:
        for pid, seconds in enumerate(write_seconds, start=100):
            view = DatabaseView(write_time=seconds * SECOND)
            heartbeats.write(Process("mgmt-1", pid, "0.2.0", NOW), [WEB], now, view)
        # Of several processes that do one part the last row counts: each does another here.
        for row in Heartbeat.objects.all():
            Heartbeat.objects.filter(pk=row.pk).update(part=f"web-{row.pid}")
        services.ingest(services.evaluate_own_health(now, inbox=QUIET), now=now)

    def test_it_is_told_when_most_processes_wait_for_it(self) -> None:
        self.look(2.0, 3.5, 0.1)
        assert standing(own_health.DATABASE_SLOW) == ["kintsugi/database"]
        expected = ["2 of 3 processes", ", 3.5 s at", "pg_stat_activity"]
        assert mentions(text_of(own_health.DATABASE_SLOW), expected) == expected

    def test_one_process_that_waits_for_its_own_processor_says_nothing_of_the_database(
        self,
    ) -> None:
        self.look(9.0, 0.01, 0.01)
        assert standing(own_health.DATABASE_SLOW) == []

    def test_it_ends_when_all_write_quickly(self) -> None:
        self.look(2.0, 2.0)
        assert standing(own_health.DATABASE_SLOW) == ["kintsugi/database"]
        Heartbeat.objects.all().delete()
        self.look(0.1, 0.1, now=NOW + 10 * SECOND)
        assert standing(own_health.DATABASE_SLOW) == []


class TestRedis:
    WHY = "Redis at redis1:6379 takes nothing: Connection refused. Start it."

    def refuse(self, site: OwnSite) -> None:
        self.set_trouble(site, self.WHY)

    @staticmethod
    def set_trouble(site: OwnSite, trouble: str) -> None:
        for host, running in site.hosts.items():
            site.hosts[host] = {
                pid: replace(report, trouble="" if report == WEB else trouble)
                for pid, report in running.items()
            }

    def test_one_fault_says_who_is_kept_from_work_since_when_why_and_what_rests(self) -> None:
        site = OwnSite(BEAT, WEB, INGEST)
        site.add("mgmt-2", INGEST)
        site.run_for(2 * MINUTE)
        self.refuse(site)
        began_at = site.now + 10 * SECOND
        site.run_for(MINUTE)
        assert standing(own_health.REDIS_REFUSES) == ["kintsugi/redis"]
        assert standing() == []
        text = text_of(own_health.REDIS_REFUSES)
        expected = [
            f"Since {began_at:%Y-%m-%d %H:%M:%S} UTC, for 30 s",
            self.WHY,
            "beat on mgmt-1",
            "worker-ingest-sweep on mgmt-2",
            "nothing is polled",
            "what is due is not found",
            "Nothing is lost",
        ]
        assert mentions(text, expected) == expected
        assert "web on" not in text

    def test_it_ends_when_redis_takes_work_again(self) -> None:
        site = OwnSite(BEAT, WEB, INGEST)
        site.run_for(2 * MINUTE)
        self.refuse(site)
        site.run_for(MINUTE)
        self.set_trouble(site, "")
        site.run_for(10 * SECOND)
        assert standing(own_health.REDIS_REFUSES) == []
        assert not Heartbeat.objects.exclude(trouble_since=None).exists()

    def test_a_restart_of_redis_is_told_to_nobody(self) -> None:
        site = OwnSite(BEAT, WEB, INGEST)
        site.run_for(2 * MINUTE)
        self.refuse(site)
        site.run_for(20 * SECOND)
        self.set_trouble(site, "")
        site.run_for(MINUTE)
        assert not Fault.objects.exists()
