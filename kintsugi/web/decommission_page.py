"""Pages of nodes that are being taken away for good: which, by whom and why; on-call says so and
takes it back."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST
from unfold.widgets import UnfoldAdminTextareaWidget
from unfold.widgets import UnfoldAdminTextInputWidget as TextInput

from incidents.console.pages import ReadOnlyAdmin
from incidents.models import Decommission
from incidents.templatetags import console
from incidents.topology.topology import expand_typed
from runbooks.outcomes import ControlRefused
from runbooks.people import decommission

MAY = "runbooks.control_run"


class EndForm(forms.Form):
    """Why, for the record."""

    reason = forms.CharField(
        label="Why", max_length=255, widget=UnfoldAdminTextareaWidget(attrs={"rows": 2})
    )


class AddForm(EndForm):
    nodes = forms.CharField(
        label="Nodes",
        max_length=1000,
        help_text="A Slurm host list, such as gn[001-004].",
        widget=TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    field_order = ("nodes", "reason")

    def clean_nodes(self) -> list[str]:
        try:
            return expand_typed(self.cleaned_data["nodes"])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error


class DecommissionPage(ReadOnlyAdmin):
    list_display = ("name", "why", "by", "since", "ended")
    list_display_links = ("why",)
    list_filter: ClassVar = [("ended_at", admin.EmptyFieldListFilter)]
    list_select_related = ("node",)
    search_fields = ("node__name", "reason", "set_by")
    search_help_text = "Node, reason or person"
    change_list_template = "kintsugi/decommission_list.html"
    page_template = "kintsugi/decommission.html"
    empty_title = "No node is being decommissioned"
    empty_text = "Nodes that people take away for good stand here: nothing is started on them."

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        empty_form = AddForm() if request.user.has_perm(MAY) else None
        form = (extra_context or {}).get("form", empty_form)
        return super().changelist_view(request, {"title": "Decommissioning", "form": form})

    def get_page_queryset(self, request: HttpRequest) -> QuerySet[Decommission]:
        return Decommission.objects.select_related("node")

    def get_page_context(self, request: HttpRequest, row: Decommission) -> dict[str, Any]:
        may = request.user.has_perm(MAY) and row.ended_at is None
        return {"title": f"Decommissioning of {row.node.name}", "form": EndForm() if may else None}

    def get_page_urls(self) -> list[URLPattern]:
        begin = self.admin_site.admin_view(require_POST(self.begin_view))
        end = self.admin_site.admin_view(require_POST(self.end_view))
        return [
            path("begin/", begin, name="incidents_decommission_begin"),
            path("<int:object_id>/end/", end, name="incidents_decommission_end"),
        ]

    def begin_view(self, request: HttpRequest) -> HttpResponse:
        if not request.user.has_perm(MAY):
            raise PermissionDenied
        form = AddForm(request.POST)
        if form.is_valid():
            for node in form.cleaned_data["nodes"]:
                self._begin(request, form, node)
            if not form.errors:
                return HttpResponseRedirect(reverse("admin:incidents_decommission_changelist"))
        request.method = "GET"
        answer: HttpResponse = self.changelist_view(request, {"form": form})
        answer.status_code = 409
        return answer

    def _begin(self, request: HttpRequest, form: AddForm, node: str) -> None:
        actor, why = request.user.get_username(), form.cleaned_data["reason"]
        outcome = decommission.begin(node, actor=actor, why=why, now=timezone.now())
        if isinstance(outcome, ControlRefused):
            form.add_error("nodes", outcome.reason)
        else:
            messages.success(request, outcome.text)

    def end_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        if not request.user.has_perm(MAY):
            raise PermissionDenied
        form = EndForm(request.POST)
        row = self.find(request, str(object_id))
        if row is not None and form.is_valid():
            actor, why = request.user.get_username(), form.cleaned_data["reason"]
            outcome = decommission.end(row.node.name, actor=actor, why=why, now=timezone.now())
            if not isinstance(outcome, ControlRefused):
                messages.success(request, outcome.text)
                return HttpResponseRedirect(reverse("admin:incidents_decommission_changelist"))
            form.add_error(None, outcome.reason)
        return self.render_page(request, str(object_id), status=409, form=form)

    @admin.display(description="Node", ordering="node__name")
    def name(self, row: Decommission) -> SafeString:
        return console.where(row.node.resource)

    @admin.display(description="Why")
    def why(self, row: Decommission) -> str:
        return row.reason

    @admin.display(description="By", ordering="set_by")
    def by(self, row: Decommission) -> str:
        return row.set_by

    @admin.display(description="Since", ordering="set_at")
    def since(self, row: Decommission) -> SafeString:
        return console.when(row.set_at)

    @admin.display(description="Ended", ordering="ended_at")
    def ended(self, row: Decommission) -> SafeString | str:
        return console.when(row.ended_at) if row.ended_at is not None else "it leaves"
