"""The page that convinces a site to arm, or not to: what runs in shadow would have done beside what
people did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from incidents.text import wording
from kintsugi.web.pages import render_page
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
        return _judge(request)
    periods = [str(days) for days in _PERIODS]
    days = _parameter(request, "days", periods, default=str(_DEFAULT_PERIOD))
    view = _parameter(request, "view", list(_VIEWS), default="open-questions")
    since = timezone.now() - timedelta(days=int(days))
    agreements = [_agreement_row(agreement) for agreement in services.compute_agreement(since)]
    acts = Paginator(_find_acts(view, since), _PER_PAGE)
    window = settings.KINTSUGI["KINTSUGI_SHADOW_WINDOW"]
    may_judge = request.user.has_perm("runbooks.judge_shadow")
    context = {
        "agreements": agreements,
        "acts": acts.get_page(request.GET.get("page")),
        **_choices(days, view),
        "window": wording.duration(window),
        "may_judge": may_judge,
    }
    return render_page(request, "kintsugi/shadow.html", "Shadow ledger", context)


def _choices(days: str, view: str) -> dict[str, Any]:
    """Periods and views to choose from, and those that are chosen."""
    return {
        "days": days,
        "periods": _PERIODS,
        "view": view,
        "views": _VIEWS.items(),
    }


def _judge(request: HttpRequest) -> HttpResponse:
    """Two clicks: the line, and who was right. Back to where the person was."""
    if not request.user.has_perm("runbooks.judge_shadow"):
        raise PermissionDenied
    number = request.POST.get("act", "")
    refusal = "Choose a line of the ledger."
    if number.isdecimal():
        judgement = request.POST.get("judgement", "?")
        actor = request.user.get_username()
        refusal = services.store_judgement(int(number), judgement, actor=actor, now=timezone.now())
    if refusal:
        messages.error(request, refusal)
    query = request.META.get("QUERY_STRING", "")
    address = reverse("shadow")
    return HttpResponseRedirect(f"{address}?{query}" if query else address)


def _parameter(request: HttpRequest, name: str, values: list[str], *, default: str) -> str:
    value = request.GET.get(name, default)
    return value if value in values else default


def _find_acts(view: str, since: datetime) -> QuerySet[ShadowAct]:
    acts = ShadowAct.objects.select_related("node", "incident", "run", "seen").filter(at__gte=since)
    if view == "open-questions":
        return acts.filter(verdict=ShadowAct.Verdict.DIFFERED, judged="")
    return acts.filter(verdict=view)


def _agreement_row(agreement: services.Agreement) -> AgreementRow:
    title = _runbook_title(agreement.runbook)
    return AgreementRow(title, _agreement_sentence(agreement), agreement)


def _runbook_title(name: str) -> str:
    book = library.load().get(name)
    if book is not None:
        return book.title
    return name or "What people did and no runbook wanted"


def _agreement_sentence(agreement: services.Agreement) -> str:
    judged = ""
    if agreement.judged:
        judged = (
            f" Of {agreement.judged} judged differences Kintsugi was right in"
            f" {agreement.judged_for_us}."
        )
    settled = _count_acts(agreement.settled)
    if not agreement.runbook:
        return f"{settled}.{judged}"
    if agreement.share is None:
        return f"Nothing has settled yet; not settled: {_count_acts(agreement.open)}."
    value, low, high = agreement.share
    return (
        f"{agreement.agreed} of {settled} agreed: {value:.0%} (95 % interval {low:.0%} to"
        f" {high:.0%}).{judged}"
    )


def _count_acts(count: int) -> str:
    return f"{count} act{'' if count == 1 else 's'}"
