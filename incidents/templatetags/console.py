"""Template tags of the console: badges that never speak by colour alone, times with their zone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import template
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from detectors import resources
from detectors.faults import Action, Channel, ClearRule, Component, Recovery, Role, Severity
from incidents import wording
from incidents.lifecycle import State
from incidents.models import Fault, Incident

register = template.Library()


@register.filter
def icon(name: str) -> SafeString:
    """A symbol for the eye; hidden from screen readers, which read the word beside it."""
    return format_html('<span class="material-symbols-outlined k-icon" aria-hidden="true">{}</span>', name)


@register.filter
def severity(value: str) -> SafeString:
    word = Severity(value)
    return format_html(
        '<span class="k-badge k-sev-{}">{}{}</span>', word.value, icon(wording.SEVERITY_ICONS[word]), word.value
    )


@register.filter
def state(value: str) -> SafeString:
    word = State(value)
    return format_html(
        '<span class="k-badge k-state-{}">{}{}</span>',
        word.value,
        icon(wording.STATE_ICONS[word]),
        wording.STATES[word],
    )


_SEND_ICONS = {
    "waiting": "schedule",
    "sending": "outgoing_mail",
    "unknown": "help",
    "sent": "check_circle",
    "failed": "error",
}


@register.filter
def send_state(value: str) -> SafeString:
    return format_html('<span class="k-badge k-send-{}">{}{}</span>', value, icon(_SEND_ICONS[value]), value)


@register.filter
def when(moment: datetime | None) -> SafeString:
    """The time in the console's zone, with the zone's name; a dash for never."""
    if moment is None:
        return format_html('<span class="k-muted">{}</span>', "–")  # noqa: RUF001
    local = timezone.localtime(moment)
    return format_html(
        '<time datetime="{}" class="k-time">{} {}</time>',
        moment.isoformat(),
        local.strftime("%Y-%m-%d %H:%M:%S"),
        local.tzname() or "",
    )


@register.filter
def duration(length: timedelta | None) -> str:
    return "" if length is None else wording.duration(length)


@register.filter
def until(start: datetime | None, end: datetime | None) -> str:
    """How long from `start` to `end`; empty when either is missing."""
    return "" if start is None or end is None else wording.duration(end - start)


@register.filter
def where(path: str) -> SafeString:
    """The resource by its people's name, leading to its machine's page."""
    return format_html('<a href="{}">{}</a>', reverse("machine", args=[resources.owner(path)]), wording.resource(path))


@register.filter
def fault_type(value: str) -> SafeString:
    return format_html('<a class="k-code" href="{}">{}</a>', reverse("catalogue_entry", args=[value]), value)


@register.filter
def component(value: str) -> str:
    return wording.COMPONENTS[Component(value)]


@register.filter
def action(value: str) -> str:
    return wording.ACTIONS[Action(value)]


@register.filter
def clears(value: str) -> str:
    return wording.CLEARS[ClearRule(value)]


@register.filter
def recovery(value: str) -> str:
    return wording.RECOVERIES[Recovery(value)]


@register.filter
def role(value: str) -> str:
    return wording.ROLES[Role(value)]


@register.filter
def channels(values: list[str]) -> str:
    return ", ".join(wording.CHANNELS[Channel(value)] for value in values)


@register.filter
def place(incident: Any) -> SafeString:
    """Where, as people say it: `gn042 GPU 3`, with the PCI address that tells it for sure.

    Takes an incident of `admin_incident.with_place`.
    """
    if incident.gpu_index is None:
        return where(incident.root_resource)
    machine, pci = incident.owner.split("/")[1], incident.root_resource.rsplit("/", 1)[1]
    return format_html(
        '<a href="{}">{} GPU {}</a> <span class="k-code k-muted">{}</span>',
        reverse("machine", args=[incident.owner]),
        machine,
        incident.gpu_index,
        pci,
    )


@register.filter
def lasted(incident: Incident) -> str:
    """`for 3 h 5 min` while it stands, `lasted 40 min` once service was restored or it was closed."""
    end = incident.restored_at or incident.closed_at
    if end is not None:
        return f"lasted {wording.duration(end - incident.onset_at)}"
    return f"for {wording.duration(timezone.now() - incident.onset_at)}"


@register.filter
def words(name: str) -> str:
    """`drain_reboot_verify` as `drain reboot verify`."""
    return str(name).replace("_", " ")


@register.filter
def activity(fault: Fault) -> SafeString:
    """Active or cleared, with flapping said where it is so."""
    word, symbol = ("active", "radio_button_checked") if fault.is_active else ("cleared", "check_circle")
    flapping = " flapping" if fault.is_flapping else ""
    return format_html('<span class="k-badge k-fault-{}">{}{}{}</span>', word, icon(symbol), word, flapping)
