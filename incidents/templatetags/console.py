"""Template tags of the console: badges that never speak by colour alone, times with their zone."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from django import template
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from detectors import resources
from detectors.faults import Action, Channel, ClearRule, Component, Recovery, Role, Severity
from incidents.models import Fault, Incident
from incidents.reliability import texts
from incidents.reliability.proportions import Estimate
from incidents.reliability.summary import Figures, Summary
from incidents.text import wording
from incidents.vocabulary.lifecycle import State

register = template.Library()

_CUT_AT = 255  # characters: the length of the columns that keep one sentence for people


@register.filter
def icon(name: str) -> SafeString:
    """A symbol for the eye; hidden from screen readers, which read the word beside it."""
    return format_html(
        '<span class="material-symbols-outlined k-icon" aria-hidden="true">{}</span>', name
    )


@register.simple_tag
def before_link(changes: Any) -> str:
    """The address of the rows that follow those of a list's pages, with its filters."""
    link: str = changes.get_query_string({"before": changes.paginator.last_number}, ["p"])
    return link


@register.filter
def severity(value: str) -> SafeString:
    word = Severity(value)
    return format_html(
        '<span class="k-badge k-sev-{}">{}{}</span>',
        word.value,
        icon(wording.SEVERITY_ICONS[word]),
        word.value,
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
    return format_html(
        '<span class="k-badge k-send-{}">{}{}</span>', value, icon(_SEND_ICONS[value]), value
    )


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
    return "" if length is None else wording.format_duration(length)


@register.filter
def until(start: datetime | None, end: datetime | None) -> str:
    """How long from `start` to `end`; empty when either is missing."""
    return "" if start is None or end is None else wording.format_duration(end - start)


@register.filter
def where(path: str) -> SafeString:
    """The resource by its people's name, leading to its machine's page."""
    address = reverse("machine", args=[resources.printable(resources.owner(path))])
    return format_html('<a href="{}">{}</a>', address, wording.format_resource_path(path))


# A path of detectors.resources within a sentence, up to its part's name.
_PATH = re.compile(r"\b(?:node|switch)/[\w.-]+(?:/[a-z]+/[\w./:-]*\w)?")


@register.filter
def prose(text: str) -> str:
    """A sentence with the resources in it by their people's names, and marked where the column that
    kept it cut it."""
    sentence = _PATH.sub(lambda path: wording.format_resource_path(path.group()), text)
    was_cut = len(text) == _CUT_AT and text[-1] != "."
    return f"{sentence.rstrip()} ..." if was_cut else sentence


@register.filter
def coded(text: str) -> SafeString:
    """What stands between backticks as code."""
    shapes = ("{}", "<code>{}</code>")
    parts = (format_html(shapes[number % 2], part) for number, part in enumerate(text.split("`")))
    return format_html_join("", "{}", ((part,) for part in parts))


@register.filter
def fault_type(value: str) -> SafeString:
    return format_html(
        '<a class="k-code" href="{}">{}</a>', reverse("catalogue_entry", args=[value]), value
    )


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
    """Where, as people say it: `gn042 GPU 3`. Takes an incident of `admin_incident.with_place`."""
    if incident.gpu_index is None:
        return where(incident.root_resource)
    address = reverse("machine", args=[incident.owner])
    name = f"{incident.owner.split('/')[1]} GPU {incident.gpu_index}"
    return format_html('<a class="k-place" href="{}">{}</a>', address, name)


@register.filter
def pci_address(incident: Any) -> SafeString:
    """The GPU's PCI address, which tells it for sure where indexes may be counted anew after a
    reboot."""
    if incident.gpu_index is None:
        return mark_safe("")
    return format_html(
        '<span class="k-code k-muted k-place">{}</span>', incident.root_resource.rsplit("/", 1)[1]
    )


@register.filter
def lasted(incident: Incident) -> str:
    """`for 3 h 5 min` while it stands, `lasted 40 min` once service was restored or it was
    closed."""
    end = incident.restored_at or incident.closed_at
    if end is not None:
        return f"lasted {wording.format_duration(end - incident.onset_at)}"
    return f"for {wording.format_duration(timezone.now() - incident.onset_at)}"


@register.filter
def words(name: str) -> str:
    """`drain_reboot_verify` as `drain reboot verify`."""
    return str(name).replace("_", " ")


@register.filter
def activity(fault: Fault) -> SafeString:
    """Active or cleared; where it flaps, how much."""
    word, symbol = (
        ("active", "radio_button_checked") if fault.is_active else ("cleared", "check_circle")
    )
    flapping = f" flapping, {fault.flap_percent:.0f} %" if fault.is_flapping else ""
    return format_html(
        '<span class="k-badge k-fault-{}">{}{}{}</span>', word, icon(symbol), word, flapping
    )


@register.filter
def clock_used(fault: Fault) -> str:
    """Whose time `raised_at` is, where it is not the device's. What a person told first was dated
    by no device."""
    return wording.format_clock_used(fault.lag_s) if fault.clock == "ours" and fault.lag_s else ""


@register.filter
def rate(estimate: Estimate) -> str:
    """A mean time between failures with its interval."""
    return texts.format_between_failures(estimate)


@register.filter
def repair_time(row: Figures) -> str:
    """A class's mean time to restore, with its interval and its horizon."""
    mean = texts.repair_time(row, row.mttr)
    return f"{mean}, within {texts.format_span(row.horizon)}" if row.restored else mean


@register.filter
def left_out(summary: Summary) -> str:
    """What is no failure of the cluster, counted by its reason."""
    return texts.format_left_out(summary.left_out)
