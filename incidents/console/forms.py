"""What people may tell Kintsugi about an incident, as forms: an action with its word, and a
report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django import forms
from django.utils import timezone
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
)
from unfold.widgets import UnfoldAdminTextInputWidget as TextInput

from detectors import resources
from detectors.catalog import catalog
from incidents.faults.fault_views import USER_REPORT
from incidents.models import Gpu, Incident, Node, Switch
from incidents.state.transitions import get_given_back_at
from incidents.text import wording
from incidents.text.wording import format_moment
from incidents.vocabulary.lifecycle import State, Trigger, get_next_state

NOTE_LENGTH = 2000


class WordForm(forms.Form):
    """The word that goes into the timeline with an action."""

    note = forms.CharField(
        label="A word for the timeline",
        max_length=NOTE_LENGTH,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        error_messages={
            "required": "Say in a few words why: the timeline keeps it for whoever comes next."
        },
    )

    def __init__(self, *args: Any, incident: Incident, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.incident = incident

    def get_changes(self) -> dict[str, Any]:
        """What the action sets besides the state, as `incidents.services.act` takes it."""
        return {}


class OptionalWordForm(WordForm):
    """For what says enough by itself, so that nobody has to think of a word at three in the
    morning."""

    def __init__(self, *args: Any, incident: Incident, **kwargs: Any) -> None:
        super().__init__(*args, incident=incident, **kwargs)
        self.fields["note"].required = False


_RECOVERY_CHOICES = [("", "Choose what was done")]
_RECOVERY_CHOICES += [(str(recovery), text) for recovery, text in wording.RECOVERIES.items()]


def _describe_back(incident: Incident) -> str:
    """When service counts as back where a person says nothing."""
    if incident.restored_at is not None:
        return "as Kintsugi saw it"
    given_back_at = get_given_back_at(incident)
    if given_back_at is None:
        return "now"
    return f"{format_moment(given_back_at)}, since when Slurm gives the node jobs again"


class ResolveForm(WordForm):
    recovery = forms.ChoiceField(
        label="What brought it back",
        choices=_RECOVERY_CHOICES,
        widget=UnfoldAdminSelectWidget,
        error_messages={
            "required": "Choose what brought the service back; the statistics count it."
        },
    )
    back_since = forms.DateTimeField(
        label="Back since",
        required=False,
        widget=TextInput(attrs={"type": "datetime-local"}),
        error_messages={"invalid": "Give date and time as 2025-01-31 14:05, or leave it empty."},
    )
    field_order = ("recovery", "back_since", "note")

    def __init__(self, *args: Any, incident: Incident, **kwargs: Any) -> None:
        super().__init__(*args, incident=incident, **kwargs)
        self.fields["back_since"].help_text = (
            "When service was really back; the statistics count it. "
            f"Empty: {_describe_back(incident)}. "
            f"Time zone {timezone.get_current_timezone_name()}."
        )

    def get_changes(self) -> dict[str, Any]:
        changes = {"recovery": self.cleaned_data["recovery"]}
        if self.cleaned_data["back_since"]:
            changes["restored_at"] = self.cleaned_data["back_since"]
        return changes


class DuplicateForm(OptionalWordForm):
    original = forms.IntegerField(
        label="Number of the incident that it repeats",
        min_value=1,
        widget=UnfoldAdminIntegerFieldWidget(attrs={"placeholder": "such as 17"}),
        error_messages={"required": "Give the number of the incident that stays."},
    )
    field_order = ("original", "note")

    def clean_original(self) -> Incident:
        number: int = self.cleaned_data["original"]
        other = Incident.objects.filter(pk=number).first()
        if other is None:
            raise forms.ValidationError(
                f"There is no incident #{number}; look its number up in the list of incidents."
            )
        return other

    def get_changes(self) -> dict[str, Any]:
        return {"duplicate_of": self.cleaned_data["original"]}


@dataclass(frozen=True)
class IncidentAction:
    """One thing a person may do to an incident: its trigger, its button, what it means, its
    form."""

    trigger: Trigger
    label: str
    icon: str
    meaning: str
    form: type[WordForm]
    field: ClassVar = "trigger"

    @property
    def value(self) -> str:
        return self.trigger.value


ACTS: tuple[IncidentAction, ...] = (
    IncidentAction(
        Trigger.ACKNOWLEDGE,
        "Acknowledge",
        "visibility",
        "You look after it from now on. Repairs go on as before.",
        OptionalWordForm,
    ),
    IncidentAction(
        Trigger.CONFIRM,
        "Confirm",
        "verified",
        "It is a real fault; you have seen for yourself.",
        OptionalWordForm,
    ),
    IncidentAction(
        Trigger.HANDED_TO_VENDOR,
        "Hand to the vendor",
        "local_shipping",
        "The hardware waits for the vendor. Name the ticket.",
        WordForm,
    ),
    IncidentAction(
        Trigger.RESOLVE,
        "Resolve",
        "check_circle",
        "It is over. A repair that still runs is withdrawn; a drained node is yours to resume.",
        ResolveForm,
    ),
    IncidentAction(
        Trigger.MARK_FALSE_POSITIVE,
        "False positive",
        "cancel",
        "Nothing was wrong. It leaves the statistics; a repair that still runs is withdrawn. Other"
        " faults of it that were measured and stand become an incident of their own.",
        WordForm,
    ),
    IncidentAction(
        Trigger.MARK_DUPLICATE,
        "Duplicate of another",
        "content_copy",
        "Another incident tells the same story and stays; this one is closed.",
        DuplicateForm,
    ),
)


def list_acts(state: State) -> list[IncidentAction]:
    """What the life cycle allows a person to do in `state`."""
    return [act for act in ACTS if get_next_state(state, act.trigger) is not None]


class ReportForm(forms.Form):
    """A problem as a person saw it: where, what, since when."""

    machine = forms.CharField(
        label="Where",
        max_length=64,
        help_text="The node or switch, such as gn042 or leaf-03.",
        widget=TextInput(attrs={"list": "machines", "autocomplete": "off", "spellcheck": "false"}),
        error_messages={
            "required": "Name the node or switch; without it nobody knows where to look."
        },
    )
    gpu = forms.IntegerField(
        label="GPU",
        required=False,
        min_value=0,
        help_text="Its index as nvidia-smi counts, from 0.",
        widget=UnfoldAdminIntegerFieldWidget,
    )
    text = forms.CharField(
        label="What you saw",
        max_length=4000,
        help_text="Error text, job number, what you did before. It is kept word for word.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 6}),
        error_messages={"required": "Say what you saw; one sentence is enough."},
    )
    since = forms.DateTimeField(
        label="Since when",
        required=False,
        widget=TextInput(attrs={"type": "datetime-local"}),
        error_messages={
            "invalid": "Give date and time as 2025-01-31 14:05, or leave it empty for now."
        },
    )
    fault_type = forms.CharField(
        label="Fault type",
        required=False,
        max_length=96,
        help_text=(
            "Only if a log line or tool named it, such as gpu.xid.79; the catalogue lists them."
        ),
        widget=TextInput(
            attrs={"list": "fault-types", "autocomplete": "off", "spellcheck": "false"}
        ),
    )

    def __init__(self, *args: Any, now: datetime, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.now = now
        zone = timezone.get_current_timezone_name()
        self.fields["since"].help_text = f"Time zone {zone}; empty means now."

    def clean_machine(self) -> str:
        name = resources.short_host(self.cleaned_data["machine"])
        if Node.objects.filter(name=name).exists():
            return resources.node(name)
        if Switch.objects.filter(name=name).exists():
            return resources.switch(name)
        raise forms.ValidationError(
            f"The inventory knows no node or switch named {name}. Check the name; "
            "an administrator adds machines with `kintsugi inventory import`."
        )

    def clean_since(self) -> datetime:
        since: datetime = self.cleaned_data["since"] or self.now
        if since > self.now:
            raise forms.ValidationError(
                "That lies in the future. Give the time when you first saw it."
            )
        return since

    def clean_fault_type(self) -> str:
        named: str = self.cleaned_data["fault_type"].strip() or USER_REPORT
        if catalog.load().get(named) is None:
            raise forms.ValidationError(
                f"The catalogue has no fault type {named}; leave it empty if you are not sure."
            )
        return named

    def clean(self) -> dict[str, Any]:
        """The resource under `resource`: the machine, or its GPU by PCI address when an index is
        given."""
        cleaned: dict[str, Any] = super().clean() or {}
        index, machine = cleaned.get("gpu"), cleaned.get("machine")
        cleaned["resource"] = machine
        if index is None or machine is None:
            return cleaned
        host = resources.host_of(machine)
        gpu = Gpu.objects.filter(node__name=host, index=index).first() if host else None
        if gpu is None or host is None:
            self.add_error("gpu", f"{machine.split('/')[1]} has no GPU {index} in the inventory.")
        else:
            cleaned["resource"] = resources.gpu(host, gpu.pci_address)
        return cleaned
