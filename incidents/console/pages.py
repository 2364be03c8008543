"""What every page of the console is built on: a list, a page to read, and no way to write past the
services."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from unfold.admin import ModelAdmin

from incidents.console.keyset import BoundedPaginator


class Crumb:
    """A row in the page's path at the top: the theme shows it with a capital, so it begins with a
    word, not a name."""

    def __init__(self, row: Model, text: str) -> None:
        self._meta, self.pk, self.text = row._meta, row.pk, text

    def __str__(self) -> str:
        return self.text


class ReadOnlyAdmin(ModelAdmin):  # type: ignore[misc]
    """A list and a page per row. Nobody adds, changes or deletes here, not even a superuser.

    A subclass names its `page_template` and gives `page_context`; `page_queryset` fetches what one
    page needs. One that names none has a list alone.
    """

    page_template = ""
    actions = None
    list_filter_sheet = False
    list_per_page = 50
    paginator = BoundedPaginator
    show_full_result_count = False
    empty_title = "Nothing here yet"
    empty_text = "Rows appear by themselves as soon as there is something to show."
    change_list_template = "incidents/list.html"

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        """The list and the page alone: the addresses that Django gives to adding and deleting do
        not exist."""
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        wrap = self.admin_site.admin_view
        list_url = path("", wrap(self.changelist_view), name=f"{name}_changelist")
        if not self.page_template:
            return [list_url, *self.get_page_urls()]
        page_url = path("<path:object_id>/change/", wrap(self.page_view), name=f"{name}_change")
        return [list_url, *self.get_page_urls(), page_url]

    def get_page_urls(self) -> list[URLPattern]:
        """Further addresses under a row's page."""
        return []

    def get_page_queryset(self, request: HttpRequest) -> Any:
        return self.model._default_manager.all()

    def get_page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return {}

    def page_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        return self.render_page(request, object_id)

    def find(self, request: HttpRequest, object_id: str) -> Any:
        """The row, or None. Raises PermissionDenied for who may not see it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        key = unquote(object_id)
        if not key.isdecimal():
            return None
        return self.get_page_queryset(request).filter(pk=int(key)).first()

    def render_missing(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Back to the home page with a word about what does not exist."""
        answer: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        return answer

    def render_page(
        self, request: HttpRequest, object_id: str, *, status: int = 200, **extra: object
    ) -> HttpResponse:
        row = self.find(request, object_id)
        if row is None:
            return self.render_missing(request, object_id)
        context: dict[str, Any] = self.admin_site.each_context(request)
        context |= {"opts": self.opts, "row": row, "now": timezone.now()}
        context["title"] = f"{self.opts.verbose_name} {row}"
        context |= self.get_page_context(request, row)
        context |= extra
        context["original"] = Crumb(row, context["title"])
        request.current_app = self.admin_site.name
        return TemplateResponse(request, self.page_template, context, status=status)
