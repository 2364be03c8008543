"""Pages of windows: those in force, planned and ended; a new one with its preview; a window and
what it kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from incidents.console.forms_silence import (
    ChangeForm,
    WindowForm,
    get_initial_of_incident,
    get_initial_of_window,
)
from incidents.console.pages import ReadOnlyAdmin
from incidents.maintenance import active_windows, planning
from incidents.maintenance.planning import NotPlanned, PlannedWindow, Preview
from incidents.models import Incident, Silence
from incidents.templatetags import console
from incidents.vocabulary.changes import Refused

_MAY = "incidents.silence"
_SHOWN = 100


class KindFilter(admin.SimpleListFilter):
    """Shelves stand apart: they are seen when they are asked for."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(kind.value, str(kind.label).lower()) for kind in Silence.Kind]

    def choices(self, changelist: Any) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield {**first, "display": "silences and maintenance"}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Silence]) -> QuerySet[Silence]:
        if self.value():
            return queryset.filter(kind=self.value())
        return queryset.exclude(kind=Silence.Kind.SHELF)


class KeptFilter(admin.SimpleListFilter):
    """Of incidents: whether people are told of them."""

    title = "told"
    parameter_name = "told"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("no", "kept from people"), ("shelved", "shelved"), ("yes", "told")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Incident]) -> QuerySet[Incident]:
        choices = {
            "no": Q(silence__isnull=False),
            "shelved": Q(silence__kind=Silence.Kind.SHELF),
            "yes": Q(silence__isnull=True),
        }
        chosen = choices.get(self.value() or "")
        return queryset.filter(chosen) if chosen is not None else queryset


class StandingFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("in_force", "in force"), ("planned", "planned"), ("ended", "ended")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Silence]) -> QuerySet[Silence]:
        now = timezone.now()
        over = Q(ended_at__isnull=False) | Q(ends_at__lte=now)
        in_force = Q(starts_at__lte=now) & ~over
        planned = Q(starts_at__gt=now) & ~over
        choices = {"in_force": in_force, "planned": planned, "ended": over}
        chosen = choices.get(self.value() or "")
        return queryset.filter(chosen) if chosen is not None else queryset


