"""What ended before the kept time goes to files and then out of the database; what is open, or of
which anything happened since, stays. Nothing is in neither."""

from __future__ import annotations

import itertools
import json
import stat
import sys
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.apps import apps
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import CASCADE, Model

from incidents.models import (
    Decision,
    Evidence,
    Fault,
    Incident,
    IncidentFault,
    KeptPeriod,
    Notification,
    QuarantinedEvent,
    SiteChange,
    TimelineEntry,
    UserReport,
    VendorCase,
)
from incidents.statistics import statistics
from incidents.vocabulary.lifecycle import State
from kintsugi import tasks
from kintsugi.history import files, retention, units
from runbooks.models import AuditEntry, Mode, Run, RunState, StepRun
from tests.builders import NOW, a_fault, a_node, an_incident

pytestmark = pytest.mark.django_db
OLD = NOW - timedelta(days=800)
BEFORE = NOW - timedelta(days=730)
_numbers = itertools.count(1)


def _ended(at: datetime = OLD, **values: Any) -> Incident:
    """A closed incident with a row of each kind that hangs on one, its fault ended."""
    number = next(_numbers)
    resource = f"node/gn{number:03}/gpu/0000:9b:00.0"
    fault = a_fault("gpu.xid.79", resource, is_active=False, cleared_at=at)
    incident = an_incident(fault=fault, at=at, state=State.RESOLVED, closed_at=at, **values)
    entry = TimelineEntry.objects.create(
        incident=incident,
        kind="opened",
        actor="kintsugi",
        text="it",
        occurred_at=at,
        recorded_at=at,
    )
    Notification.objects.create(
        incident=incident,
        channel="console",
        reason="opened",
        sequence=1,
        entry=entry,
        due_at=at,
        recorded_at=at,
    )
    Decision.objects.create(incident=incident, kind="opened", text="nothing", recorded_at=at)
    Decision.objects.create(fault=fault, kind="held", text="waited", recorded_at=at)
    Evidence.objects.create(
        fault=fault, position="first", slot=0, source="syslog", occurred_at=at, excerpt="NVRM: Xid"
    )
    run = _run(incident, state=RunState.SUCCEEDED, finished_at=at)
    StepRun.objects.create(run=run, index=0, name="drain", outcome="done", started_at=at)
    return incident


def _run(incident: Incident, **values: Any) -> Run:
    started = {"fault_type": "gpu.xid.79", "mode": Mode.ARMED, "started_at": incident.opened_at}
    return Run.objects.create(
        incident=incident, node=incident.node, runbook="drain_reboot_verify", **started, **values
    )


def _rows() -> set[tuple[str, int]]:
    """Every row that may leave, by model and number."""
    models = {Incident, Fault, Run, QuarantinedEvent, SiteChange, AuditEntry}
    models |= {model for model, _ in (*units.OF_INCIDENT, *units.OF_FAULT)}
    return {
        (model._meta.label_lower, pk)
        for model in models
        for pk in model._default_manager.values_list("pk", flat=True)
    }


def _exported(directory: Path) -> set[tuple[str, int]]:
    rows = (row for unit in files.read(directory).values() for row in unit["rows"])
    return {(row["model"], row["pk"]) for row in rows}


def test_what_ended_before_is_in_the_files_whole_and_no_longer_in_the_database(
    tmp_path: Path,
) -> None:
    incident = _ended()
    QuarantinedEvent.objects.create(event_id="e", wire={}, error="broke", recorded_at=OLD)
    AuditEntry.objects.create(at=OLD, actor="kintsugi", act="drain", phase="done")
    SiteChange.objects.create(at=OLD, author="ada", summary="a new kernel", recorded_at=OLD)
    loose = a_fault("gpu.xid.31", is_active=False, cleared_at=OLD)
    before = _rows()
    removed = retention.prune(tmp_path, BEFORE, now=NOW)
    assert removed == {
        "incident": 1,
        "fault": 1,
        "quarantined_event": 1,
        "site_change": 1,
        "audit_entry": 1,
    }
    assert _rows() == set()
    assert _exported(tmp_path) == before
    unit = files.read(tmp_path)["incident", incident.pk]
    titles = [
        row["fields"]["title"] for row in unit["rows"] if row["model"] == "incidents.incident"
    ]
    assert titles == [incident.title]
    assert ("fault", loose.pk) in files.read(tmp_path)


def test_files_are_by_month_and_their_owners_alone(tmp_path: Path) -> None:
    directory = tmp_path / "history"
    _ended(OLD)
    _ended(OLD - timedelta(days=62))
    retention.prune(directory, BEFORE, now=NOW)
    months = {f"{at:%Y-%m}.jsonl" for at in (OLD, OLD - timedelta(days=62))}
    assert {path.name for path in directory.iterdir()} == months
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


