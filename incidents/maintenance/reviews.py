"""Windows whose review is due, as faults of Kintsugi itself: people are asked as for any other.
Writes nothing."""

from __future__ import annotations

from datetime import datetime

from detectors.faults import EventKind, FaultEvent
from incidents.correlation.conclusions import make_conclusion
from incidents.db.prepared import Given, Prepared
from incidents.evaluation.windows import ANSWERED_WITHIN, REVIEW_DUE
from incidents.maintenance import active_windows
from incidents.models import Fault, Silence
from incidents.text.wording import format_moment

_PATH = "kintsugi/window-"
_ASKED = Prepared(
    lambda: Fault.objects.active().filter(fault_type=REVIEW_DUE).values_list("resource")
)
_WAITING = Prepared(
    lambda: (
        Silence.objects.filter(ended_at=None, review_at__lte=Given("now"))
        .exclude(ends_at__lte=Given("now"))
        .order_by("pk")
    )
)


def list_due(now: datetime) -> list[FaultEvent]:
    """Beginnings and ends of the question whether a window is still right. Two queries."""
    asked = set(_ASKED.values())
    waiting = {f"{_PATH}{row.pk}": row for row in _WAITING.objects(now=now)}
    events = []
    for path, row in waiting.items():
        if path not in asked:
            text = _format_question(row)
            events.append(make_conclusion(EventKind.RAISED, REVIEW_DUE, path, text=text, now=now))
    answer = "The window was reviewed or has ended."
    for path in sorted(asked - waiting.keys()):
        events.append(make_conclusion(EventKind.CLEARED, REVIEW_DUE, path, text=answer, now=now))
    return events


def _format_question(row: Silence) -> str:
    window = active_windows.make_window(row)
    ends = format_moment((row.review_at or row.starts_at) + ANSWERED_WITHIN)
    since = format_moment(row.starts_at)
    question = f"{row.author}, is window {row.pk} still right?"
    window_text = f"It is a {window.what} since {since} ({row.reason})."
    choice = f"Give it another review or end it in the console; without an answer it ends {ends}."
    return f"{question} {window_text} {choice}"
