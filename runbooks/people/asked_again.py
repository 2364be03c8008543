"""What a person is asked about a critical fault is asked again while nobody has taken it.

Once a shift, in the channel: whoever was on call when it was asked may have gone home.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Max, Q

from incidents.models import Incident
from incidents.state import outbox, transitions
from incidents.text.wording import clock, duration
from incidents.vocabulary.lifecycle import State
from runbooks.engine import start
from runbooks.people import standstill

# Google's Site Reliability Engineering, chapter 11: 30 minutes to answer where minutes do not
# count. Asked in a thread alone, nobody may have seen it.
AT_LATEST = timedelta(minutes=30)
# Three a day: our choice.
SHIFT = timedelta(hours=8)
AGAIN = outbox.ASKED_AGAIN
_UNTAKEN = (State.OPEN, State.REPAIRING)


def sweep_unanswered(now: datetime) -> None:
    """Asks in the channel for what was asked in the thread alone, and again for what nobody has
    taken within a shift. Mostly one query."""
    critical = standstill.get_critical_incidents(now - AT_LATEST)
    if not critical:
        return
    asking = Incident.objects.filter(pk__in=critical, state__in=_UNTAKEN, silence=None)
    untaken = asking.filter(acknowledged_at=None).exclude(needs_human="")
    is_loud = Q(timeline__kind__in=outbox.ASKING)
    closed = start.get_closed_nodes(now)
    last = Max("timeline__occurred_at", filter=is_loud)
    asked = dict(untaken.annotate(asked_at=last).order_by().values_list("pk", "asked_at"))
    for incident in Incident.objects.filter(pk__in=asked).select_related("node").order_by("pk"):
        is_with_people = incident.node is not None and incident.node.name in closed
        asked_at = asked[incident.pk]
        is_due = asked_at is None or now - asked_at >= SHIFT
        if is_due and not is_with_people:
            _ask_again(incident, asked_at, now)


def _ask_again(incident: Incident, asked_at: datetime | None, now: datetime) -> None:
    since = asked_at or incident.opened_at
    lasts = f"since {clock(since)} ({duration(now - since)})"
    what = "Asked and not taken" if asked_at is not None else "Critical, and nobody has taken it"
    text = f"{what} {lasts}: {incident.needs_human}"
    transitions.record(incident.pk, kind=AGAIN, text=text, now=now)