class SilenceAdmin(ReadOnlyAdmin):
    """The list, the page of one window, and what people do with windows, by
    `incidents.maintenance.planning`."""

    list_display = ("what", "state_badge", "begins", "ends", "review", "made_by", "why")
    list_display_links = ("what",)
    list_filter: ClassVar = [KindFilter, StandingFilter]
    search_fields = ("resource", "fault_type", "reason", "author")
    search_help_text = "Resource, fault type, reason or author"
    change_list_template = "incidents/silence_list.html"
    page_template = "incidents/silence.html"
    empty_title = "Nothing is silenced"
    empty_text = (
        "Every fault is told to people. Maintenance reservations of Slurm become windows by"
        " themselves."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Silence]:
        return Silence.objects.order_by(F("ended_at").desc(nulls_first=True), "-starts_at")

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        may = {
            "may_silence": request.user.has_perm(_MAY),
            "new_address": reverse("admin:incidents_silence_new"),
        }
        return super().changelist_view(request, {**(extra_context or {}), **may})

    @admin.display(description="What")
    def what(self, row: Silence) -> str:
        what = active_windows.make_window(row).what
        return f"#{row.pk} {what[:1].upper()}{what[1:]}"

    @admin.display(description="State")
    def state_badge(self, row: Silence) -> SafeString:
        word = get_state(row)
        return format_html(
            '<span class="k-badge{}">{}</span>',
            " k-fault-active" if word == "in force" else "",
            word,
        )

    @admin.display(description="From", ordering="starts_at")
    def begins(self, row: Silence) -> SafeString:
        return console.when(row.starts_at)

    @admin.display(description="Until", ordering="ends_at")
    def ends(self, row: Silence) -> SafeString:
        shown = console.when(row.ended_at or row.ends_at)
        if row.ends_at is None or get_state(row) != "in force":
            return shown
        return format_html(
            "{}<br><span class='k-muted k-small'>in {}</span>",
            shown,
            console.until(timezone.now(), row.ends_at),
        )

    @admin.display(description="Review", ordering="review_at")
    def review(self, row: Silence) -> SafeString:
        return console.when(row.review_at)

    @admin.display(description="By", ordering="author")
    def made_by(self, row: Silence) -> str:
        return row.author

    @admin.display(description="Why")
    def why(self, row: Silence) -> str:
        return row.reason

    def get_page_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        end_view = wrap(require_POST(self.end_view))
        times_view = wrap(require_POST(self.times_view))
        return [
            path("new/", wrap(self.new_view), name="incidents_silence_new"),
            path("<int:object_id>/end/", end_view, name="incidents_silence_end"),
            path("<int:object_id>/times/", times_view, name="incidents_silence_times"),
        ]

    def get_page_context(self, request: HttpRequest, row: Silence) -> dict[str, Any]:
        may_end = request.user.has_perm(_MAY) and row.ended_at is None
        may_change = may_end and not row.origin
        window = active_windows.make_window(row)
        state = get_state(row)
        incidents = row.incidents.order_by("-onset_at")[:_SHOWN]
        history = planning.get_history(row.pk)[:_SHOWN]
        form = ChangeForm(initial=get_initial_of_window(row)) if may_change else None
        return {
            "title": f"Window {row.pk}",
            "what": window.what,
            "state": state,
            "kept": incidents,
            "history": history,
            "may_end": may_end,
            "form": form,
        }

    def new_view(self, request: HttpRequest) -> HttpResponse:
        """A form, what it would keep when that is asked, or the window and the way to its page."""
        _check(request)
        now = timezone.now()
        form = WindowForm(request.POST or None, initial=_get_initial_values(request))
        preview = None
        if request.method == "POST" and form.is_valid():
            outcome = _plan_or_preview(request, form)
            if isinstance(outcome, PlannedWindow):
                messages.success(request, outcome.text)
                return HttpResponseRedirect(
                    reverse("admin:incidents_silence_change", args=[outcome.silence_id])
                )
            preview = outcome
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": "New silence, maintenance or shelf",
            "form": form,
            "preview": preview,
            "now": now,
        }
        return TemplateResponse(
            request, "incidents/silence_new.html", context, status=422 if form.errors else 200
        )

    def end_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        _check(request)
        actor = request.user.get_username()
        return self._answer(request, planning.end(object_id, actor=actor, now=timezone.now()))

    def times_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        _check(request)
        form = ChangeForm(request.POST)
        if form.is_valid():
            outcome = planning.change(
                object_id,
                **form.cleaned_data,
                actor=request.user.get_username(),
                now=timezone.now(),
            )
            if not isinstance(outcome, NotPlanned):
                return self._answer(request, outcome, object_id)
            form.refuse(outcome.problems)
        return self.render_page(request, str(object_id), status=409, form=form)

    def _answer(
        self, request: HttpRequest, outcome: PlannedWindow | Refused, object_id: int = 0
    ) -> HttpResponse:
        if isinstance(outcome, Refused):
            messages.error(request, outcome.reason)
            address = reverse("admin:incidents_silence_changelist")
        else:
            messages.success(request, outcome.text)
            address = reverse("admin:incidents_silence_change", args=[outcome.silence_id])
        return HttpResponseRedirect(address)


def get_state(row: Silence) -> str:
    now = timezone.now()
    if row.ended_at is not None or (row.ends_at is not None and row.ends_at <= now):
        return "ended"
    return "in force" if row.starts_at <= now else "planned"


def _check(request: HttpRequest) -> None:
    if not request.user.has_perm(_MAY):
        raise PermissionDenied


def _get_initial_values(request: HttpRequest) -> dict[str, str]:
    """From an incident's page: a silence of that incident."""
    number = request.GET.get("incident", "")
    if not number.isdecimal() or len(number) >= 10:
        return {}
    incident = Incident.objects.filter(pk=int(number)).first()
    return get_initial_of_incident(incident) if incident is not None else {}


def _plan_or_preview(request: HttpRequest, form: WindowForm) -> PlannedWindow | Preview | None:
    """None: refused, and the form says why. A preview where that was asked for."""
    now = timezone.now()
    draft = form.build_draft(now)
    if "preview" in request.POST:
        problems = planning.list_refusals(draft, now)
        form.refuse(tuple(problems))
        return None if problems else planning.preview(draft, now)
    outcome = planning.plan(draft, author=request.user.get_username(), now=now)
    if isinstance(outcome, PlannedWindow):
        return outcome
    form.refuse(outcome.problems)
    return None
