"""The audit log's pages: lists and shows; nobody changes anything here."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from incidents.console.pages import ReadOnlyAdmin
from incidents.templatetags import console
from runbooks.models import AuditEntry

_SHOWN = 100


@admin.register(AuditEntry)
class AuditAdmin(ReadOnlyAdmin):
    list_display = ("when", "actor", "what", "place", "of_run", "words")
    list_display_links = ("when",)
    list_filter: ClassVar = ["act", "phase", "actor"]
    search_fields = ("node", "actor", "act", "text")
    search_help_text = "Node, person, act or text"
    page_template = "runbooks/audit_entry.html"
    empty_title = "No act yet"
    empty_text = (
        "Each act on a node, and each thing that people make Kintsugi do, leaves a line here."
    )

    def get_page_context(self, request: HttpRequest, row: AuditEntry) -> dict[str, Any]:
        others = (
            AuditEntry.objects.filter(run=row.run).exclude(pk=row.pk) if row.run is not None else ()
        )
        return {"title": f"Entry {row.pk}", "beside": others[:_SHOWN]}

    @admin.display(description="When", ordering="at")
    def when(self, entry: AuditEntry) -> SafeString:
        return console.when(entry.at)

    @admin.display(description="Act", ordering="act")
    def what(self, entry: AuditEntry) -> str:
        return f"{entry.act.replace('_', ' ')}, {entry.phase}"

    @admin.display(description="Node", ordering="node")
    def place(self, entry: AuditEntry) -> str:
        return entry.node

    @admin.display(description="Run", ordering="run")
    def of_run(self, entry: AuditEntry) -> SafeString | str:
        if entry.run is None:
            return ""
        return format_html(
            '<a href="{}">#{}</a>',
            reverse("admin:runbooks_run_change", args=[entry.run]),
            entry.run,
        )

    @admin.display(description="What")
    def words(self, entry: AuditEntry) -> str:
        return console.prose(entry.text)[:160]
