"""Vendor cases: opened once, moved by compare-and-swap, each move a row with the incident's
timeline entry beside it.

The only writer of cases and their moves. A part that is put in goes into the ledger of parts in the
same transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F

from incidents.inventory import part_history
from incidents.inventory.part_history import Sighting
from incidents.models import Incident, VendorCase, VendorMove
from incidents.state.transitions import act, record
from incidents.vendor import parts, texts
from incidents.vocabulary.changes import KINTSUGI, Acted, Refused
from incidents.vocabulary.lifecycle import State, Trigger
from incidents.vocabulary.part_kinds import Part
from incidents.vocabulary.vendor_states import WITHOUT_PART, CaseState, Move, get_next_state

OPEN, NOTE, TAKEN_OVER = "open", "note", "taken_over"


@dataclass(frozen=True)
class Opened:
    """The case that stands for the part. `is_new`: it was opened just now; else it stood
    already."""

    case_id: int
    is_new: bool
    text: str


@dataclass(frozen=True)
class CaseMoved:
    """It is so from now on; `text` is what the timeline says."""

    case_id: int
    state: CaseState
    text: str


@dataclass(frozen=True)
class Facts:
    """What is known of a case beside its state; what is empty or None stays as it was."""

    vendor: str = ""
    number: str = ""
    is_advance: bool | None = None

    def build_values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if vendor := self.vendor.strip():
            values["vendor"] = vendor[:64]
        if number := self.number.strip():
            values["number"] = number[:64]
        if self.is_advance is not None:
            values["is_advance"] = self.is_advance
        return values


def open_case(
    incident_id: int,
    *,
    actor: str,
    now: datetime,
    resource: str = "",
    part: Part | None = None,
    facts: Facts | None = None,
    note: str = "",
    key: str = "",
) -> Opened | Refused:
    """A case for the incident's root, or for another part of its machine: the incident waits for
    the vendor.

    One open case per part: a second call finds the first one, also when its worker died in between.
    A case whose new part was put in and is called for again has got a part that is dead on arrival.
    """
    incident = Incident.objects.select_related("node").filter(pk=incident_id).first()
    found = parts.find_part(incident, resource=resource, part=part, incident_id=incident_id)
    if isinstance(found, Refused):
        return found
    if incident is None:
        return Refused(f"There is no incident #{incident_id}.")
    with transaction.atomic():
        cases = VendorCase.objects.filter(part=found.part, resource=found.slot)
        known = cases.exclude(state=CaseState.CLOSED).select_for_update().first()
        if known is not None and known.state != CaseState.VERIFIED:
            return _continue_case(known, incident, actor=actor, note=note, now=now)
        if known is not None:
            why = "The same part is called for anew."
            move(known.pk, Move.CLOSE, actor=actor, note=why, now=now)
        try:
            with transaction.atomic():
                return _open_new(
                    incident, found, facts or Facts(), actor=actor, note=note, key=key, now=now
                )
        except IntegrityError:  # another hand was quicker
            return Refused(
                f"A case for {texts.format_part(found.part, found.slot)} is being opened by others."
            )


def move(
    case_id: int,
    what: Move,
    *,
    actor: str,
    now: datetime,
    note: str = "",
    serial: str = "",
    facts: Facts | None = None,
    is_awaited: bool = True,
) -> CaseMoved | Refused:
    """Moves a case. `serial` is the new part's, where it is put in; what polls saw there serves as
    well.

    `is_awaited`: the incident waits for the vendor again after a part that was dead on arrival.

    Refused, with the reason, when the state does not allow it, something is missing, or another
    hand was quicker.
    """
    with transaction.atomic():
        case = VendorCase.objects.select_related("incident", "node").filter(pk=case_id).first()
        if case is None:
            return Refused(f"There is no vendor case {case_id}.")
        before = CaseState(case.state)
        after = get_next_state(before, what)
        if after is None:
            return Refused(
                f"Vendor case {case_id} is {before}: {texts.WORDS[what]} is not possible there."
            )
        if what is Move.CLOSE and before is not CaseState.VERIFIED and not note.strip():
            return Refused("A case that ends without a verified part needs a word why.")
        consequences = _get_consequences(case, what, serial.strip(), now)
        if isinstance(consequences, Refused):
            return consequences
        values = {
            **(facts or Facts()).build_values(),
            **consequences,
            "state": after,
            "since_at": now,
            "reminded_at": None,
        }
        if VendorCase.objects.filter(pk=case_id, state=before).update(**values) != 1:
            return Refused(
                f"Vendor case {case_id} is no longer {before}: somebody else has moved it."
            )
        dead = case.new_serial if what is Move.DEAD_ON_ARRIVAL else ""
        case.refresh_from_db()
        _write(
            case,
            before,
            what.value,
            actor=actor,
            note=note,
            serial=dead or case.new_serial,
            now=now,
        )
        if what is Move.INSTALL:
            _put_in(case, now)
        return _tell(case, what, actor=actor, note=note, now=now, is_awaited=is_awaited)


def describe(
    case_id: int, facts: Facts, *, actor: str, now: datetime, note: str = ""
) -> CaseMoved | Refused:
    """Adds what became known: the vendor's number, its name, whether the part comes in advance. The
    state stays."""
    values = facts.build_values()
    if not values and not note.strip():
        return Refused("Give the case's number, the vendor, or a word.")
    with transaction.atomic():
        case = VendorCase.objects.select_for_update().filter(pk=case_id).first()
        if case is None:
            return Refused(f"There is no vendor case {case_id}.")
        if values:
            VendorCase.objects.filter(pk=case_id).update(**values)
            case.refresh_from_db()
        state = CaseState(case.state)
        _write(case, state, NOTE, actor=actor, note=note, serial="", now=now)
        text = texts.format_noted(case, note)
        asked = "" if values.get("number") and state is CaseState.OPENED else None
        record(
            case.incident_id, kind="vendor_note", text=text, actor=actor, now=now, needs_human=asked
        )
        return CaseMoved(case_id, state, text)


def get_active_case(incident_id: int, resource: str = "") -> VendorCase | None:
    """The incident's case that is not closed, of that slot where one is named."""
    rows = VendorCase.objects.filter(incident_id=incident_id).exclude(state=CaseState.CLOSED)
    if resource:
        rows = rows.filter(resource=resource)
    return rows.order_by("-pk").first()


