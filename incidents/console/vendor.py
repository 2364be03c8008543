"""Pages of vendor cases: the list with its lead times, a case with its moves, and what people say
of it."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from incidents.console.forms_vendor import (
    NOTE,
    CaseAct,
    CaseForm,
    FactsForm,
    OpenForm,
    get_initial,
    list_acts,
)
from incidents.console.pages import ReadOnlyAdmin
from incidents.models import Incident, VendorCase
from incidents.statistics import vendor_statistics
from incidents.templatetags import console
from incidents.templatetags.vendor import case_badge, stands
from incidents.vendor import cases, texts
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.vendor_states import CaseState, Move

MAY = "incidents.handle_vendor_case"


class CaseStateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("standing", "all that are not closed"),
            *((state.value, state.value) for state in CaseState),
        ]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[VendorCase]
    ) -> QuerySet[VendorCase]:
        if self.value() == "standing":
            return queryset.exclude(state=CaseState.CLOSED)
        return queryset.filter(state=self.value()) if self.value() else queryset


class VendorCaseAdmin(ReadOnlyAdmin):
    list_display = ("what", "state_badge", "since", "who", "person_request", "of_incident")
    list_display_links = ("what",)
    list_filter: ClassVar = [CaseStateFilter, "part", "vendor"]
    list_select_related = ("incident",)
    search_fields = ("number", "old_serial", "new_serial", "resource", "vendor")
    search_help_text = "The vendor's number, a serial, a slot or the vendor"
    ordering = ("-opened_at", "-id")
    change_list_template = "incidents/vendor_list.html"
    page_template = "incidents/vendor_case.html"
    empty_title = "No vendor case"
    empty_text = "A case is opened by a runbook, or on the page of an incident."

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        times = {"lead_times": vendor_statistics.compute_lead_times(timezone.now())}
        return super().changelist_view(request, {**(extra_context or {}), **times})

    @admin.display(description="Case", ordering="id")
    def what(self, row: VendorCase) -> str:
        return f"#{row.pk} {texts.format_part(row.part, row.resource)}"

    @admin.display(description="State", ordering="state")
    def state_badge(self, row: VendorCase) -> SafeString:
        return case_badge(row)

    @admin.display(description="Since", ordering="since_at")
    def since(self, row: VendorCase) -> SafeString:
        return format_html(
            "{}<br><span class='k-muted k-small'>{}</span>", console.when(row.since_at), stands(row)
        )

    @admin.display(description="Vendor", ordering="vendor")
    def who(self, row: VendorCase) -> str:
        return " ".join(word for word in (row.vendor, row.number) if word) or "no number yet"

    @admin.display(description="Asked of a person")
    def person_request(self, row: VendorCase) -> SafeString:
        text = texts.format_request(row)
        if not text:
            return format_html('<span class="k-muted">{}</span>', "nothing")
        return format_html('<span class="k-asks">{}{}</span>', console.icon("back_hand"), text)

    @admin.display(description="Incident", ordering="incident_id")
    def of_incident(self, row: VendorCase) -> SafeString:
        address = reverse("admin:incidents_incident_change", args=[row.incident_id])
        return format_html('<a href="{}">#{}</a>', address, row.incident_id)

    def get_page_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        act_view = wrap(require_POST(self.act_view))
        open_view = wrap(self.open_view)
        return [
            path("<int:object_id>/act/", act_view, name="incidents_vendorcase_act"),
            path("open/<int:incident_id>/", open_view, name="incidents_vendorcase_open"),
        ]

    def get_page_queryset(self, request: HttpRequest) -> QuerySet[VendorCase]:
        return VendorCase.objects.select_related("incident", "node")

    def get_page_context(self, request: HttpRequest, row: VendorCase) -> dict[str, Any]:
        can_act = request.user.has_perm(MAY)
        act_address = reverse("admin:incidents_vendorcase_act", args=[row.pk])
        forms = _make_forms(row) if can_act else []
        what = texts.format_part(row.part, row.resource)
        badge = case_badge(row)
        request_text = texts.format_request(row)
        moves = row.moves.order_by("-pk")
        return {
            "title": f"Vendor case {row.pk}",
            "what": what,
            "badge": badge,
            "asked": request_text,
            "moves": moves,
            "can_act": can_act,
            "forms": forms,
            "act_address": act_address,
        }

    def act_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """By `incidents.vendor.cases`, which writes the timeline; a refusal is shown with why, the
        words are kept."""
        _check(request)
        case = self.find(request, str(object_id))
        act = next((act for act in _list_acts() if act.value == request.POST.get("what")), None)
        if case is None or act is None:
            return self.render_missing(request, str(object_id))
        form = act.form(request.POST, prefix=act.value)
        if form.is_valid():
            outcome = _carry_out(case, act, form, request.user.get_username())
            if not isinstance(outcome, Refused):
                messages.success(request, outcome.text)
                return HttpResponseRedirect(
                    reverse("admin:incidents_vendorcase_change", args=[object_id])
                )
            form.add_error(None, outcome.reason)
        return self.render_page(
            request, str(object_id), status=409, forms=_make_forms(case, form, act)
        )

    def open_view(self, request: HttpRequest, incident_id: int) -> HttpResponse:
        """A form about a new case, then the case's page."""
        _check(request)
        incident = Incident.objects.filter(pk=incident_id).first()
        if incident is None:
            return self.render_missing(request, str(incident_id))
        form = OpenForm(request.POST or None, initial={"resource": incident.root_resource})
        if request.method == "POST" and form.is_valid():
            resource = form.cleaned_data["resource"].strip()
            outcome = cases.open_case(
                incident_id,
                actor=request.user.get_username(),
                now=timezone.now(),
                resource=resource,
                facts=form.facts,
                note=form.cleaned_data["note"],
            )
            if not isinstance(outcome, Refused):
                messages.success(request, outcome.text)
                address = reverse("admin:incidents_vendorcase_change", args=[outcome.case_id])
                return HttpResponseRedirect(address)
            form.add_error(None, outcome.reason)
        return self._open_page(request, incident, form)

    def _open_page(self, request: HttpRequest, incident: Incident, form: OpenForm) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "New vendor case",
            "incident": incident,
            "form": form,
        }
        return TemplateResponse(
            request, "incidents/vendor_open.html", context, status=422 if form.errors else 200
        )


