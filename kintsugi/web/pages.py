"""What every page of the console is rendered with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.template.response import TemplateResponse


def render_page(
    request: HttpRequest,
    template: str,
    title: str,
    context: Mapping[str, Any],
    *,
    status: int = 200,
) -> TemplateResponse:
    """Around the page's own context comes the site's: side bar, banners, permissions."""
    full_context = {**admin.site.each_context(request), "title": title, **context}
    return TemplateResponse(request, template, full_context, status=status)