def record_dead_part(incident_id: int, case_id: int | None, *, note: str, now: datetime) -> None:
    """The part that was put in has just failed its tests. The incident goes on by itself; twice is
    once."""
    rows = VendorCase.objects.filter(state=CaseState.INSTALLED, incident_id=incident_id)
    if case_id is not None:
        rows = rows.filter(pk=case_id)
    case = rows.order_by("-pk").first()
    if case is not None:
        move(case.pk, Move.DEAD_ON_ARRIVAL, actor=KINTSUGI, note=note, now=now, is_awaited=False)


def reopen_after_dead_part(case_id: int, *, now: datetime, note: str) -> None:
    """The new part is in and a run verifies it: the incident is under repair again. Twice is
    once."""
    case = VendorCase.objects.get(pk=case_id)
    act(
        case.incident_id, Trigger.REPAIR_STARTED, actor=KINTSUGI, note=note, now=now, needs_human=""
    )


def _open_new(
    incident: Incident,
    found: parts.Found,
    facts: Facts,
    *,
    actor: str,
    note: str,
    key: str,
    now: datetime,
) -> Opened:
    case = VendorCase(incident=incident, node=incident.node, key=key, **facts.build_values())
    case.part = found.part
    case.resource = found.slot
    case.old_serial = found.serial
    case.opened_by = actor[:150]
    case.opened_at = now
    case.since_at = now
    case.save()
    _write(case, None, OPEN, actor=actor, note=note, serial=found.serial, now=now)
    text = texts.format_opened(case, note)
    _await(case, text, actor=actor, now=now, asked=texts.format_request(case))
    return Opened(case.pk, is_new=True, text=text)


