"""The incident list and what people do to an incident. `kintsugi.web.console` joins its page with
its runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import (
    Case,
    F,
    IntegerField,
    Max,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Concat
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from detectors.faults import Severity
from incidents import services
from incidents.checks import unread_lines
from incidents.console.forms import ACTS, IncidentAction, WordForm, list_acts
from incidents.console.forms_edit import MOVES, EditAction, list_moves
from incidents.console.impact import mark_told_view
from incidents.console.keyset import BeforeFilter
from incidents.console.pages import ReadOnlyAdmin
from incidents.console.silences import KeptFilter
from incidents.models import Gpu, Incident, IncidentFault, Notification
from incidents.people import edit, explain
from incidents.templatetags import console
from incidents.text import wording
from incidents.text.account import Section
from incidents.vocabulary.lifecycle import OPEN, State

SEVERITY_RANK = Case(
    *(When(severity=str(s), then=s.rank) for s in Severity), output_field=IntegerField()
)
SendState = Notification.SendState
TROUBLED = (SendState.FAILED, SendState.UNKNOWN)
WAITING = (SendState.WAITING, SendState.SENDING)
MEMBERS_SHOWN = 50
ENTRIES_SHOWN = 200
MONTHS_OFFERED = 36
LATEST_MACHINES = 200
_OFFERED: tuple[IncidentAction | EditAction, ...] = (*ACTS, *MOVES)
_GPU_INDEX = Subquery(
    Gpu.objects.filter(node=OuterRef("node"))
    .annotate(path=Concat(Value("node/"), F("node__name"), Value("/gpu/"), F("pci_address")))
    .filter(path=OuterRef("root_resource"))
    .values("index")[:1]
)


def add_place(incidents: QuerySet[Incident]) -> QuerySet[Any]:
    """Incidents with `rank`, how severe in order, and `gpu_index`, which GPU of its node the root
    is."""
    return incidents.annotate(rank=SEVERITY_RANK, gpu_index=_GPU_INDEX)


class IncidentStateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("unfinished", "all that are not closed"),
            *((s.value, wording.STATES[s]) for s in State),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Incident]) -> QuerySet[Incident]:
        if self.value() == "unfinished":
            return queryset.filter(state__in=OPEN)
        return queryset.filter(state=self.value()) if self.value() else queryset


class MonthFilter(admin.SimpleListFilter):
    """By the month of onset, in the console's time zone, newest first."""

    title = "month"
    parameter_name = "month"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        span = Incident.objects.aggregate(first=Min("onset_at"), last=Max("onset_at"))
        if span["first"] is None:
            return []
        first = timezone.localtime(span["first"])
        last = timezone.localtime(span["last"])
        first_number = first.year * 12 + first.month - 1
        last_number = last.year * 12 + last.month - 1
        numbers = range(last_number, first_number - 1, -1)[:MONTHS_OFFERED]
        months = [date(number // 12, number % 12 + 1, 1) for number in numbers]
        return [(f"{month:%Y-%m}", f"{month:%B %Y}") for month in months]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Incident]) -> QuerySet[Incident]:
        year, _, month = (self.value() or "").partition("-")
        if not (year.isdecimal() and month.isdecimal()):
            return queryset
        return queryset.filter(onset_at__year=int(year), onset_at__month=int(month))


class MachineFilter(admin.SimpleListFilter):
    """The machines of the latest incidents: short however large the fleet is. Any other is found by
    the search."""

    title = "node or switch"
    parameter_name = "machine"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        latest = Incident.objects.order_by("-pk").values_list("owner", flat=True)[:LATEST_MACHINES]
        owners = {*latest, *request.GET.getlist(self.parameter_name)}
        return [(owner, wording.format_resource_path(owner)) for owner in sorted(owners)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Incident]) -> QuerySet[Incident]:
        return queryset.filter(owner=self.value()) if self.value() else queryset


