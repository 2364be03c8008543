"""Pages of nodes' tokens: till when they are valid, where they were last used; on-call revokes
them. A token is created by command alone: no page shows one."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from incidents.console.pages import ReadOnlyAdmin
from incidents.inventory import node_tokens as stored
from incidents.models import NodeToken
from incidents.templatetags import console
from incidents.vocabulary.changes import Refused
from kintsugi.clients import node_tokens

MAY = "runbooks.control_run"


class NodeTokenPage(ReadOnlyAdmin):
    list_display = ("name", "number", "since", "ends", "used", "from_where")
    list_display_links = ("number",)
    list_filter: ClassVar = [("revoked_at", admin.EmptyFieldListFilter)]
    list_select_related = ("node",)
    search_fields = ("node__name", "created_by")
    search_help_text = "Node or person"
    page_template = "kintsugi/node_token.html"
    empty_title = "No node has a token"
    empty_text = "`kintsugi token create NODES` creates them, for kintsugi-check --post."

    def get_page_queryset(self, request: HttpRequest) -> QuerySet[NodeToken]:
        return NodeToken.objects.select_related("node")

    def get_page_context(self, request: HttpRequest, row: NodeToken) -> dict[str, Any]:
        problem = stored.find_problem(row, timezone.now())
        may = not problem and request.user.has_perm(MAY)
        title = f"Token {row.pk} of {row.node.name}"
        return {"title": title, "problem": problem, "may": may}

    def get_page_urls(self) -> list[URLPattern]:
        revoke = self.admin_site.admin_view(require_POST(self.revoke_view))
        return [path("<int:object_id>/revoke/", revoke, name="incidents_nodetoken_revoke")]

    def revoke_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        if not request.user.has_perm(MAY):
            raise PermissionDenied
        actor = request.user.get_username()
        answer = node_tokens.revoke(object_id, actor=actor, now=timezone.now())
        if isinstance(answer, Refused):
            messages.error(request, answer.reason)
        else:
            messages.success(request, answer)
        return HttpResponseRedirect(reverse("admin:incidents_nodetoken_changelist"))

    @admin.display(description="Node", ordering="node__name")
    def name(self, row: NodeToken) -> SafeString:
        return console.where(row.node.resource)

    @admin.display(description="Token", ordering="pk")
    def number(self, row: NodeToken) -> str:
        return str(row.pk)

    @admin.display(description="Since", ordering="created_at")
    def since(self, row: NodeToken) -> SafeString:
        return console.when(row.created_at)

    @admin.display(description="Ends", ordering="expires_at")
    def ends(self, row: NodeToken) -> SafeString | str:
        return "revoked" if row.revoked_at is not None else console.when(row.expires_at)

    @admin.display(description="Last used", ordering="last_used_at")
    def used(self, row: NodeToken) -> SafeString | str:
        return console.when(row.last_used_at) if row.last_used_at is not None else "never"

    @admin.display(description="From")
    def from_where(self, row: NodeToken) -> str:
        return row.last_address or "-"
