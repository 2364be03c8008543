"""Windows whose review is due, as faults of Kintsugi itself: people are asked as for any other. Writes nothing."""

from __future__ import annotations

from datetime import datetime

from detectors.faults import EventKind, FaultEvent
from incidents import silencing
from incidents.conclusions import concluded
from incidents.models import Fault, Silence
from incidents.prepared import Given, Prepared
from incidents.windows import ANSWERED_WITHIN, REVIEW_DUE
from incidents.wording import moment

_PATH = "kintsugi/window-"
_ASKED = Prepared(lambda: Fault.objects.filter(fault_type=REVIEW_DUE, is_active=True).values_list("resource"))
_DUE = Prepared(
    lambda: (
        Silence.objects.filter(ended_at=None, review_at__lte=Given("now"))
        .exclude(ends_at__lte=Given("now"))
        .order_by("pk")
    )
)


def due(now: datetime) -> list[FaultEvent]:
    """Beginnings and ends of the question whether a window is still right. Two queries."""
    asked = {path for (path,) in _ASKED.rows()}
    waiting = {f"{_PATH}{row.pk}": row for row in _DUE.objects(now=now)}
    raised = [
        concluded(EventKind.RAISED, REVIEW_DUE, path, text=_question(row), now=now)
        for path, row in waiting.items()
        if path not in asked
    ]
    text = "The window was reviewed or has ended."
    gone = sorted(asked - waiting.keys())
    return raised + [concluded(EventKind.CLEARED, REVIEW_DUE, path, text=text, now=now) for path in gone]


def _question(row: Silence) -> str:
    window = silencing.as_window(row)
    ends = moment((row.review_at or row.starts_at) + ANSWERED_WITHIN)
    return (
        f"{row.author}, is window {row.pk} still right? It is a {window.what} since {moment(row.starts_at)}"
        f" ({row.reason}). Give it another review or end it in the console; without an answer it ends {ends}."
    )