class TestStays:
    def test_what_is_open_and_what_ended_since(self, tmp_path: Path) -> None:
        an_incident(at=OLD)
        _ended(NOW - timedelta(days=10))
        a_fault("gpu.xid.31", is_active=False, cleared_at=NOW)
        before = _rows()
        assert retention.prune(tmp_path, BEFORE, now=NOW) == {}
        assert _rows() == before

    def test_what_has_a_fault_that_still_stands(self, tmp_path: Path) -> None:
        incident = _ended()
        IncidentFault.objects.filter(incident=incident).update(role="symptom")
        Fault.objects.update(is_active=True, cleared_at=None)
        assert retention.prune(tmp_path, BEFORE, now=NOW) == {}

    @pytest.mark.parametrize("state", [RunState.RUNNING, RunState.PAUSED])
    def test_what_an_unfinished_run_is_of(self, tmp_path: Path, state: RunState) -> None:
        Run.objects.filter(incident=_ended()).update(state=state, finished_at=None)
        assert retention.prune(tmp_path, BEFORE, now=NOW) == {}

    def test_what_a_vendor_has_in_hand(self, tmp_path: Path) -> None:
        case = VendorCase(incident=_ended(), opened_at=OLD, since_at=OLD)
        case.save()
        assert retention.prune(tmp_path, BEFORE, now=NOW) == {}
        VendorCase.objects.update(state="closed", closed_at=OLD)
        assert retention.prune(tmp_path, BEFORE, now=NOW) == {"incident": 1}

    def test_what_a_later_incident_repeats_until_that_goes_too(self, tmp_path: Path) -> None:
        first = _ended()
        repeat = _ended(duplicate_of=first)
        Incident.objects.filter(pk=repeat.pk).update(state=State.DUPLICATE, closed_at=NOW)
        assert retention.prune(tmp_path, BEFORE, now=NOW) == {}
        Incident.objects.filter(pk=repeat.pk).update(closed_at=OLD)
        assert retention.prune(tmp_path, BEFORE, now=NOW) == {"incident": 2}

    def test_everything_where_the_files_cannot_be_written(self, tmp_path: Path) -> None:
        _ended()
        before = _rows()
        (tmp_path / f"{OLD:%Y-%m}.jsonl").mkdir()
        with pytest.raises(OSError, match="Is a directory"):
            retention.prune(tmp_path, BEFORE, now=NOW)
        assert _rows() == before

    def test_everything_while_another_process_writes_there(self, tmp_path: Path) -> None:
        _ended()
        with files.lock_directory(tmp_path), pytest.raises(files.DirectoryInUse):
            retention.prune(tmp_path, BEFORE, now=NOW)
        assert Incident.objects.exists()


def test_no_table_that_points_at_what_leaves_is_forgotten() -> None:
    """A new table with a reference to an incident, a run or a fault is named in `units`, or goes on
    without it."""
    leaving = {Incident, Fault, Run, VendorCase, TimelineEntry}
    named = {model for model, _ in (*units.OF_INCIDENT, *units.OF_FAULT)} | leaving
    forgotten: set[type[Model]] = set()
    for model in apps.get_models():
        for field in model._meta.get_fields():
            remote = getattr(field, "remote_field", None)
            if remote is None or not field.concrete or remote.model not in leaving:
                continue
            is_lost_with_it = remote.on_delete is CASCADE or not field.null
            if is_lost_with_it and model not in named:
                forgotten.add(model)
    assert not forgotten


# A kill at each point
# ---------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing catches it."""


class Reaper:
    """Kills at the n-th line of `kintsugi.history` that begins, whatever it does."""

    def __init__(self, at_line: int) -> None:
        self.left = at_line
        self.has_struck = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        # The system itself closes what a dead process held.
        if "/kintsugi/history/" not in code.co_filename or code.co_name == "hold":
            return None
        if event == "line" and not self.has_struck:
            self.left -= 1
            if self.left <= 0:
                self.has_struck = True
                raise Killed
        return self


