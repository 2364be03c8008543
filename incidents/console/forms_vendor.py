"""What people say of vendor cases, spares and lemons, as forms: an act with its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from django import forms
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldBooleanSwitchWidget
from unfold.widgets import UnfoldAdminTextInputWidget as TextInput

from incidents.models import VendorCase
from incidents.vendor.cases import Facts
from incidents.vocabulary.vendor_states import CaseState, Move, list_moves

NOTE = "note"


class CaseForm(forms.Form):
    """A word for the timeline."""

    note = forms.CharField(
        label="A word for the timeline",
        max_length=2000,
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}),
        error_messages={
            "required": "Say in a few words why: the timeline keeps it for whoever comes next."
        },
    )

    @property
    def facts(self) -> Facts:
        values = self.cleaned_data
        is_advance = values.get("is_advance") if self.tells_advance else None
        return Facts(values.get("vendor", ""), values.get("number", ""), is_advance)

    @property
    def tells_advance(self) -> bool:
        return "is_advance" in self.fields

    @property
    def new_serial(self) -> str:
        return str(self.cleaned_data.get("serial", ""))


class WhyForm(CaseForm):
    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.fields["note"].required = True


class FactsForm(CaseForm):
    """The vendor's name and number, and whether the part comes in advance."""

    vendor = forms.CharField(label="Vendor", max_length=64, required=False, widget=TextInput)
    number = forms.CharField(
        label="The vendor's number of the case", max_length=64, required=False, widget=TextInput
    )
    is_advance = forms.BooleanField(
        label="The new part comes before the old one goes back",
        required=False,
        widget=UnfoldBooleanSwitchWidget,
    )
    field_order: tuple[str, ...] = ("vendor", "number", "is_advance", "note")


class OpenForm(FactsForm):
    """A new case: for which part of the incident's machine."""

    resource = forms.CharField(
        label="Part",
        max_length=160,
        required=False,
        help_text="A path such as node/gn042/gpu/0000:19:00.0; empty: the root of the incident.",
        widget=TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    field_order = ("resource", "vendor", "number", "is_advance", "note")


class InstallForm(CaseForm):
    serial = forms.CharField(
        label="Serial of the part that was put in",
        max_length=64,
        required=False,
        help_text=(
            "Empty where polls have seen it already. Of a part that came back repaired the old one."
        ),
        widget=TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    field_order = ("serial", "note")


@dataclass(frozen=True)
class CaseAct:
    """One thing that people may say of a case."""

    value: str
    label: str
    icon: str
    meaning: str
    form: type[CaseForm] = CaseForm
    field: ClassVar = "what"


_MOVES: tuple[CaseAct, ...] = (
    CaseAct(Move.APPROVE, "Approved", "thumb_up", "The vendor replaces the part.", FactsForm),
    CaseAct(Move.SHIP, "Shipped", "local_shipping", "The new part is on its way.", FactsForm),
    CaseAct(Move.RECEIVE, "Received", "inventory_2", "The new part is on site."),
    CaseAct(
        Move.INSTALL,
        "Installed",
        "memory",
        "The new part is in its slot. The ladder begins anew.",
        InstallForm,
    ),
    CaseAct(
        Move.VERIFY, "Verified", "verified", "The new part was tested, and its machine is well."
    ),
    CaseAct(
        Move.DEAD_ON_ARRIVAL,
        "Dead on arrival",
        "heart_broken",
        "The new part does not work: the vendor sends another, and it is counted.",
        WhyForm,
    ),
    CaseAct(
        Move.CLOSE,
        "Close",
        "task_alt",
        "Nothing more comes of it. Without a verified part, say why.",
    ),
)
_NOTE = CaseAct(
    NOTE, "Add what is known", "edit_note", "Number, vendor, a word. The state stays.", FactsForm
)


def list_acts(state: CaseState) -> tuple[CaseAct, ...]:
    """What may be said of a case in `state`, in the order of its life."""
    possible = list_moves(state)
    moves = tuple(act for act in _MOVES if act.value in possible)
    return (*moves, _NOTE) if state is not CaseState.CLOSED else ()


def get_initial(case: VendorCase) -> dict[str, object]:
    """What a form about facts begins with."""
    return {"vendor": case.vendor, "number": case.number, "is_advance": case.is_advance}
