"""What a person is asked about a critical fault is asked again while nobody has taken it.

Once a shift, in the channel: whoever was on call when it was asked may have gone home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max, Min, Q

from incidents.models import Incident, TimelineEntry
from incidents.state import outbox, transitions
from incidents.text.wording import format_clock, format_duration
from incidents.vocabulary.lifecycle import State
from runbooks.engine import start
from runbooks.people import standstill

# Google's Site Reliability Engineering, chapter 11: 30 minutes to answer where minutes do not
# count. Asked in a thread alone, nobody may have seen it.
AT_LATEST = timedelta(minutes=30)
# Three a day: our choice.
SHIFT = timedelta(hours=8)
AGAIN = outbox.ASKED_AGAIN
PAGED, PAGE_FAILED = "paged", "page_failed"
_UNTAKEN = (State.OPEN, State.REPAIRING)


@dataclass(frozen=True)
class UnansweredQuestion:
    """What is asked about a critical fault that nobody has taken. `first_at` and `last_at`: when it
    was asked in the channel; None where it was not yet."""

    incident: Incident
    first_at: datetime | None
    last_at: datetime | None


def sweep_unanswered(now: datetime) -> None:
    """Asks in the channel for what was asked in the thread alone, and again for what nobody has
    taken within a shift. Mostly one query."""
    for question in _list_untaken(now):
        if question.last_at is None or now - question.last_at >= SHIFT:
            _ask_again(question.incident, question.last_at, now)


def list_unanswered(now: datetime) -> list[UnansweredQuestion]:
    """What nobody has taken half an hour after it was asked in the channel: the channel alone does
    not reach a person."""
    return [
        question
        for question in _list_untaken(now)
        if question.first_at is not None and now - question.first_at >= AT_LATEST
    ]


def record_pages(questions: Sequence[UnansweredQuestion], failure: str, now: datetime) -> None:
    """Writes into each incident that its question went to the site's Alertmanager, or why it did
    not: once each."""
    kind = PAGE_FAILED if failure else PAGED
    numbers = [question.incident.pk for question in questions]
    recorded = TimelineEntry.objects.filter(incident_id__in=numbers, kind=kind)
    before = set(recorded.values_list("incident_id", flat=True))
    for question in questions:
        if question.incident.pk not in before:
            text = failure or _format_page(question, now)
            transitions.record(question.incident.pk, kind=kind, text=text, now=now)


def _list_untaken(now: datetime) -> list[UnansweredQuestion]:
    critical = standstill.get_critical_incidents(now - AT_LATEST)
    if not critical:
        return []
    asking = Incident.objects.filter(pk__in=critical, state__in=_UNTAKEN, silence=None)
    untaken = asking.filter(acknowledged_at=None).exclude(needs_human="")
    is_loud = Q(timeline__kind__in=outbox.ASKING)
    first = Min("timeline__occurred_at", filter=is_loud)
    last = Max("timeline__occurred_at", filter=is_loud)
    times = untaken.annotate(first_at=first, last_at=last).order_by()
    asked = {number: at for number, *at in times.values_list("pk", "first_at", "last_at")}
    closed = start.get_closed_nodes(now)
    questions = []
    for incident in Incident.objects.filter(pk__in=asked).select_related("node").order_by("pk"):
        is_with_people = incident.node is not None and incident.node.name in closed
        if not is_with_people:
            questions.append(UnansweredQuestion(incident, *asked[incident.pk]))
    return questions


def _format_page(question: UnansweredQuestion, now: datetime) -> str:
    asked_at = question.first_at or question.incident.opened_at
    return (
        f"Nobody has taken what was asked {format_duration(now - asked_at)} ago: handed to"
        " Alertmanager,"
        " which tells whom its routes name until somebody acknowledges the incident."
    )


def _ask_again(incident: Incident, asked_at: datetime | None, now: datetime) -> None:
    since = asked_at or incident.opened_at
    lasts = f"since {format_clock(since)} ({format_duration(now - since)})"
    what = "Asked and not taken" if asked_at is not None else "Critical, and nobody has taken it"
    text = f"{what} {lasts}: {incident.needs_human}"
    transitions.record(incident.pk, kind=AGAIN, text=text, now=now)
