"""Pages of what stands aside: hot spares, and machines that are lemons or set aside as such."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from incidents.console.forms_vendor import WhyForm
from incidents.console.pages import ReadOnlyAdmin
from incidents.console.vendor import MAY
from incidents.models import Quarantine, Spare
from incidents.reserve import lemons
from incidents.templatetags import console
from incidents.vocabulary.changes import Refused

_ICONS = {
    Spare.State.READY: "check_circle",
    Spare.State.ENTERING: "login",
    Spare.State.SERVING: "play_circle",
    Spare.State.LEAVING: "logout",
}
_MEANINGS = {
    Spare.State.READY: (
        "It stands aside, and the next node of its partitions that goes out may have it."
    ),
    Spare.State.ENTERING: "It is being put into the partition.",
    Spare.State.SERVING: "It serves in place of the node that it stands in for.",
    Spare.State.LEAVING: "It takes no new jobs and goes back as soon as those on it have ended.",
}


class SpareAdmin(ReadOnlyAdmin):
    list_display = ("name", "state_badge", "for_whom", "where", "kept_free_by", "since")
    list_display_links = None
    list_filter: ClassVar = ["state"]
    list_select_related = ("node", "stands_for")
    search_fields = ("node__name", "stands_for__name")
    search_help_text = "Node"
    change_list_template = "incidents/spare_list.html"
    empty_title = "No hot spare"
    empty_text = "`kintsugi spare add NODE --partition NAME` puts a node into the pool."

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        meanings = [(state.value, meaning) for state, meaning in _MEANINGS.items()]
        return super().changelist_view(request, {**(extra_context or {}), "meanings": meanings})

    @admin.display(description="Spare", ordering="node__name")
    def name(self, row: Spare) -> SafeString:
        return console.where(row.node.resource)

    @admin.display(description="State", ordering="state")
    def state_badge(self, row: Spare) -> SafeString:
        symbol = console.icon(_ICONS[Spare.State(row.state)])
        return format_html('<span class="k-badge">{}{}</span>', symbol, row.state)

    @admin.display(description="Stands in for")
    def for_whom(self, row: Spare) -> SafeString:
        if row.stands_for is None:
            return format_html('<span class="k-muted">{}</span>', "nobody")
        return console.where(row.stands_for.resource)

    @admin.display(description="Partitions")
    def where(self, row: Spare) -> str:
        return ", ".join(row.partitions)

    @admin.display(description="Kept free by")
    def kept_free_by(self, row: Spare) -> str:
        return (
            f"reservation {row.reservation}" if row.reservation else "staying out of its partitions"
        )

    @admin.display(description="Since", ordering="since_at")
    def since(self, row: Spare) -> SafeString:
        lasted = console.until(row.since_at, timezone.now())
        return format_html(
            "{}<br><span class='k-muted k-small'>for {}</span>", console.when(row.since_at), lasted
        )


class QuarantineAdmin(ReadOnlyAdmin):
    """Above what is set aside stand the lemons of now, whether or not anything was done about
    them."""

    list_display = ("name", "why", "began", "ended")
    list_display_links = ("why",)
    list_filter: ClassVar = [("ended_at", admin.EmptyFieldListFilter)]
    list_select_related = ("node",)
    search_fields = ("node__name", "reason")
    search_help_text = "Node or reason"
    change_list_template = "incidents/lemon_list.html"
    page_template = "incidents/quarantine.html"
    empty_title = "No machine is set aside"
    empty_text = "The runbook quarantine_lemon sets machines aside that break again and again."

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        in_force = Quarantine.objects.filter(ended_at=None)
        quarantine_by_node = dict(in_force.values_list("node__name", "pk"))
        rows = []
        for lemon in lemons.list_lemons(timezone.now()):
            node = lemon.resource.split("/")[1]
            rows.append((lemon, quarantine_by_node.get(node)))
        context = {"lemons": rows, "within": lemons.WITHIN.days, "title": "Lemons"}
        return super().changelist_view(request, {**(extra_context or {}), **context})

    def get_page_queryset(self, request: HttpRequest) -> QuerySet[Quarantine]:
        return Quarantine.objects.select_related("node", "incident")

    def get_page_context(self, request: HttpRequest, row: Quarantine) -> dict[str, Any]:
        may = request.user.has_perm(MAY) and row.ended_at is None
        return {"title": f"Quarantine of {row.node.name}", "form": WhyForm() if may else None}

    def get_page_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.end_view))
        return [path("<int:object_id>/end/", view, name="incidents_quarantine_end")]

    def end_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        if not request.user.has_perm(MAY):
            raise PermissionDenied
        form = WhyForm(request.POST)
        if form.is_valid():
            actor = request.user.get_username()
            why = form.cleaned_data["note"]
            outcome = lemons.release(object_id, actor=actor, why=why, now=timezone.now())
            if not isinstance(outcome, Refused):
                messages.success(request, outcome)
                return HttpResponseRedirect(reverse("admin:incidents_quarantine_changelist"))
            form.add_error(None, outcome.reason)
        return self.render_page(request, str(object_id), status=409, form=form)

    @admin.display(description="Machine", ordering="node__name")
    def name(self, row: Quarantine) -> SafeString:
        return console.where(row.node.resource)

    @admin.display(description="Why")
    def why(self, row: Quarantine) -> str:
        return row.reason

    @admin.display(description="Set aside", ordering="began_at")
    def began(self, row: Quarantine) -> SafeString:
        return console.when(row.began_at)

    @admin.display(description="Ended", ordering="ended_at")
    def ended(self, row: Quarantine) -> SafeString:
        if row.ended_at is None:
            return format_html(
                '<span class="k-asks">{}{}</span>', console.icon("back_hand"), "a person decides"
            )
        return format_html("{} by {}", console.when(row.ended_at), row.ended_by)
