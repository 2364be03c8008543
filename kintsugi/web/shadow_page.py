"""The page that convinces a site to arm, or not to: what dry runs say of the faults that they met,
in three numbers with exact bounds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from incidents.text import wording
from kintsugi.web.pages import render_page
from runbooks import services
from runbooks.library import library

_PER_PAGE = 50
_PERIODS = (7, 30, 90)
_DEFAULT_PERIOD = 30
_VIEWS = {
    "well": "Nodes that were well",
    "broken": "Broken nodes",
    "unknown": "Not known",
    "left_out": "Left out",
}


@dataclass(frozen=True)
class RunbookReport:
    """One runbook's numbers, in words."""

    title: str
    sentences: tuple[str, ...]


def report(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm("runbooks.view_run"):
        raise PermissionDenied
    periods = [str(days) for days in _PERIODS]
    days = _read_parameter(request, "days", periods, default=str(_DEFAULT_PERIOD))
    view = _read_parameter(request, "view", list(_VIEWS), default="well")
    now = timezone.now()
    since = now - timedelta(days=int(days))
    episodes = services.load_episodes(since, now)
    chosen = [episode for episode in reversed(episodes) if episode.verdict == view]
    page = Paginator(chosen, _PER_PAGE).get_page(request.GET.get("page"))
    drains = services.list_external_drains(since, now, episodes)
    window = wording.format_duration(settings.KINTSUGI["KINTSUGI_SHADOW_WINDOW"])
    reports = _describe_runbooks(episodes)
    views = _VIEWS.items()
    context: dict[str, Any] = {
        "reports": reports,
        "drains": drains,
        "episodes": page,
        "days": days,
        "periods": _PERIODS,
        "view": view,
        "views": views,
        "window": window,
    }
    return render_page(request, "kintsugi/shadow.html", "Dry-run report", context)


def _read_parameter(request: HttpRequest, name: str, values: list[str], *, default: str) -> str:
    value = request.GET.get(name, default)
    return value if value in values else default


def _describe_runbooks(episodes: list[services.Episode]) -> list[RunbookReport]:
    books = library.load()
    reports = []
    for name, found in services.group_by_runbook(episodes).items():
        title = books[name].title if name in books else name
        sentences = services.describe_report(services.compute_report(found))
        reports.append(RunbookReport(title, tuple(sentences)))
    return reports
