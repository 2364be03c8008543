"""What time and polls alone do to vendor cases: parts that polls saw, repairs that hold, cases that
are late, and spares that are lent for too long.

Called by the sweep. Safe to call at any time and by several at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q

from incidents.db.prepared import Given, Prepared
from incidents.models import InService, VendorCase
from incidents.reserve import spare_watch
from incidents.state.transitions import record
from incidents.text.wording import format_duration
from incidents.vendor import cases, parts, texts
from incidents.vocabulary.changes import KINTSUGI
from incidents.vocabulary.lifecycle import State
from incidents.vocabulary.vendor_states import WITHOUT_PART, CaseState, Move

# People are told of a late case once a day (our choice).
REMIND_EVERY = timedelta(days=1)
_WITHOUT_PART = Prepared(
    lambda: VendorCase.objects.filter(state__in=WITHOUT_PART).exclude(old_serial="").order_by("pk")
)
_RESTORED = Prepared(
    lambda: VendorCase.objects.filter(
        state=CaseState.INSTALLED,
        incident__state__in=(State.MONITORING, State.RESOLVED),
        incident__restored_at__gte=F("since_at"),
    ).order_by("pk")
)
_UNTOLD = Prepared(
    lambda: (
        VendorCase.objects.filter(Q(reminded_at=None) | Q(reminded_at__lte=Given("before")))
        .exclude(state=CaseState.CLOSED)
        .order_by("pk")
    )
)


def check_deadlines(now: datetime) -> list[str]:
    """What was written down, in sentences. Four queries while there is nothing to say."""
    sentences = _put_in(now)
    sentences += _verify_restored(now)
    sentences += _list_late(now)
    sentences += spare_watch.ask_about_overdue_spares(now)
    return sentences


def get_expected_lengths() -> Mapping[CaseState, timedelta]:
    """How long a case is expected to stand in each state, from the settings."""
    given: Mapping[str, timedelta] = settings.KINTSUGI["KINTSUGI_VENDOR_EXPECTED"]
    return {CaseState(name): length for name, length in given.items()}


def _put_in(now: datetime) -> list[str]:
    """The ledger knows another part in the slot: the vendor's is in, whoever put it there."""
    sentences = []
    waiting = _WITHOUT_PART.objects()
    rows = (
        InService.objects.filter(slot__in=[case.resource for case in waiting], to_at=None)
        if waiting
        else ()
    )
    held = {(row.part, row.slot): row for row in rows}
    for case in waiting:
        row = held.get((case.part, case.resource))
        is_other = (
            row is not None and row.serial != case.old_serial and row.from_at > case.opened_at
        )
        if is_other and parts.find_new_serial(case):
            note = "Polls see another part in the slot."
            sentences += _move(case, Move.INSTALL, note, now)
    return sentences


def _verify_restored(now: datetime) -> list[str]:
    """Service was restored after the part was put in: the part is verified by what was verified
    then."""
    sentences = []
    for case in _RESTORED.objects():
        sentences += _move(case, Move.VERIFY, "Service was restored with it.", now)
    return sentences


def _move(case: VendorCase, what: Move, note: str, now: datetime) -> list[str]:
    outcome = cases.move(case.pk, what, actor=KINTSUGI, note=note, now=now)
    return [outcome.text] if isinstance(outcome, cases.CaseMoved) else []


def _list_late(now: datetime) -> list[str]:
    lengths = get_expected_lengths()
    reminders = []
    for case in _UNTOLD.objects(before=now - REMIND_EVERY):
        length = lengths.get(CaseState(case.state))
        if length is not None and case.since_at <= now - length:
            reminders.append(_remind(case, now))
    return reminders


def _remind(case: VendorCase, now: datetime) -> str:
    """By compare-and-swap: of several sweeps one tells."""
    lasted = format_duration(now - case.since_at)
    text = texts.format_late(
        case, lasted, format_duration(get_expected_lengths()[CaseState(case.state)])
    )
    with transaction.atomic():
        same = VendorCase.objects.filter(pk=case.pk, state=case.state, reminded_at=case.reminded_at)
        if same.update(reminded_at=now) == 1:
            asked = texts.format_late_request(case, lasted)
            is_open = case.incident.is_open
            kind = "vendor_late"
            record(
                case.incident_id,
                kind=kind,
                text=text,
                now=now,
                needs_human=asked if is_open else None,
            )
    return text