def build_search_query(text: str) -> Q:
    """Incidents that a word speaks of: number, title, fault type, machine or part, GPU serial or
    UUID."""
    condition = (
        Q(title__icontains=text) | Q(fault_type__icontains=text) | Q(root_resource__icontains=text)
    )
    number = text.removeprefix("#")
    if number.isdecimal() and len(number) < 10:
        condition |= Q(pk=int(number))
    gpus = Gpu.objects.filter(Q(serial__iexact=text) | Q(uuid__icontains=text))
    for gpu in gpus.select_related("node")[:50]:
        resource = f"node/{gpu.node.name}/gpu/{gpu.pci_address}"
        with_member = Incident.objects.filter(members__fault__resource=resource)
        condition |= Q(root_resource=resource) | Q(pk__in=with_member.values("pk"))
    return condition


class IncidentAdmin(ReadOnlyAdmin):
    """The list, the actions, and the part of the page that incidents know by themselves."""

    list_display = (
        "severity_word",
        "name",
        "where",
        "state_word",
        "since",
        "seen_by",
        "person_request",
    )
    list_display_links = ("name",)
    list_filter: ClassVar = [
        IncidentStateFilter,
        "severity",
        "component",
        MachineFilter,
        MonthFilter,
        KeptFilter,
        BeforeFilter,
    ]
    ordering = ("-id",)
    search_fields = ("title",)
    search_help_text = "Number, node, GPU serial, title or fault type"
    empty_title = "No incident"
    empty_text = (
        "Nothing has been seen that needs a response. Reports by people become incidents here too."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return add_place(Incident.objects.all())

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Incident], search_term: str
    ) -> tuple[QuerySet[Incident], bool]:
        for word in search_term.split():
            queryset = queryset.filter(build_search_query(word))
        return queryset, False

    def get_page_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return self.get_queryset(request).select_related("node", "root_fault", "duplicate_of")

    @admin.display(description="Severity", ordering="rank")
    def severity_word(self, incident: Incident) -> SafeString:
        return console.severity(incident.severity)

    @admin.display(description="Incident", ordering="pk")
    def name(self, incident: Incident) -> SafeString:
        return format_html('<span class="k-muted">#{}</span> {}', incident.pk, incident.title)

    @admin.display(description="Where", ordering="root_resource")
    def where(self, incident: Any) -> SafeString:
        return console.place(incident)

    @admin.display(description="State", ordering="state")
    def state_word(self, incident: Incident) -> SafeString:
        return console.state(incident.state)

    @admin.display(description="Since", ordering="onset_at")
    def since(self, incident: Incident) -> SafeString:
        return format_html(
            "{} <span class='k-muted'>{}</span>",
            console.when(incident.onset_at),
            console.lasted(incident),
        )

    @admin.display(description="Seen by")
    def seen_by(self, incident: Incident) -> str:
        return console.channels(incident.channels)

    @admin.display(description="Asked of a person", ordering="needs_human")
    def person_request(self, incident: Incident) -> SafeString:
        if not incident.needs_human or not incident.is_open:
            return format_html('<span class="k-muted">{}</span>', "nothing")
        return format_html(
            '<span class="k-asks">{}{}</span>', console.icon("back_hand"), incident.needs_human
        )

    def get_page_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.act_view))
        mark_told = self.admin_site.admin_view(require_POST(mark_told_view))
        return [
            path("<int:object_id>/act/", view, name="incidents_incident_act"),
            path("<int:object_id>/told/", mark_told, name="incidents_incident_told"),
        ]

    def act_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """What a person does: by `incidents.services.act`, which writes the timeline; a refusal is
        shown with why."""
        if not request.user.has_perm("incidents.act_on_incident"):
            raise PermissionDenied
        incident = self.find(request, str(object_id))
        act = next((act for act in _OFFERED if act.value == request.POST.get("trigger")), None)
        if incident is None or act is None:
            return self.render_missing(request, str(object_id))
        form = _make_form(act, incident, edit.filter_members(incident.pk), sent=request.POST)
        if form.is_valid():
            done = carry_out(incident, act, form, request)
            if not isinstance(done, services.Refused):
                messages.success(request, done.text)
                return HttpResponseRedirect(
                    reverse("admin:incidents_incident_change", args=[done.incident])
                )
            form.add_error(None, done.reason)
        return self.render_page(
            request, str(object_id), status=409, forms=act_forms(incident, form, act)
        )

    def get_page_context(self, request: HttpRequest, row: Incident) -> dict[str, Any]:
        can_act = request.user.has_perm("incidents.act_on_incident")
        forms = act_forms(row) if can_act else []
        sections = _list_sections(row)
        act_address = reverse("admin:incidents_incident_act", args=[row.pk])
        history = _get_history_context(row, request.GET.get("before", ""))
        return {
            "title": f"Incident {row.pk}",
            **_get_members_context(row),
            **_get_notifications_context(row),
            **history,
            "can_act": can_act,
            "forms": forms,
            "sections": sections,
            "act_address": act_address,
        }


