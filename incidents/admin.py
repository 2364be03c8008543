"""Pages of what is known: faults, machines, messages, quarantined events. Incidents have a file of
their own."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Count, IntegerField, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Concat
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from incidents.console.incident import SEVERITY_RANK, add_place
from incidents.console.keyset import BeforeFilter
from incidents.console.pages import ReadOnlyAdmin
from incidents.console.parts import InServiceAdmin, get_history, list_nics
from incidents.console.silences import SilenceAdmin
from incidents.models import (
    Fault,
    Incident,
    IncidentFault,
    InService,
    Node,
    Notification,
    NotificationChannel,
    QuarantinedEvent,
    Silence,
    Switch,
)
from incidents.templatetags import console
from incidents.vocabulary.lifecycle import CLOSED, OPEN


class FaultBeforeFilter(BeforeFilter):
    """Active faults come first in their list."""

    def build_following_filter(self, number: int) -> Q:
        older = Q(pk__lt=number)
        if Fault.objects.active().filter(pk=number).exists():
            return Q(is_active=False) | older
        return Q(is_active=False) & older


class ChannelFilter(admin.SimpleListFilter):
    """By the channels that there are; not read from all messages that there have been."""

    title = "channel"
    parameter_name = "channel"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = NotificationChannel.objects.order_by("name").values_list("name", flat=True)
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(channel=self.value()) if self.value() else queryset


@admin.register(Fault)
class FaultAdmin(ReadOnlyAdmin):
    list_display = ("severity_word", "type", "where", "activity", "times", "raised", "last_seen")
    list_display_links = None
    list_filter: ClassVar = ["is_active", "severity", "component", "clears", FaultBeforeFilter]
    search_fields = ("fault_type", "resource")
    search_help_text = "Fault type or resource"
    ordering = ("-is_active", "-id")
    page_template = "incidents/fault.html"
    empty_title = "No fault"
    empty_text = (
        "No detector and no log line has told of one. `kintsugi receive` takes syslog, the sweep"
        " polls nodes."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Fault]:
        return Fault.objects.annotate(rank=SEVERITY_RANK)

    def get_page_queryset(self, request: HttpRequest) -> QuerySet[Fault]:
        return Fault.objects.select_related("membership__incident").prefetch_related("evidence")

    def get_page_context(self, request: HttpRequest, row: Fault) -> dict[str, Any]:
        return {"title": f"Fault {row.pk}", "membership": getattr(row, "membership", None)}

    @admin.display(description="Severity", ordering="rank")
    def severity_word(self, fault: Fault) -> SafeString:
        return console.severity(fault.severity)

    @admin.display(description="Fault type", ordering="fault_type")
    def type(self, fault: Fault) -> SafeString:
        return format_html('<a class="k-code" href="{}/change/">{}</a>', fault.pk, fault.fault_type)

    @admin.display(description="Where", ordering="resource")
    def where(self, fault: Fault) -> SafeString:
        return console.where(fault.resource)

    @admin.display(description="State", ordering="is_active")
    def activity(self, fault: Fault) -> SafeString:
        return console.activity(fault)

    @admin.display(description="Times seen", ordering="count")
    def times(self, fault: Fault) -> str:
        return f"{fault.count:,}"

    @admin.display(description="Raised", ordering="raised_at")
    def raised(self, fault: Fault) -> SafeString:
        return console.when(fault.raised_at)

    @admin.display(description="Last seen", ordering="last_seen_at")
    def last_seen(self, fault: Fault) -> SafeString:
        return console.when(fault.last_seen_at)


PAST_SHOWN = 20


class OpenIncidentsFilter(admin.SimpleListFilter):
    title = "open incidents"
    parameter_name = "incidents"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "with an open incident"), ("none", "without one")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "open":
            return queryset.filter(open_incidents__gt=0)
        return queryset.filter(open_incidents=0) if self.value() == "none" else queryset


def add_open_incidents(machines: QuerySet[Any], kind: str) -> QuerySet[Any]:
    """Each machine with how many open incidents are rooted on it, by path: switches have no foreign
    key."""
    rooted = (
        Incident.objects.open()
        .filter(owner=OuterRef("path"))
        .order_by()
        .values("owner")
        .annotate(n=Count("pk"))
        .values("n")
    )
    found: QuerySet[Any] = machines.annotate(path=Concat(Value(f"{kind}/"), "name"))
    counted: QuerySet[Any] = found.annotate(
        open_incidents=Coalesce(Subquery(rooted, output_field=IntegerField()), 0)
    )
    return counted


class MachineAdmin(ReadOnlyAdmin):
    """What nodes and switches have in common: a place, incidents and faults found by their path."""

    kind = ""
    list_display_links = ("name",)
    search_fields: tuple[str, ...] = ("name", "address")
    empty_title = "No machine in the inventory"
    empty_text = "Import the inventory: `kintsugi inventory import FILE.toml`."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return add_open_incidents(self.model.objects.all(), self.kind)

    def get_page_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return self.get_queryset(request)

    def get_page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        incidents = add_place(Incident.objects.filter(pk__in=_list_incidents_about(row.path)))
        faults = Fault.objects.active().filter(owner=row.path).order_by("-last_seen_at")
        past_incidents = incidents.filter(state__in=CLOSED)[:PAST_SHOWN]
        parts = get_history(row.path)
        return {
            "open_incidents": incidents.filter(state__in=OPEN),
            "past_incidents": past_incidents,
            "faults": faults[:100],
            "parts": parts,
            "can_report": request.user.has_perm("incidents.add_userreport"),
        }

    @admin.display(description="Open incidents", ordering="open_incidents")
    def incidents(self, row: Any) -> SafeString:
        if not row.open_incidents:
            return format_html('<span class="k-muted">{}</span>', "none")
        return format_html(
            '<span class="k-asks">{}{}</span>', console.icon("error"), row.open_incidents
        )

    @admin.display(description="Inventory", ordering="is_provisional")
    def known(self, row: Any) -> str:
        return "provisional: only ever spoke to us" if row.is_provisional else "listed"


def _list_incidents_about(owner: str) -> list[int]:
    """Incidents rooted on this machine, or with a fault of it as a member. Two statements: an OR
    over two tables reads every incident that there has been."""
    rooted = Incident.objects.filter(owner=owner).order_by().values_list("pk", flat=True)
    members = IncidentFault.objects.filter(fault__owner=owner).order_by()
    return [*rooted, *members.values_list("incident", flat=True).distinct()]


class NodeAdmin(MachineAdmin):
    kind = "node"
    list_display = ("name", "role", "pod", "rack", "incidents", "known", "booted")
    list_filter: ClassVar = [OpenIncidentsFilter, "pod", "role", "is_provisional"]
    search_fields = ("name", "address", "gpus__serial", "gpus__uuid")
    search_help_text = "Name, address, GPU serial or UUID"

    def get_page_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_page_queryset(request).prefetch_related("gpus")

    def get_page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return {**super().get_page_context(request, row), "nics": list_nics(row.name, row.nics)}

    @admin.display(description="Last boot seen", ordering="boot_seen_at")
    def booted(self, node: Node) -> SafeString:
        return console.when(node.boot_seen_at)


@admin.register(Switch)
class SwitchAdmin(MachineAdmin):
    kind = "switch"
    list_display = ("name", "role", "pod", "rail", "incidents", "known")
    list_filter: ClassVar = [OpenIncidentsFilter, "role", "pod"]
    search_help_text = "Name or address"
    page_template = "incidents/switch.html"

    def get_page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return {**super().get_page_context(request, row), "ports": row.ports.count()}


@admin.register(Notification)
class NotificationAdmin(ReadOnlyAdmin):
    list_display = ("number", "incident", "channel", "reason", "send_state", "recorded", "todo")
    list_display_links = ("number",)
    list_filter: ClassVar = ["state", ChannelFilter, BeforeFilter]
    list_select_related = ("incident",)
    ordering = ("-id",)
    page_template = "incidents/notification.html"
    empty_title = "No message"
    empty_text = "Each incident writes its messages here before they are sent."

    def get_page_queryset(self, request: HttpRequest) -> QuerySet[Notification]:
        return Notification.objects.select_related("incident", "entry", "notice")

    def get_page_context(self, request: HttpRequest, row: Notification) -> dict[str, Any]:
        return {"title": f"Message {row.pk}", "todo": todo(row)}

    @admin.display(description="Message", ordering="id")
    def number(self, row: Notification) -> str:
        return f"#{row.pk}"

    @admin.display(description="State", ordering="state")
    def send_state(self, row: Notification) -> SafeString:
        return console.send_state(row.state)

    @admin.display(description="Written", ordering="recorded_at")
    def recorded(self, row: Notification) -> SafeString:
        return console.when(row.recorded_at)

    @admin.display(description="What to do")
    def todo(self, row: Notification) -> str:
        return todo(row)


def todo(row: Notification) -> str:
    """What a person can do about a message, in one sentence."""
    state = Notification.SendState(row.state)
    if state == Notification.SendState.FAILED:
        return f"Mend this, then it is sent by itself: {row.error or 'refused without a reason'}"
    if state == Notification.SendState.UNKNOWN:
        return "Nothing: it is looked up in the channel before it is sent again."
    if state == Notification.SendState.WAITING and row.error:
        return (
            f"Nothing: it is tried again at {timezone.localtime(row.due_at):%H:%M:%S}. Last try:"
            f" {row.error}"
        )
    return "Nothing."


@admin.register(QuarantinedEvent)
class QuarantinedEventAdmin(ReadOnlyAdmin):
    list_display = ("event", "error", "recorded")
    list_display_links = ("event",)
    search_fields = ("event_id", "error")
    ordering = ("-recorded_at",)
    page_template = "incidents/quarantined.html"
    empty_title = "No event in quarantine"
    empty_text = (
        "An event that cannot be ingested is kept here whole instead of stopping the others."
    )

    def get_page_context(self, request: HttpRequest, row: QuarantinedEvent) -> dict[str, Any]:
        return {
            "title": "Quarantined event",
            "wire": json.dumps(row.wire, indent=2, ensure_ascii=False),
        }

    @admin.display(description="Event", ordering="event_id")
    def event(self, row: QuarantinedEvent) -> str:
        return row.event_id

    @admin.display(description="Recorded", ordering="recorded_at")
    def recorded(self, row: QuarantinedEvent) -> SafeString:
        return console.when(row.recorded_at)


admin.site.register(InService, InServiceAdmin)
admin.site.register(Silence, SilenceAdmin)
