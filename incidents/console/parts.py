"""The page of parts: which one was in which slot, from when to when, and why it came and went."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from incidents.console.pages import ReadOnlyAdmin
from incidents.inventory import graphs
from incidents.models import InService, Nic
from incidents.templatetags import console

_SHOWN = 100


class InServiceAdmin(ReadOnlyAdmin):
    list_display = ("serial_number", "part", "where", "since", "until", "why")
    list_display_links = None
    list_filter: ClassVar = ["part", ("to_at", admin.EmptyFieldListFilter)]
    search_fields = ("serial", "uuid", "slot")
    search_help_text = "Serial, UUID, MAC address or slot"
    ordering = ("-from_at", "-id")
    page_template = "incidents/part.html"
    empty_title = "No part is known by its serial"
    empty_text = "Polls and `kintsugi inventory discover` learn serials from the machines."

    def get_page_context(self, request: HttpRequest, row: InService) -> dict[str, Any]:
        same_kind = InService.objects.filter(part=row.part)
        others_in_slot = same_kind.filter(slot=row.slot).exclude(serial=row.serial)
        return {
            "title": f"{row.part} {row.serial}",
            "stays": same_kind.filter(serial=row.serial),
            "others": others_in_slot[:_SHOWN],
        }

    @admin.display(description="Serial", ordering="serial")
    def serial_number(self, row: InService) -> SafeString:
        return format_html('<a class="k-code" href="{}/change/">{}</a>', row.pk, row.serial)

    @admin.display(description="Slot", ordering="slot")
    def where(self, row: InService) -> SafeString:
        return console.where(row.slot)

    @admin.display(description="Since", ordering="from_at")
    def since(self, row: InService) -> SafeString:
        return console.when(row.from_at)

    @admin.display(description="Until", ordering="to_at")
    def until(self, row: InService) -> SafeString | str:
        return console.when(row.to_at) if row.to_at is not None else "in service"

    @admin.display(description="Why")
    def why(self, row: InService) -> str:
        return row.went or row.came


def get_history(owner: str) -> QuerySet[InService]:
    """Parts that left this machine, the latest first: those in service stand beside their slots."""
    return InService.objects.filter(owner=owner, to_at__isnull=False).order_by("-to_at")[:_SHOWN]


def list_nics(node: str, rows: QuerySet[Nic]) -> list[dict[str, Any]]:
    """A node's NICs, each with the far end of its cable."""
    wired = graphs.get_current()
    return [
        {"nic": row, "peer": wired.find_peer(row.resource) or ""}
        for row in rows.select_related("node")
    ]
