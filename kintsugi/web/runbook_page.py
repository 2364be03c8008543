"""The page of one runbook: what it is for, its place on the ladder, its steps in words, its limits,
its last runs."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from kintsugi.web.modes import MODE_MEANINGS
from runbooks import services
from runbooks.library import library
from runbooks.models import Run, RunbookMode
from runbooks.plan import describe

_LAST = 10


def runbook(request: HttpRequest, name: str) -> HttpResponse:
    if not request.user.has_perm("runbooks.view_runbookmode"):
        raise PermissionDenied
    book = library.load().get(name)
    if book is None:
        raise Http404(f"There is no runbook {name}.")
    context = {
        **admin.site.each_context(request),
        "title": book.title,
        "now": timezone.now(),
        "book": book,
        "mode": str(services.get_mode(name)),
        "meaning": MODE_MEANINGS[services.get_mode(name)],
        "set": RunbookMode.objects.filter(runbook=name).first(),
        "purposes": [describe.list_conditions(entry) for entry in book.purposes],
        "place": describe.format_place(book),
        "steps": [describe.describe_step(planned) for planned in book.steps],
        "limits": describe.list_limits(book.limits),
        "runs": _last_runs(name),
        "older": _older(book),
    }
    return TemplateResponse(request, "kintsugi/runbook.html", context)


def _last_runs(name: str) -> list[Run]:
    return list(Run.objects.filter(runbook=name).select_related("node", "incident")[:_LAST])


def _older(book: library.Runbook) -> list[dict[str, Any]]:
    """Runs that are under way by another version of it: each keeps the one that it began with."""
    rows = Run.objects.unfinished().filter(runbook=book.name).exclude(version=book.version)
    return [
        {"run": run, "version": run.version or "an older one"}
        for run in rows.select_related("node", "incident")
    ]
