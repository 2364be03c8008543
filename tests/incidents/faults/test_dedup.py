"""What one event means for the fault it speaks of."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from detectors.faults import Action, ClearRule, EventKind, FaultEvent, Severity, VerdictKind
from incidents.faults.dedup import KEPT, Known, Standing, decide
from tests.builders import NOW, an_event

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)

ACTIVE = Standing(
    is_active=True,
    severity=Severity.MAJOR,
    action=Action.REBOOT,
    clears=ClearRule.BY_EVENT,
    raised_at=NOW,
    last_seen_at=NOW,
)
ENDED = replace(ACTIVE, is_active=False, cleared_at=NOW + 10 * SECOND)
FIVE = tuple(NOW - number * SECOND for number in reversed(range(5)))
FLAPPING = replace(ACTIVE, is_flapping=True, changes_at=FIVE)


def raised(at: timedelta = timedelta(0), severity: Severity = Severity.MAJOR) -> FaultEvent:
    return an_event(at=NOW + at, severity=severity, action=Action.REBOOT)


def cleared(at: timedelta) -> FaultEvent:
    return an_event(at=NOW + at, kind=EventKind.CLEARED)


@pytest.mark.parametrize(
    ("event", "standing", "kind", "words"),
    [
        (raised(), None, VerdictKind.NEW, "first event"),
        (raised(SECOND), ACTIVE, VerdictKind.REPEAT, "stands already"),
        (raised(-SECOND), ACTIVE, VerdictKind.REPEAT, "stands already"),
        (
            raised(SECOND, Severity.CRITICAL),
            ACTIVE,
            VerdictKind.ESCALATED,
            "was major, reboot; now critical",
        ),
        (raised(SECOND, Severity.WARNING), ACTIVE, VerdictKind.REPEAT, "stands already"),
        (cleared(SECOND), ACTIVE, VerdictKind.CLEARED, "reported by syslog"),
        (cleared(timedelta(0)), ACTIVE, VerdictKind.CLEARED, "ended"),
        (cleared(-SECOND), ACTIVE, VerdictKind.STALE, "seen again"),
        (cleared(SECOND), None, VerdictKind.IGNORED, "does not stand"),
        (cleared(20 * SECOND), ENDED, VerdictKind.IGNORED, "does not stand"),
        (raised(20 * SECOND), ENDED, VerdictKind.NEW, "is back"),
        (raised(5 * SECOND), ENDED, VerdictKind.STALE, "before its reported end"),
        (raised(5 * SECOND), replace(ENDED, clears=ClearRule.BY_POLL), VerdictKind.NEW, "is back"),
        (
            raised(20 * SECOND),
            replace(ENDED, changes_at=FIVE),
            VerdictKind.FLAPPING,
            "34 % of its last 20 looks",
        ),
        (raised(20 * SECOND), replace(ENDED, changes_at=FIVE[1:]), VerdictKind.NEW, "is back"),
        (raised(30 * MINUTE), replace(ENDED, changes_at=FIVE), VerdictKind.NEW, "is back"),
        (cleared(SECOND), FLAPPING, VerdictKind.FLAPPING, "stands until it has been steady"),
        (raised(SECOND), FLAPPING, VerdictKind.REPEAT, "stands already"),
        (
            raised(SECOND),
            replace(FLAPPING, has_ended=True),
            VerdictKind.FLAPPING,
            "one fault while that lasts",
        ),
        (
            cleared(SECOND),
            replace(FLAPPING, has_ended=True),
            VerdictKind.IGNORED,
            "its end is known",
        ),
    ],
)
def test_verdict_names_what_happens_and_why(
    event: FaultEvent, standing: Standing | None, kind: VerdictKind, words: str
) -> None:
    verdict = decide(event, Known(standing), now=NOW)
    assert verdict.kind is kind
    assert words in verdict.reason


def test_event_counted_before_is_ignored_whatever_it_says() -> None:
    for event in (raised(), cleared(SECOND), raised(SECOND, Severity.CRITICAL)):
        verdict = decide(event, Known(ACTIVE, seen="delivered before"), now=NOW)
        assert verdict.kind is VerdictKind.IGNORED


def test_event_is_stale_when_its_id_may_be_forgotten() -> None:
    event = raised()
    assert decide(event, Known(), now=event.observed_at + KEPT).kind is VerdictKind.NEW
    assert decide(event, Known(), now=event.observed_at + KEPT + SECOND).kind is VerdictKind.STALE


def test_device_with_a_wrong_clock_is_heard() -> None:
    event = replace(raised(), occurred_at=NOW - timedelta(days=3000))
    assert decide(event, Known(), now=NOW).kind is VerdictKind.NEW


def test_event_from_before_the_last_boot_reopens_nothing() -> None:
    known = Known(booted_at=NOW)
    assert decide(raised(-SECOND), known, now=NOW).kind is VerdictKind.STALE
    assert decide(raised(), known, now=NOW).kind is VerdictKind.NEW


def test_event_from_before_the_last_repair_reopens_nothing() -> None:
    known = Known(repaired_at=NOW, repair="the repair of yesterday")
    verdict = decide(raised(-SECOND), known, now=NOW)
    assert verdict.kind is VerdictKind.STALE
    assert "before the repair of yesterday" in verdict.reason
    assert decide(raised(), known, now=NOW).kind is VerdictKind.NEW
