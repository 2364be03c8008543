"""The embedded database among many threads: each write has its turn. Its file is its owner's
alone."""

from __future__ import annotations

import logging
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from incidents.models import SeenEvent
from kintsugi.sqlite import base
from kintsugi.sqlite.turns import Turns
from tests.services.patience import patient
from tests.services.ports import wait_until

ENDLESS_S = 60.0


def in_thread(work: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


class TestTurns:
    def test_turns_come_in_the_order_in_which_they_were_asked_for(self) -> None:
        turns, came = Turns(), list[int]()

        def work(number: int) -> None:
            assert turns.take(within_s=ENDLESS_S)
            came.append(number)
            turns.give_back()

        assert turns.take(within_s=0)
        threads = []
        for number in range(10):
            threads.append(in_thread(lambda number=number: work(number)))  # type: ignore[misc]
            wait_until(lambda: turns.waiting == number + 1, within_s=20, what="another in line")  # noqa: B023
        turns.give_back()
        for thread in threads:
            thread.join(patient(20))
        assert came == list(range(10))

    def test_one_that_gives_back_and_asks_again_stands_behind_who_waits(self) -> None:
        turns, came = Turns(), list[str]()
        assert turns.take(within_s=0)

        def other() -> None:
            turns.take(within_s=ENDLESS_S)
            came.append("other")
            turns.give_back()

        waiting = in_thread(other)
        wait_until(lambda: turns.waiting == 1, within_s=20, what="the other in line")
        turns.give_back()
        assert turns.take(within_s=ENDLESS_S)
        came.append("first again")
        waiting.join(patient(20))
        assert came == ["other", "first again"]

    def test_who_gives_up_waiting_holds_nobody_up(self) -> None:
        turns = Turns()
        assert turns.take(within_s=0)
        assert not turns.take(within_s=0.01)
        turns.give_back()
        assert turns.take(within_s=0)
        assert turns.waiting == 0


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("database_on_disk")
class TestWriters:
    @pytest.fixture(autouse=True)
    def impatient(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """SQLite's own patience is none: whoever leaves the line gets "database is locked" at
        once."""
        options = connection.settings_dict["OPTIONS"]
        before = options["timeout"]
        options["timeout"] = 0
        connection.close()
        yield
        options["timeout"] = before
        connection.close()

    def test_many_threads_write_and_none_is_told_that_the_database_is_locked(self) -> None:
        errors: list[Exception] = []

        def write(thread: int) -> None:
            try:
                for index in range(20):
                    with transaction.atomic():
                        SeenEvent.objects.create(
                            key=f"{thread}-{index}", recorded_at=timezone.now()
                        )
                    SeenEvent.objects.filter(key=f"{thread}-{index}").update(
                        recorded_at=timezone.now()
                    )
                    SeenEvent.objects.create(
                        key=f"{thread}-{index}-alone", recorded_at=timezone.now()
                    )
            except OperationalError as error:
                errors.append(error)

        threads = [in_thread(lambda number=number: write(number)) for number in range(8)]  # type: ignore[misc]
        for thread in threads:
            thread.join(patient(60))
        assert errors == []
        assert SeenEvent.objects.count() == 8 * 20 * 2

    def test_the_turn_is_given_back_by_commit_by_rollback_and_by_a_connection_that_closes(
        self,
    ) -> None:
        with transaction.atomic():
            SeenEvent.objects.create(key="kept", recorded_at=timezone.now())
        with transaction.atomic():
            SeenEvent.objects.create(key="undone", recorded_at=timezone.now())
            transaction.set_rollback(True)
        with transaction.atomic():
            SeenEvent.objects.create(key="closed", recorded_at=timezone.now())
            connection.close()
        other = in_thread(lambda: SeenEvent.objects.create(key="other", recorded_at=timezone.now()))
        other.join(patient(20))
        assert set(SeenEvent.objects.values_list("key", flat=True)) == {"kept", "other"}

    def test_readers_wait_for_no_writer(self) -> None:
        read: list[int] = []
        with transaction.atomic():
            SeenEvent.objects.create(key="unseen", recorded_at=timezone.now())
            in_thread(lambda: read.append(SeenEvent.objects.count())).join(patient(20))
        assert read == [0]

    def test_a_writer_that_hangs_is_named_in_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(base, "LONGEST_WAIT_S", 0.01)
        errors: list[str] = []

        def write() -> None:
            try:
                SeenEvent.objects.filter(
                    recorded_at__lt=timezone.now() - timedelta(days=7)
                ).delete()
            except OperationalError as error:
                errors.append(str(error))

        with transaction.atomic():
            in_thread(write).join(patient(20))
        assert errors == ["another thread has been writing to the database for 0.01 s"]


class TestFile:
    def test_a_new_database_is_its_owners_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "new.sqlite3"
        base.keep_private(path)
        with closing(sqlite3.connect(path)) as opened:
            opened.execute("PRAGMA journal_mode=WAL")
            opened.execute("CREATE TABLE t (x)")
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        assert modes == {"new.sqlite3": 0o600, "new.sqlite3-wal": 0o600, "new.sqlite3-shm": 0o600}

    def test_a_database_that_others_can_read_is_closed_to_them_and_a_line_says_so(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        home = tmp_path / "var"
        home.mkdir(mode=0o755)
        names = ("old.sqlite3", "old.sqlite3-wal", "old.sqlite3-shm")
        for name in names:
            (home / name).touch(mode=0o644)
        caplog.set_level(logging.WARNING, "kintsugi.database")
        base.keep_private(home / "old.sqlite3")
        assert {stat.S_IMODE((home / name).stat().st_mode) for name in names} == {0o600}
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert caplog.records[0].message == (
            f"{home} was open to others (drwxr-xr-x); it is now its owner's alone, since it holds sessions"
        )
        caplog.clear()
        base.keep_private(home / "old.sqlite3")
        assert not caplog.records

    def test_everybodys_directory_is_refused_and_stays_as_it_is(self, tmp_path: Path) -> None:
        home = tmp_path / "tmp"
        home.mkdir()
        home.chmod(0o1777)
        with pytest.raises(ImproperlyConfigured, match="KINTSUGI_DATA_DIR of its own"):
            base.keep_private(home / "kintsugi.sqlite3")
        assert stat.S_IMODE(home.stat().st_mode) == 0o1777
        assert not list(home.iterdir())

    def test_a_file_that_is_not_ours_to_close_is_refused_with_what_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "theirs.sqlite3"
        path.touch(mode=0o644)

        def refuse(self: Path, mode: int) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(Path, "chmod", refuse)
        with pytest.raises(ImproperlyConfigured, match=f"As its owner: chmod 600 {path}"):
            base.keep_private(path)