def _list_acts() -> tuple[CaseAct, ...]:
    """What may be said in any state, each once."""
    acts = {act.value: act for state in CaseState for act in list_acts(state)}
    return tuple(acts.values())


def _make_forms(
    case: VendorCase, bound: CaseForm | None = None, tried: CaseAct | None = None
) -> list[tuple[CaseAct, CaseForm, bool]]:
    """What may be said now, each with its form; a refused one stands open with its words."""
    offered = list(list_acts(CaseState(case.state)))
    if tried is not None and tried not in offered:
        offered.append(tried)
    forms: list[tuple[CaseAct, CaseForm, bool]] = []
    for act in offered:
        if bound is not None and act is tried:
            forms.append((act, bound, True))
        else:
            forms.append((act, _make_fresh_form(act, case), False))
    return forms


def _make_fresh_form(act: CaseAct, case: VendorCase) -> CaseForm:
    initial = get_initial(case) if issubclass(act.form, FactsForm) else None
    return act.form(initial=initial, prefix=act.value)


def _carry_out(
    case: VendorCase, act: CaseAct, form: CaseForm, actor: str
) -> cases.CaseMoved | Refused:
    note, now = form.cleaned_data["note"], timezone.now()
    if act.value == NOTE:
        return cases.describe(case.pk, form.facts, actor=actor, now=now, note=note)
    return cases.move(
        case.pk,
        Move(act.value),
        actor=actor,
        now=now,
        note=note,
        serial=form.new_serial,
        facts=form.facts,
    )


def _check(request: HttpRequest) -> None:
    if not request.user.has_perm(MAY):
        raise PermissionDenied
