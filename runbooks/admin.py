"""Pages of what is done: runs with their steps, and what people do to a run through
`runbooks.services`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST
from unfold.widgets import UnfoldAdminTextInputWidget

from incidents.console.pages import ReadOnlyAdmin
from incidents.templatetags import console
from runbooks import services
from runbooks.console.record import AuditAdmin
from runbooks.engine import approvals
from runbooks.models import UNFINISHED, Run, RunState
from runbooks.people import progress
from runbooks.second_person import power_cycles
from runbooks.templatetags.runs import run_state, runbook_title

__all__ = ["AuditAdmin", "RunAdmin"]


@dataclass(frozen=True)
class Control:
    """One thing a person may do to a run, and in which states."""

    name: str
    label: str
    icon: str
    meaning: str
    states: tuple[RunState, ...]
    field: ClassVar = "control"

    @property
    def value(self) -> str:
        return self.name


CONTROLS: tuple[Control, ...] = (
    Control(
        "approve",
        "Approve",
        "thumb_up",
        "The step shown above may act on the node, within an hour and while the node is as shown.",
        (RunState.AWAITING_APPROVAL,),
    ),
    Control(
        "pause",
        "Pause",
        "pause_circle",
        "No further step until a person resumes it.",
        (RunState.RUNNING,),
    ),
    Control(
        "resume",
        "Resume",
        "play_circle",
        "It goes on with the step where it stopped.",
        (RunState.PAUSED,),
    ),
    Control(
        "take_over",
        "Take over",
        "front_hand",
        "You go on by hand: it ends here, and the incident is yours. The node stays as it is.",
        UNFINISHED,
    ),
    Control(
        "abort",
        "Abort",
        "cancel",
        "It ends here. The node stays as it is: drained if it was drained.",
        UNFINISHED,
    ),
)


class ControlForm(forms.Form):
    note = forms.CharField(
        label="A word for the timeline",
        max_length=2000,
        widget=UnfoldAdminTextInputWidget,
        error_messages={
            "required": "Say in a few words why: the timeline keeps it for whoever comes next."
        },
    )
    # Which question, with which state, the person had before them.
    seen = forms.CharField(max_length=64, required=False, widget=forms.HiddenInput)


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = ("name", "place", "about", "state_word", "mode_word", "doing", "started", "took")
    list_display_links = ("name",)
    list_filter: ClassVar = ["state", "runbook", "mode"]
    list_select_related = ("node", "incident")
    search_fields = ("node__name", "runbook", "fault_type")
    search_help_text = "Node, runbook or fault type"
    page_template = "runbooks/run.html"
    empty_title = "No run"
    empty_text = (
        "A runbook starts by itself when an incident's fault type has one. Modes decide how far it"
        " goes."
    )

    def get_page_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        return Run.objects.select_related("node", "incident").prefetch_related("steps")

    @admin.display(description="Run", ordering="pk")
    def name(self, run: Run) -> SafeString:
        return format_html(
            '<span class="k-muted">#{}</span> {}', run.pk, runbook_title(run.runbook)
        )

    @admin.display(description="Machine", ordering="node")
    def place(self, run: Run) -> str:
        return run.place

    @admin.display(description="Mode", ordering="mode")
    def mode_word(self, run: Run) -> SafeString:
        return format_html('<span class="k-badge k-mode-{}">{}</span>', run.mode, run.mode)

    @admin.display(description="Incident", ordering="incident")
    def about(self, run: Run) -> SafeString:
        address = reverse("admin:incidents_incident_change", args=[run.incident_id])
        return format_html('<a href="{}">{}</a>', address, run.incident)

    @admin.display(description="State", ordering="state")
    def state_word(self, run: Run) -> SafeString:
        return run_state(run.state)

    @admin.display(description="Waits for, or came to")
    def doing(self, run: Run) -> str:
        return console.prose(progress.format_wait(run) if run.state in UNFINISHED else run.outcome)

    @admin.display(description="Started", ordering="started_at")
    def started(self, run: Run) -> SafeString:
        return console.when(run.started_at)

    @admin.display(description="Took")
    def took(self, run: Run) -> str:
        return console.until(run.started_at, run.finished_at or timezone.now())

    def get_page_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.control_view))
        return [path("<int:object_id>/control/", view, name="runbooks_run_control")]

    def get_page_context(self, request: HttpRequest, row: Run) -> dict[str, Any]:
        can_control = request.user.has_perm("runbooks.control_run")
        act_address = reverse("admin:runbooks_run_control", args=[row.pk])
        return {
            "title": f"Run {row.pk}",
            "is_unfinished": row.state in UNFINISHED,
            "forms": build_control_forms(row),
            "can_control": can_control,
            "act_address": act_address,
            **_describe_approvals(row),
        }

    def control_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """Approve, pause, resume or abort, by the service of that name; a refusal is shown with
        why."""
        if not request.user.has_perm("runbooks.control_run"):
            raise PermissionDenied
        run = self.find(request, str(object_id))
        control = next(
            (control for control in CONTROLS if control.name == request.POST.get("control")), None
        )
        if run is None or control is None:
            return self.render_missing(request, str(object_id))
        form = ControlForm(request.POST, prefix=control.name)
        if form.is_valid():
            outcome = carry_out(run, control, form.cleaned_data, request)
            if not isinstance(outcome, services.ControlRefused):
                is_asked = isinstance(outcome, services.AskedSecond)
                done = f"{control.label}: done, and written to the timeline."
                messages.success(request, outcome.text if is_asked else done)
                return HttpResponseRedirect(reverse("admin:runbooks_run_change", args=[run.pk]))
            form.add_error(None, outcome.reason)
        form.data = {
            **request.POST.dict(),
            f"{control.name}-seen": approvals.get_fingerprint(run),
        }  # what the page shows now
        return self.render_page(
            request, str(object_id), status=409, forms=build_control_forms(run, form, control)
        )


_Act = Callable[..., services.Outcome]


def _describe_approvals(run: Run) -> dict[str, Any]:
    """What waits for approval, who was first where two are needed, and what was given."""
    return {
        "approval": approvals.get_open_approval(run),
        "first": power_cycles.find_first(run),
        "approvals": run.approvals.exclude(given_at=None),
    }


def build_control_forms(
    run: Run, bound: ControlForm | None = None, refused: Control | None = None
) -> list[tuple[Control, ControlForm, bool]]:
    """What the state allows, each with its form; a refused one stays open with its text."""
    fingerprint = approvals.get_fingerprint(run)
    offered = []
    for control in CONTROLS:
        if bound is not None and control == refused:
            offered.append((control, bound, True))
        elif run.state in control.states or control == refused:
            form = ControlForm(prefix=control.name, initial={"seen": fingerprint})
            offered.append((control, form, False))
    return offered


def carry_out(
    run: Run, control: Control, given: dict[str, str], request: HttpRequest
) -> services.Outcome:
    acts: dict[str, _Act] = {
        "approve": services.approve,
        "pause": services.pause,
        "resume": services.resume,
        "abort": services.abort,
        "take_over": services.take_over,
    }
    values: dict[str, Any] = {"note": given["note"], "now": timezone.now()}
    if control.name == "approve":
        values["seen"] = given["seen"]
    return acts[control.name](run.pk, actor=request.user.get_username(), **values)