def _prune_with(reaper: Reaper, directory: Path) -> None:
    before = sys.gettrace()
    sys.settrace(reaper)
    try:
        retention.prune(directory, BEFORE, now=NOW)
    except Killed:
        pass
    finally:
        sys.settrace(before)
    # What was not committed is gone with the process, wherever its blocks stood.
    connection.in_atomic_block, connection.needs_rollback = False, False
    connection.savepoint_ids, connection.atomic_blocks = [], []
    connection.rollback()
    connection.set_autocommit(True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first", [1, 4])
# A file that the dead process had open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_kill_at_any_line_loses_nothing(first: int, tmp_path: Path) -> None:
    """At every sixth line, from the first and from the fourth."""
    _ended()
    a_fault("gpu.xid.31", is_active=False, cleared_at=OLD)
    everything = _rows()
    for kills, at_line in enumerate(itertools.count(first, 6)):
        reaper = Reaper(at_line)
        directory = tmp_path / str(at_line)
        if kills == 0:
            at_start = everything
        _prune_with(reaper, directory)
        left, exported = _rows(), _exported(directory)
        assert at_start <= left | exported
        if not reaper.has_struck:
            break
        # Killed again until it gets through: from the state that the kill left.
        retention.prune(directory, BEFORE, now=NOW)
        assert _rows() == set()
        assert _exported(directory) == at_start
        _ended()
        at_start = _rows()
    assert kills > 20


def test_a_line_that_a_crash_cut_is_cut_off_and_comes_again(tmp_path: Path) -> None:
    incident = _ended()
    retention.export(tmp_path, BEFORE)
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert set(files.read(tmp_path)) == {("incident", incident.pk)}
    retention.prune(tmp_path, BEFORE, now=NOW)
    lines = path.read_bytes().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [incident.pk, incident.pk]


# What people see of it
# ---------------------------------------------------------------------------


def test_the_numbers_begin_where_the_kept_period_does_and_say_so(tmp_path: Path) -> None:
    a_node("gn042", in_service_since=OLD)
    _ended()
    whole = statistics.compute_summary(None, NOW)
    retention.prune(tmp_path, BEFORE, now=NOW)
    after = statistics.compute_summary(None, NOW)
    assert whole.overall.failures == 1
    assert (after.since, after.overall.failures) == (BEFORE, 0)
    assert "The numbers begin at" in after.notice
    assert after.overall.exposure == pytest.approx(2 * 730 * 24)  # two nodes
    recent = statistics.compute_summary(NOW - timedelta(days=90), NOW)
    assert recent.since == NOW - timedelta(days=90)
    assert "begin at" not in recent.notice


def test_the_kept_period_never_goes_back(tmp_path: Path) -> None:
    _ended()
    retention.prune(tmp_path, BEFORE, now=NOW)
    _ended(OLD - timedelta(days=500))
    retention.prune(tmp_path, BEFORE - timedelta(days=400), now=NOW)
    assert KeptPeriod.objects.get().begins_at == BEFORE


def test_the_task_keeps_everything_while_nothing_is_set(settings: LazySettings) -> None:
    _ended()
    assert settings.KINTSUGI["KINTSUGI_KEEP"] is None
    tasks.prune_history()
    assert Incident.objects.exists()


def test_the_task_prunes_to_the_directory_of_the_settings(
    settings: LazySettings, tmp_path: Path
) -> None:
    _ended()
    settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_KEEP": timedelta(days=90)}
    settings.HISTORY_DIR = tmp_path
    tasks.prune_history()
    assert not Incident.objects.exists()
    assert files.read(tmp_path)


class TestCommand:
    def test_export_removes_nothing(self, tmp_path: Path) -> None:
        _ended()
        before = _rows()
        call_command(
            "history", "export", "--before", "2100-01-01", "--to", str(tmp_path), stdout=StringIO()
        )
        assert _rows() == before
        assert before <= _exported(tmp_path)

    def test_prune_without_a_time_says_what_to_set(self) -> None:
        with pytest.raises(CommandError, match="KINTSUGI_KEEP is unset"):
            call_command("history", "prune")

    def test_a_day_that_is_none_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(CommandError, match="expected a day"):
            call_command("history", "export", "--before", "2025-13-40", "--to", str(tmp_path))

    def test_a_dry_run_counts_and_changes_nothing(self, settings: LazySettings) -> None:
        _ended()
        settings.KINTSUGI = {**settings.KINTSUGI, "KINTSUGI_KEEP": timedelta(days=90)}
        told = StringIO()
        call_command("history", "prune", "--dry-run", stdout=told)
        assert "1 of kind incident" in told.getvalue()
        assert Incident.objects.exists()


def test_reports_of_people_leave_with_their_incident(tmp_path: Path) -> None:
    incident = _ended()
    report = UserReport.objects.create(
        incident=incident,
        author="sato",
        text="slow",
        resource="node/gn001",
        reported_at=OLD,
        recorded_at=OLD,
    )
    retention.prune(tmp_path, BEFORE, now=NOW)
    assert ("incidents.userreport", report.pk) in _exported(tmp_path)
