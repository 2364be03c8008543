"""What people may rearrange, as forms on the incident's page: merge, split, another root. Writes
nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from django import forms
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectMultipleWidget,
    UnfoldAdminSelectWidget,
)

from incidents.console.forms import OptionalWordForm, WordForm
from incidents.models import Incident, IncidentFault
from incidents.people import edit
from incidents.text import wording

_LINES_SHOWN = 8
_QUICKER = (
    "That fault is the root already, or no longer part of this incident: somebody was quicker."
    " Choose again."
)


class RearrangeForm(OptionalWordForm):
    """Knows the members of its incident that are not the root, as choices that people can read."""

    def __init__(
        self, *args: Any, incident: Incident, members: Sequence[IncidentFault], **kwargs: Any
    ) -> None:
        super().__init__(*args, incident=incident, **kwargs)
        links = [link for link in members if link.fault_id != incident.root_fault_id]
        links.sort(
            key=lambda link: (not link.fault.is_active, link.fault.resource, link.fault.fault_type)
        )
        self.choices = [(str(link.fault_id), _format_label(link)) for link in links]


class MergeForm(RearrangeForm):
    into = forms.IntegerField(
        label="Number of the incident that takes the faults",
        min_value=1,
        widget=UnfoldAdminIntegerFieldWidget(attrs={"placeholder": "such as 17"}),
        error_messages={"required": "Give the number of the incident that stays."},
    )
    field_order = ("into", "note")


class SplitForm(RearrangeForm):
    faults = forms.MultipleChoiceField(
        label="Faults that leave",
        help_text=(
            "Several with Ctrl or Shift. The root stays; to split it off, make another fault the"
            " root first."
        ),
        widget=UnfoldAdminSelectMultipleWidget(attrs={"size": _LINES_SHOWN}),
        error_messages={
            "required": "Choose the faults that leave the incident.",
            "invalid_choice": _QUICKER,
        },
    )
    root = forms.ChoiceField(
        label="Root of the new incident", required=False, widget=UnfoldAdminSelectWidget
    )
    field_order = ("faults", "root", "note")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["faults"].choices = self.choices  # type: ignore[attr-defined]
        self.fields["root"].choices = [("", "The first of those that ask for most"), *self.choices]  # type: ignore[attr-defined]


class RerootForm(RearrangeForm):
    fault = forms.ChoiceField(
        label="The fault that is the cause",
        widget=UnfoldAdminSelectWidget,
        error_messages={
            "required": "Choose the fault that is the cause of the others.",
            "invalid_choice": _QUICKER,
        },
    )
    instead_of = forms.IntegerField(required=False, widget=forms.HiddenInput)
    field_order = ("fault", "note")

    def __init__(self, *args: Any, incident: Incident, **kwargs: Any) -> None:
        super().__init__(*args, incident=incident, **kwargs)
        self.fields["fault"].choices = [("", "Choose a fault"), *self.choices]  # type: ignore[attr-defined]
        self.fields["instead_of"].initial = incident.root_fault_id


def _format_label(link: IncidentFault) -> str:
    stands = "" if link.fault.is_active else ", cleared"
    return f"{wording.format_resource_path(link.fault.resource)}: {link.fault.fault_type}{stands}"


class Rearrangement(StrEnum):
    MERGE = "merge"
    SPLIT = "split"
    REROOT = "reroot"


Service = Callable[[WordForm, str, datetime], edit.Outcome]


@dataclass(frozen=True)
class EditAction:
    """One thing that a person may rearrange: its button, what it means, its form, and the service
    that does it."""

    kind: Rearrangement
    label: str
    icon: str
    meaning: str
    form: type[RearrangeForm]
    carry_out: Service
    needs_members: int = 1
    field: ClassVar = "trigger"

    @property
    def value(self) -> str:
        return self.kind.value


def _merge(form: WordForm, actor: str, now: datetime) -> edit.Outcome:
    given = form.cleaned_data
    return edit.merge(form.incident.pk, given["into"], actor=actor, note=given["note"], now=now)


def _split(form: WordForm, actor: str, now: datetime) -> edit.Outcome:
    given = form.cleaned_data
    root = int(given["root"]) if given["root"] else None
    faults = [int(pk) for pk in given["faults"]]
    return edit.split(
        form.incident.pk, faults, root_id=root, actor=actor, note=given["note"], now=now
    )


def _reroot(form: WordForm, actor: str, now: datetime) -> edit.Outcome:
    given = form.cleaned_data
    fault_id = int(given["fault"])
    return edit.reroot(
        form.incident.pk,
        fault_id,
        instead_of=given["instead_of"],
        actor=actor,
        note=given["note"],
        now=now,
    )


MOVES: tuple[EditAction, ...] = (
    EditAction(
        Rearrangement.MERGE,
        "Merge into another",
        "merge",
        "Both have one cause. The faults move to the other incident, which goes on; this one is"
        " closed, and a repair that runs for it is withdrawn.",
        MergeForm,
        _merge,
    ),
    EditAction(
        Rearrangement.SPLIT,
        "Split off faults",
        "call_split",
        "They have another cause. They leave as an incident of their own, and the rules do not"
        " bring them back.",
        SplitForm,
        _split,
        needs_members=2,
    ),
    EditAction(
        Rearrangement.REROOT,
        "Choose the root",
        "account_tree",
        "Another fault is the cause. The rules leave the root that you choose; a repair for the old"
        " one is withdrawn.",
        RerootForm,
        _reroot,
        needs_members=2,
    ),
)


def list_moves(incident: Incident, members: int) -> list[EditAction]:
    """What a person may rearrange: nothing in a closed incident, and a lone fault can only be
    merged."""
    return [move for move in MOVES if incident.is_open and members >= move.needs_members]