def _continue_case(
    case: VendorCase, incident: Incident, *, actor: str, note: str, now: datetime
) -> Opened | Refused:
    """A part that has its case already. One that was left by an incident that is over goes to the
    new one."""
    if case.incident_id != incident.pk:
        if case.incident.is_open:
            part = texts.format_part(case.part, case.resource)
            return Refused(
                f"{part} has its case {case.pk} already, of incident #{case.incident_id}: merge the"
                " two."
            )
        VendorCase.objects.filter(pk=case.pk).update(incident=incident)
        case.incident = incident
        state = CaseState(case.state)
        _write(case, state, TAKEN_OVER, actor=actor, note=note, serial="", now=now)
    if case.state == CaseState.INSTALLED:
        why = note or "The fault stands on the new part."
        moved = move(case.pk, Move.DEAD_ON_ARRIVAL, actor=actor, note=why, now=now)
        if isinstance(moved, Refused):
            return moved
        case.refresh_from_db()
    text = texts.format_goes_on(case)
    if incident.state != State.AWAITING_VENDOR:
        _await(case, text, actor=actor, now=now, asked=texts.format_request(case))
    return Opened(case.pk, is_new=False, text=text)


def _get_consequences(
    case: VendorCase, what: Move, serial: str, now: datetime
) -> dict[str, Any] | Refused:
    """What the move sets beside the state."""
    if what is Move.CLOSE:
        return {"closed_at": now}
    if what is Move.DEAD_ON_ARRIVAL:
        return {"dead_on_arrival": F("dead_on_arrival") + 1, "new_serial": ""}
    if what is not Move.INSTALL:
        return {}
    new_serial = serial or parts.find_new_serial(case)
    if not new_serial:
        return Refused(
            "Give the serial of the part that was put in: the ledger of parts and the ladder of"
            " repairs begin anew with it. Of a part that came back repaired give the old one."
        )
    elsewhere = parts.find_other_slot(case, new_serial)
    if elsewhere:
        return Refused(
            f"{case.part} {new_serial} is in service in {elsewhere}: look at the serial again."
        )
    return {"new_serial": new_serial[:64]}


def _put_in(case: VendorCase, now: datetime) -> None:
    sighting = Sighting(Part(case.part), case.resource, serial=case.new_serial)
    part_history.settle([sighting], now, why=f"put in by vendor case {case.pk}")


def _write(
    case: VendorCase,
    before: CaseState | None,
    what: str,
    *,
    actor: str,
    note: str,
    serial: str,
    now: datetime,
) -> None:
    row = VendorMove(case=case, move=what, serial=serial, at=now)
    row.from_state = before or ""
    row.to_state = case.state
    row.actor = actor[:150]
    row.note = note.strip()
    row.save()


def _tell(
    case: VendorCase, what: Move, *, actor: str, note: str, now: datetime, is_awaited: bool
) -> CaseMoved:
    text = texts.format_moved(case, what, note)
    if what is Move.DEAD_ON_ARRIVAL and is_awaited:
        _await(case, text, actor=actor, now=now, asked=texts.format_request(case))
    else:
        waits = State(case.incident.state) is State.AWAITING_VENDOR
        asked = texts.format_request(case) if waits else None
        kind = f"vendor_{case.state}"
        record(case.incident_id, kind=kind, text=text, actor=actor, now=now, needs_human=asked)
    return CaseMoved(case.pk, CaseState(case.state), text)


def _await(case: VendorCase, text: str, *, actor: str, now: datetime, asked: str) -> None:
    """The incident waits for the vendor, with what people are asked meanwhile."""
    outcome = act(
        case.incident_id,
        Trigger.HANDED_TO_VENDOR,
        actor=actor,
        note=text,
        now=now,
        needs_human=asked,
    )
    if isinstance(outcome, Acted):
        return
    waits = Incident.objects.filter(pk=case.incident_id, state=State.AWAITING_VENDOR).exists()
    needs_human = asked if waits else None
    record(
        case.incident_id,
        kind="vendor_case",
        text=text,
        actor=actor,
        now=now,
        needs_human=needs_human,
    )


def is_without_part(case: VendorCase) -> bool:
    """Whether the new part is not in its slot yet."""
    return CaseState(case.state) in WITHOUT_PART
