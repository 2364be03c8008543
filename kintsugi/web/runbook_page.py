"""The page of one runbook: what it is for, its place on the ladder, its steps in words, its limits,
its last runs."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone

from kintsugi.web.modes import MODE_MEANINGS
from kintsugi.web.pages import render_page
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
        "now": timezone.now(),
        **_get_mode(name),
        **_describe_runbook(book),
        "runs": _list_last_runs(name),
        "older": _list_runs_of_older_versions(book),
    }
    return render_page(request, "kintsugi/runbook.html", book.title, context)


def _get_mode(name: str) -> dict[str, Any]:
    mode = services.get_mode(name)
    return {
        "mode": str(mode),
        "meaning": MODE_MEANINGS[mode],
        "set": RunbookMode.objects.filter(runbook=name).first(),
    }


def _describe_runbook(book: library.Runbook) -> dict[str, Any]:
    purposes = [describe.list_conditions(purpose) for purpose in book.purposes]
    steps = [describe.describe_step(step) for step in book.steps]
    return {
        "book": book,
        "purposes": purposes,
        "place": describe.format_place(book),
        "steps": steps,
        "limits": describe.list_limits(book.limits),
    }


def _list_last_runs(name: str) -> list[Run]:
    return list(Run.objects.filter(runbook=name).select_related("node", "incident")[:_LAST])


def _list_runs_of_older_versions(book: library.Runbook) -> list[dict[str, Any]]:
    """Runs that are under way by another version of it: each keeps the one that it began with."""
    unfinished = Run.objects.unfinished().filter(runbook=book.name)
    runs = unfinished.exclude(version=book.version).select_related("node", "incident")
    return [{"run": run, "version": run.version or "an older one"} for run in runs]