def _get_members_context(incident: Incident) -> dict[str, Any]:
    members = edit.filter_members(incident.pk)
    shown = members.prefetch_related("fault__evidence").order_by("role", "joined_at", "pk")
    return {"members": shown[:MEMBERS_SHOWN], "member_count": members.count()}


def _get_history_context(incident: Incident, before: str) -> dict[str, Any]:
    """The newest entries, or those that came before the one of this number."""
    entries = incident.timeline.order_by("-id")
    if before.isdecimal():
        entries = entries.filter(pk__lt=int(before))
    shown = list(entries[: ENTRIES_SHOWN + 1])
    timeline, is_cut = shown[:ENTRIES_SHOWN], len(shown) > ENTRIES_SHOWN
    earlier = timeline[-1].pk if is_cut else None
    unread = unread_lines.get_sightings_beside(incident, timezone.now())
    return {
        "timeline": timeline,
        "earlier": earlier,
        "reports": incident.reports.order_by("id"),
        "unread": unread,
        "duplicates": incident.duplicates.order_by("id"),
    }


def _get_notifications_context(incident: Incident) -> dict[str, Any]:
    """The message that opened the thread and what went wrong; of the other replies, how many."""
    notifications = list(incident.notifications.order_by("sequence"))
    shown = []
    reply_states = []
    for message in notifications:
        if not message.sequence or message.state in TROUBLED:
            shown.append(message)
        if message.sequence:
            reply_states.append(message.state)
    sent = sum(state == SendState.SENT for state in reply_states)
    waiting = sum(state in WAITING for state in reply_states)
    return {"notifications": shown, "replies_sent": sent, "replies_waiting": waiting}


def _list_sections(incident: Incident) -> list[Section]:
    account = explain.build_account(incident.pk)
    return account.list_sections() if account is not None else []


def act_forms(
    incident: Incident,
    bound: WordForm | None = None,
    tried: IncidentAction | EditAction | None = None,
) -> list[tuple[IncidentAction | EditAction, WordForm, bool]]:
    """What may be done now, each with its form, and whether it stands open; a refused one stays
    with its text."""
    members = list(edit.filter_members(incident.pk)) if incident.is_open else []
    offered: list[IncidentAction | EditAction] = [
        *list_acts(State(incident.state)),
        *list_moves(incident, len(members)),
    ]
    if tried is not None and tried not in offered:
        offered.append(tried)
    forms: list[tuple[IncidentAction | EditAction, WordForm, bool]] = []
    for act in offered:
        if bound is not None and act is tried:
            forms.append((act, bound, True))
        else:
            forms.append((act, _make_form(act, incident, members), False))
    return forms


def _make_form(
    act: IncidentAction | EditAction,
    incident: Incident,
    members: Sequence[IncidentFault],
    *,
    sent: Any = None,
) -> WordForm:
    if isinstance(act, EditAction):
        return act.form(sent, incident=incident, members=members, prefix=act.value)
    return act.form(sent, incident=incident, prefix=act.value)


def carry_out(
    incident: Incident, act: IncidentAction | EditAction, form: WordForm, request: HttpRequest
) -> services.Rearranged | services.Refused:
    """Where to look now and what to say there, or why it was refused."""
    actor = request.user.get_username()
    if isinstance(act, EditAction):
        return act.carry_out(form, actor, timezone.now())
    note = form.cleaned_data["note"]
    now = timezone.now()
    outcome = services.act(
        incident.pk, act.trigger, actor=actor, note=note, now=now, **form.get_changes()
    )
    if isinstance(outcome, services.Refused):
        return outcome
    text = f"{act.label}: written to the timeline of incident {incident.pk}. {outcome.text}".strip()
    return services.Rearranged(incident.pk, text)
