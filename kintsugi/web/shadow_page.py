"""The page that convinces a site to arm, or not to: what runs in shadow would have done beside what
people did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone

from incidents.text import wording
from runbooks import services
from runbooks.library import library
from runbooks.models import ShadowAct

_PER_PAGE = 50
_PERIODS = (7, 30, 90)
_DEFAULT_PERIOD = 30
_VIEWS = {
    "open-questions": "Differences to judge",
    "differed": "All differences",
    "agreed": "Agreed",
    "open": "Not settled yet",
}


@dataclass(frozen=True)
class AgreementRow:
    """One runbook's agreement, in words."""

    title: str
    sentence: str
    counts: services.Agreement


def ledger(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm("runbooks.view_shadowact"):
        raise PermissionDenied
    if request.method == "POST":
        return _judged(request)
    days = _chosen(request, "days", [str(days) for days in _PERIODS], str(_DEFAULT_PERIOD))
    view = _chosen(request, "view", list(_VIEWS), "open-questions")
    since = timezone.now() - timedelta(days=int(days))
    page = Paginator(_rows(view).filter(at__gte=since), _PER_PAGE).get_page(request.GET.get("page"))
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Shadow ledger",
        "agreements": [_row(one) for one in services.compute_agreement(since)],
        "acts": page,
        "days": days,
        "periods": _PERIODS,
        "view": view,
        "views": _VIEWS.items(),
        "window": wording.duration(settings.KINTSUGI["KINTSUGI_SHADOW_WINDOW"]),
        "may_judge": request.user.has_perm("runbooks.judge_shadow"),
    }
    return TemplateResponse(request, "kintsugi/shadow.html", context)


def _judged(request: HttpRequest) -> HttpResponse:
    """Two clicks: the line, and who was right. Back to where the person was."""
    if not request.user.has_perm("runbooks.judge_shadow"):
        raise PermissionDenied
    number = request.POST.get("act", "")
    refusal = "Choose a line of the ledger."
    if number.isdecimal():
        judgement, actor = request.POST.get("judgement", "?"), request.user.get_username()
        refusal = services.store_judgement(int(number), judgement, actor=actor, now=timezone.now())
    if refusal:
        messages.error(request, refusal)
    query = request.META.get("QUERY_STRING", "")
    return HttpResponseRedirect(f"{reverse('shadow')}{'?' + query if query else ''}")


def _chosen(request: HttpRequest, name: str, among: list[str], default: str) -> str:
    value = request.GET.get(name, default)
    return value if value in among else default


def _rows(view: str) -> Any:
    rows = ShadowAct.objects.select_related("node", "incident", "run", "seen")
    if view == "open-questions":
        return rows.filter(verdict=ShadowAct.Verdict.DIFFERED, judged="")
    return rows.filter(verdict=view)


def _row(one: services.Agreement) -> AgreementRow:
    book = library.load().get(one.runbook)
    title = (
        book.title if book is not None else one.runbook or "What people did and no runbook wanted"
    )
    judged = (
        f" Of {one.judged} judged differences Kintsugi was right in {one.judged_for_us}."
        if one.judged
        else ""
    )
    if not one.runbook:
        return AgreementRow(title, f"{_acts(one.settled)}.{judged}", one)
    if one.share is None:
        return AgreementRow(title, f"Nothing has settled yet; not settled: {_acts(one.open)}.", one)
    value, low, high = one.share
    sentence = (
        f"{one.agreed} of {_acts(one.settled)} agreed: {value:.0%} (95 % interval {low:.0%} to"
        f" {high:.0%})."
    )
    return AgreementRow(title, sentence + judged, one)


def _acts(count: int) -> str:
    return f"{count} act{'' if count == 1 else 's'}"
