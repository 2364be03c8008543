"""The audit log: each act has its lines, in order, and nothing changes or removes them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from runbooks import services
from runbooks.models import AuditEntry
from runbooks.models.record import AppendOnly
from tests.runbooks.site import Site

pytestmark = pytest.mark.django_db


def _lines() -> list[tuple[str, str, str]]:
    return list(AuditEntry.objects.order_by("pk").values_list("act", "phase", "node"))


def test_each_act_of_a_run_is_begun_and_done_and_looks_leave_no_line() -> None:
    site = Site()
    site.play(site.begin(site.lose_gpu()))
    assert _lines() == [
        (act, phase, "gn001")
        for act in ("drain", "reboot", "resume")
        for phase in ("begun", "done")
    ]


def test_the_lines_of_one_step_share_its_key() -> None:
    site = Site()
    run = site.play(site.begin(site.lose_gpu()))
    keys = list(AuditEntry.objects.order_by("pk").values_list("key", flat=True))
    assert keys[0] == keys[1] == f"{run.pk}-0-drain"
    assert len(set(keys)) == 3


def test_what_people_do_to_runs_modes_and_the_stop_switch_is_in_the_log() -> None:
    site = Site()
    run = site.begin(site.lose_gpu())
    services.pause(run.pk, actor="aya", note="let me look", now=site.now)
    services.resume(run.pk, actor="aya", note="go on", now=site.now)
    services.set_mode("drain_reboot_verify", "shadow", actor="bob", now=site.now, world=None)
    services.stop("power works", actor="bob", now=site.now)
    services.release(actor="bob", note="done", now=site.now)
    said = list(AuditEntry.objects.order_by("pk").values_list("act", "actor"))
    assert said == [
        ("paused", "aya"),
        ("resumed", "aya"),
        ("set_mode", "bob"),
        ("stop", "bob"),
        ("release", "bob"),
    ]


def test_the_same_line_goes_to_the_log_once_it_is_certain(
    caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Any
) -> None:
    site = Site()
    committed = django_capture_on_commit_callbacks(execute=True)
    with caplog.at_level(logging.INFO, logger="kintsugi.audit"), committed:
        site.advance(site.begin(site.lose_gpu()))
    assert any("drain begun on gn001" in record.getMessage() for record in caplog.records)


def test_no_line_is_changed_or_removed() -> None:
    site = Site()
    site.advance(site.begin(site.lose_gpu()))
    entry = AuditEntry.objects.first()
    assert entry is not None
    with pytest.raises(AppendOnly):
        entry.save()
    with pytest.raises(AppendOnly):
        entry.delete()
    with pytest.raises(AppendOnly):
        AuditEntry.objects.filter(pk=entry.pk).update(actor="nobody")
    with pytest.raises(AppendOnly):
        AuditEntry.objects.all().delete()
