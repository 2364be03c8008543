"""What people may say about windows, as forms: a new one, and another end or review."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils import timezone
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldBooleanSwitchWidget
from unfold.widgets import UnfoldAdminTextInputWidget as TextInput

from incidents.evaluation.windows import Draft, DraftField, Problem, WindowKind
from incidents.maintenance import planning
from incidents.models import Incident, Silence
from incidents.topology.topology import expand_typed

_KINDS = {
    WindowKind.SILENCE: "Silence: a fault that somebody knows of",
    WindowKind.MAINTENANCE: "Maintenance: machines that people work on; no repair starts there",
    WindowKind.SHELF: "Shelf: one kind of fault in one place that will stand until a review",
}
# What a new window begins with, to be changed: two hours, as in the form of Prometheus
# Alertmanager.
USUAL = timedelta(hours=2)
_NO_TIME = {"invalid": "Give date and time as 2025-01-31 14:05."}


def _make_time_field(label: str, text: str) -> forms.DateTimeField:
    widget = TextInput(attrs={"type": "datetime-local"})
    return forms.DateTimeField(
        label=label, required=False, widget=widget, help_text=text, error_messages=_NO_TIME
    )


def _make_reason_field(label: str, *, is_needed: bool) -> forms.CharField:
    return forms.CharField(
        label=label,
        max_length=255,
        required=is_needed,
        widget=TextInput,
        error_messages={"required": "Say why: everyone who sees it will ask."},
    )


class ChangeForm(forms.Form):
    """Another end, another review, another reason; what is left empty is none, the reason stays."""

    ends_at = _make_time_field("End", "Earlier, later, or empty where it has a review.")
    review_at = _make_time_field(
        "Review", "When you are asked whether it is still right; 30 days at most."
    )
    reason = _make_reason_field("New reason", is_needed=False)

    def refuse(self, problems: tuple[Problem, ...]) -> None:
        for problem in problems:
            name = problem.field.value if problem.field.value in self.fields else None
            self.add_error(name, problem.text)


def _get_kind_choices() -> list[tuple[str, str]]:
    return [(kind.value, text) for kind, text in _KINDS.items()]


class WindowForm(ChangeForm):
    """A new window: what it covers, from when, until when, and why."""

    kind = forms.ChoiceField(
        label="What",
        choices=_get_kind_choices(),
        widget=UnfoldAdminSelectWidget,
        initial=WindowKind.SILENCE.value,
    )
    where = forms.CharField(
        label="Where",
        required=False,
        max_length=2000,
        help_text=(
            "A path or pattern such as node/gn042, node/gn0* or switch/leaf-03/port/Ethernet64."
            " Maintenance: machines such as gn[001-004], leaf-03."
        ),
        widget=TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    fault_type = forms.CharField(
        label="Fault type",
        required=False,
        max_length=96,
        help_text="Such as gpu.xid.79 or nic.link.*; empty: every type.",
        widget=TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    reason = _make_reason_field("Why", is_needed=True)
    starts_at = _make_time_field("Begin", "Empty: now.")
    everything = forms.BooleanField(
        label="I mean everything",
        required=False,
        help_text="Only needed where it covers every fault of every machine.",
        widget=UnfoldBooleanSwitchWidget,
    )
    field_order = (
        "kind",
        "where",
        "fault_type",
        "reason",
        "starts_at",
        "ends_at",
        "review_at",
        "everything",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zone = timezone.get_current_timezone_name()
        self.fields["starts_at"].help_text = f"Time zone {zone}; empty: now."
        end = self.fields["ends_at"]
        end.help_text = (
            "When people are told again of what still stands. A shelf may have a review instead."
        )
        end.initial = _format_typed(timezone.now() + USUAL)

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        where = values.get("where", "")
        if where and values.get("kind") == WindowKind.MAINTENANCE.value:
            try:
                expand_typed(where)
            except ValueError as error:
                self.add_error("where", str(error))
        return values

    def build_draft(self, now: datetime) -> Draft:
        values = self.cleaned_data
        where = values["where"].strip()
        kind = WindowKind(values["kind"])
        starts_at = values["starts_at"] or now
        draft = Draft(
            kind=kind,
            reason=values["reason"],
            starts_at=starts_at,
            ends_at=values["ends_at"],
            review_at=values["review_at"],
            may_cover_all=values["everything"],
        )
        if kind is not WindowKind.MAINTENANCE:
            return replace(draft, resource=where, fault_type=values["fault_type"].strip())
        if not where:
            return draft
        return replace(draft, machines=planning.parse_machines(where, planning.get_known_names()))


def get_initial_of_incident(incident: Incident) -> dict[str, str]:
    """What a silence of this incident begins with: its root's resource and type."""
    return {
        "where": incident.root_resource,
        "fault_type": incident.fault_type,
        "kind": WindowKind.SILENCE.value,
    }


def get_initial_of_window(row: Silence) -> dict[str, Any]:
    return {
        DraftField.ENDS_AT.value: _format_typed(row.ends_at),
        DraftField.REVIEW_AT.value: _format_typed(row.review_at),
    }


def _format_typed(at: datetime | None) -> str:
    """As a field of type datetime-local takes it."""
    return f"{timezone.localtime(at):%Y-%m-%dT%H:%M}" if at is not None else ""
