"""Template tags of vendor cases: an incident's cases, their badges, lead times in words. Reads only."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from incidents import vendor_statistics, vendor_words
from incidents.models import Incident, VendorCase
from incidents.templatetags import console
from incidents.vendor_states import CaseState
from incidents.vendor_statistics import Stage

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
    return vendor_words.part(case.part, case.resource)


@register.filter
def lead_time(stage: Stage) -> str:
    return vendor_statistics.words(stage)
