"""How vendor cases are told: what happened, who does what next. No writes."""

from __future__ import annotations

from incidents.inventory.resource_names import format_resource
from incidents.models import VendorCase
from incidents.vocabulary.vendor_states import CaseState, Move

WORDS: dict[Move, str] = {
    Move.APPROVE: "approved by the vendor",
    Move.SHIP: "shipped",
    Move.RECEIVE: "received",
    Move.INSTALL: "installed",
    Move.VERIFY: "verified",
    Move.DEAD_ON_ARRIVAL: "dead on arrival",
    Move.CLOSE: "closed",
}
_HAPPENED: dict[Move, str] = {
    Move.APPROVE: "the vendor approved the replacement",
    Move.SHIP: "the new part is on its way",
    Move.RECEIVE: "the new part has arrived on site",
    Move.INSTALL: "the new part is in its slot",
    Move.VERIFY: "the new part is verified",
    Move.DEAD_ON_ARRIVAL: "the new part was dead on arrival; the vendor sends another",
    Move.CLOSE: "the case is closed",
}


_TO_DO_LATE: dict[CaseState, str] = {
    CaseState.OPENED: "Ask the vendor to approve",
    CaseState.APPROVED: "Ask the vendor when they ship",
    CaseState.SHIPPED: "Ask the vendor where the part is",
    CaseState.RECEIVED: "Have the part installed",
    CaseState.INSTALLED: "Have the part verified",
    CaseState.VERIFIED: "Send the old part back and close",
}


def format_part(kind: str, resource: str) -> str:
    """`GPU gn042 GPU 4 (0000:9b:00.0)` would say it twice: a machine's own part is named by its
    place alone."""
    place = format_resource(resource)
    if kind in ("node", "switch", "gpu", "nvswitch", "nic"):
        return place
    return f"the {kind} in {place}"


def format_opened(case: VendorCase, note: str) -> str:
    serial = f", serial {case.old_serial}" if case.old_serial else ", serial not known"
    return _format_sentence(
        f"Vendor case {case.pk} is opened for {format_part(case.part, case.resource)}{serial}", note
    )


def format_goes_on(case: VendorCase) -> str:
    part_name = format_part(case.part, case.resource)
    return _format_sentence(
        f"Vendor case {case.pk} for {part_name} goes on: it is {case.state}", ""
    )


def format_moved(case: VendorCase, what: Move, note: str) -> str:
    text = f"{_format_name(case)}: {_HAPPENED[what]}"
    if what is Move.INSTALL:
        text = f"{text}, serial {case.new_serial}"
    if what is Move.DEAD_ON_ARRIVAL:
        text = f"{text} (dead parts so far: {case.dead_on_arrival})"
    return _format_sentence(text, note)


def format_noted(case: VendorCase, note: str) -> str:
    number = f"number {case.number}" if case.number else ""
    advance = "advance" if case.is_advance else ""
    known = [text for text in (number, case.vendor, advance) if text]
    known_text = ", ".join(known) or "nothing more known"
    return _format_sentence(f"Vendor case {case.pk}: {known_text}", note)


def format_request(case: VendorCase) -> str:
    """What people are asked to do while the case is where it is; empty where only the vendor or a
    run has to act."""
    what = format_part(case.part, case.resource)
    if case.state == CaseState.OPENED and not case.number:
        who = case.vendor or "the vendor"
        return (
            f"Call {who} about {what} and give vendor case {case.pk} the number that they give you."
        )
    if case.state == CaseState.RECEIVED:
        return f"Put the new part into {what} and give its serial to vendor case {case.pk}."
    if case.state == CaseState.INSTALLED and not case.key:
        return (
            f"Test {what}, bring its machine back, and mark vendor case {case.pk} verified or dead"
            " on arrival."
        )
    if case.state == CaseState.VERIFIED:
        return "Resolve the incident once its machine is in service."
    if case.state == CaseState.CLOSED and not case.new_serial:
        return f"Decide what becomes of {what}: its vendor case is closed without a new part."
    return ""


def format_late(case: VendorCase, lasted: str, expected: str) -> str:
    what = format_part(case.part, case.resource)
    name = _format_name(case)
    return f"{name} for {what} is {case.state} for {lasted}; {expected} are expected there."


def format_late_request(case: VendorCase, lasted: str) -> str:
    to_do = _TO_DO_LATE[CaseState(case.state)]
    return f"{to_do}: vendor case {case.pk} stands there for {lasted}."


def _format_name(case: VendorCase) -> str:
    return f"Vendor case {case.pk}" + (f" ({case.number})" if case.number else "")


def _format_sentence(text: str, note: str) -> str:
    return f"{text}. {note.strip()}".strip()
