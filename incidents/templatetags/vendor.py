"""Template tags of vendor cases: an incident's cases, their badges, lead times in words. Reads
only."""

from __future__ import annotations

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from incidents.models import Incident, VendorCase, VendorMove
from incidents.statistics import vendor_statistics
from incidents.statistics.vendor_statistics import Stage
from incidents.templatetags import console
from incidents.text import wording
from incidents.vendor import deadlines, texts
from incidents.vocabulary.vendor_states import CaseState, Move

register = template.Library()

ICONS: dict[CaseState, str] = {
    CaseState.OPENED: "call",
    CaseState.APPROVED: "thumb_up",
    CaseState.SHIPPED: "local_shipping",
    CaseState.RECEIVED: "inventory_2",
    CaseState.INSTALLED: "memory",
    CaseState.VERIFIED: "verified",
    CaseState.CLOSED: "task_alt",
}

# What goes on in a state in which nobody is asked for anything.
WAITS: dict[CaseState, str] = {
    CaseState.OPENED: "Nothing: the vendor has the number. Say here when they approve or ship.",
    CaseState.APPROVED: "Nothing: the vendor has to ship. Say here when the part is on its way.",
    CaseState.SHIPPED: (
        "Nothing until the part is here. Then say so: received, or installed at once."
    ),
    CaseState.INSTALLED: "Nothing: a run tests the part and says here what it found.",
    CaseState.CLOSED: "Nothing: it is closed.",
}
KINDS: dict[str, str] = {"gpu": "GPU", "nic": "NIC", "nvswitch": "NVSwitch"}
_OTHERS: dict[str, str] = {"open": "opened", "note": "more is known"}


@register.simple_tag
def vendor_cases_of(incident: Incident) -> list[VendorCase]:
    return list(incident.vendor_cases.order_by("-pk"))


@register.filter
def case_badge(case: VendorCase) -> SafeString:
    """The state with a symbol beside the word, and how many parts were dead."""
    dead = f", {case.dead_on_arrival} dead on arrival" if case.dead_on_arrival else ""
    symbol = console.icon(ICONS[CaseState(case.state)])
    return format_html('<span class="k-badge">{}{}{}</span>', symbol, case.state, dead)


@register.filter
def case_part(case: VendorCase) -> str:
    return texts.format_part(case.part, case.resource)


@register.filter
def kind(part: str) -> str:
    """A kind of part as people write it."""
    return KINDS.get(part, console.words(part))


@register.filter
def can_do(case: VendorCase) -> str:
    """What a person can do about the case now, in a sentence."""
    return texts.format_request(case) or WAITS.get(CaseState(case.state), "Nothing.")


@register.filter
def stands(case: VendorCase) -> str:
    """How long it has been in its state, beside how long that is expected to be: `3 d of 14 d
    expected`."""
    if case.state == CaseState.CLOSED:
        return ""
    lasted = wording.format_duration(timezone.now() - case.since_at)
    most = deadlines.get_expected_lengths().get(CaseState(case.state))
    return (
        f"for {lasted}"
        if most is None
        else f"for {lasted}, {wording.format_duration(most)} expected"
    )


@register.filter
def what_moved(move: VendorMove) -> str:
    """What happened, in words."""
    return (
        texts.WORDS[Move(move.move)]
        if move.move in list(Move)
        else _OTHERS.get(move.move, move.move)
    )


@register.filter
def lead_time(stage: Stage) -> str:
    return vendor_statistics.format_stage(stage)
