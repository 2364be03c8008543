"""Hot spares that are lent longer than anybody needs them: people are asked. Gives none back and
asks Slurm nothing.

Called by the sweep. Safe to call at any time and by several at once.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from incidents.db.prepared import Given, Moment, Prepared
from incidents.models import Incident, Spare, TimelineEntry, VendorCase
from incidents.state.transitions import record
from incidents.vocabulary.vendor_states import CaseState

KIND = "spare_late"
# Our choices: a run gives its spare back within minutes of its node, and people are asked once a
# day, as of late cases.
_GRACE = timedelta(hours=1)
_REMIND_EVERY = timedelta(days=1)


def ask_about_overdue_spares(now: datetime) -> list[str]:
    """What people were asked, in sentences. One query while no spare is lent too long."""
    texts = [_ask(spare_id, now) for spare_id in _LENT_TOO_LONG.values(before=now - _GRACE)]
    return [text for text in texts if text]


def _get_lent(before: Moment) -> QuerySet[Spare]:
    cases = VendorCase.objects.filter(incident=OuterRef("incident"))
    is_over = Q(incident__closed_at__lte=before)
    has_closed_case = Q(Exists(cases.filter(closed_at__lte=before)))
    has_open_case = Q(Exists(cases.exclude(state=CaseState.CLOSED)))
    case_is_over = has_closed_case & ~has_open_case
    return Spare.objects.filter(
        is_over | case_is_over, stands_for__isnull=False, since_at__lte=before
    )


_LENT_TOO_LONG = Prepared(lambda: _get_lent(Given("before")).order_by("pk").values_list("pk"))


def _ask(spare_id: int, now: datetime) -> str:
    """Under the row's lock: of several sweeps one asks. Empty where it was asked within the day, or
    is back."""
    with transaction.atomic():
        rows = Spare.objects.select_for_update(of=("self",)).select_related(
            "node", "stands_for", "incident"
        )
        spare = rows.filter(pk=spare_id, stands_for__isnull=False, incident__isnull=False).first()
        if spare is None or spare.incident is None or spare.stands_for is None:
            return ""
        told = TimelineEntry.objects.filter(
            incident=spare.incident, kind=KIND, recorded_at__gt=now - _REMIND_EVERY
        )
        if told.filter(text__startswith=f"{spare.node.name} ").exists():
            return ""
        text = _format_idle_spare(spare, spare.incident, spare.stands_for.name)
        asked = (
            f"Give {spare.node.name} back once {spare.stands_for.name} serves: kintsugi spare"
            " return."
        )
        is_open = spare.incident.is_open
        record(
            spare.incident.pk, kind=KIND, text=text, now=now, needs_human=asked if is_open else None
        )
    return text


def _format_idle_spare(spare: Spare, incident: Incident, lacking: str) -> str:
    over = "its vendor case is closed" if incident.is_open else f"incident #{incident.pk} is closed"
    since = f"{spare.since_at:%Y-%m-%d %H:%M %Z}"
    name = spare.node.name
    return (
        f"{name} stands in for {lacking} since {since}, and {over}. If {lacking} serves"
        f" again, `kintsugi spare return {name}` gives the spare back; else it is missed from"
        " the pool."
    )
