"""Rows written in one statement: what stands in the tables is what Django itself would write."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from incidents.db import upsert
from incidents.models import Decision, Fault, Incident, Notification
from tests.incidents.builders import T0, an_incident

pytestmark = pytest.mark.django_db

AWKWARD = 'quote " back\\slash, {"json": [1]}, %s, \u00e4\u4e2d, line\nbreak'


def a_fault(number: int) -> Fault:
    return Fault(
        fingerprint=f"{number:032x}",
        fault_type="gpu.xid.79",
        resource=f"node/gn{number:03}/gpu/0000:19:00.0",
        qualifier=AWKWARD,
        owner=f"node/gn{number:03}",
        component="gpu",
        severity="critical",
        action="reboot",
        clears="after_reboot",
        code=79 if number % 2 else None,
        raised_at=T0 + timedelta(microseconds=number),
        observed_at=T0,
        recorded_at=T0,
        last_seen_at=T0,
        lag_s=0.1 + number,
        changes_at=[T0.isoformat(), AWKWARD],
    )


def values(fault: Fault) -> dict[str, object]:
    row = Fault.objects.filter(pk=fault.pk).values().get()
    return {name: value for name, value in row.items() if name != "id"}


def test_each_column_holds_what_django_itself_writes() -> None:
    numbers = range(1, 4)
    rows = [a_fault(number) for number in numbers]
    upsert.insert(rows)
    written = [values(row) for row in rows]
    Fault.objects.all().delete()
    assert written == [values(row) for row in Fault.objects.bulk_create(map(a_fault, numbers))]


def test_a_row_that_names_one_made_before_it_is_written_with_its_key() -> None:
    incident = Incident(title="GPU lost", onset_at=T0, opened_at=T0, recorded_at=T0, updated_at=T0)
    decision = Decision(incident=incident, kind=Decision.Kind.OPENED, text="x", recorded_at=T0)
    upsert.insert([incident])
    upsert.insert([decision])
    assert Decision.objects.get(pk=decision.pk).incident == incident


def test_what_stands_already_is_left_as_it_is_where_conflicts_are_ignored() -> None:
    def card(channel: str, reason: str) -> Notification:
        return Notification(
            incident=incident,
            channel=channel,
            reason=reason,
            sequence=0,
            due_at=T0,
            recorded_at=T0,
        )

    incident = an_incident()
    upsert.insert([card("console", "first")], ignore_conflicts=True)
    upsert.insert([card("console", "second"), card("slack:C1", "third")], ignore_conflicts=True)
    told = Notification.objects.order_by("channel").values_list("channel", "reason")
    assert list(told) == [("console", "first"), ("slack:C1", "third")]


def test_a_second_active_fault_of_one_fingerprint_is_refused() -> None:
    upsert.insert([a_fault(1)])
    with pytest.raises(IntegrityError), transaction.atomic():
        upsert.insert([a_fault(1)])
