"""Pages that show incidents and runs together: home, the incident's page, the node's page. Reads
only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Exists, Max, OuterRef, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone

from detectors.faults import event_id
from incidents.admin import NodeAdmin
from incidents.console.incident import IncidentAdmin, with_place
from incidents.models import Incident, Node, Notification, QuarantinedEvent, Switch
from incidents.notify import story
from incidents.polling import poll_pauses
from incidents.reliability.summary import Summary
from incidents.statistics import impact_statistics, statistics
from incidents.vocabulary.lifecycle import State
from kintsugi.web import modes
from runbooks.models import UNFINISHED, Mode, Run, RunState
from runbooks.people import progress

HOME_ROWS = 25
STATISTICS_SPAN = timedelta(days=90)


@dataclass(frozen=True)
class WaitingItem:
    """Something that waits for a person: what, since when, and where it is done."""

    icon: str
    text: str
    about: str
    address: str
    since: datetime | None = None


def home(request: HttpRequest) -> HttpResponse:
    """The index: what is open, what waits for a person, the fleet, the last runs, the numbers."""
    context = {
        **admin.site.each_context(request),
        "title": "Home",
        **overview(request, timezone.now()),
    }
    return TemplateResponse(request, "kintsugi/home.html", context)


def overview(request: HttpRequest, now: datetime) -> dict[str, Any]:
    """What the home page shows. A fixed number of queries, however many rows there are."""
    open_incidents = with_place(Incident.objects.open()).order_by("-rank", "onset_at", "pk")
    shown = list(open_incidents[:HOME_ROWS])
    numbers = reliability(now)
    return {
        "now": now,
        "open_incidents": shown,
        "open_count": len(shown) if len(shown) < HOME_ROWS else open_incidents.count(),
        "closed_lately": (with_place(Incident.objects.closed()).order_by("-closed_at")[:5]),
        "asks": asks(),
        "pods": pods(),
        "switch_roles": switch_roles(),
        "provisional": Node.objects.filter(is_provisional=True).count(),
        "runs": Run.objects.select_related("node", "incident")[:8],
        "numbers": numbers,
        "costs": costs(now),
        "figures": [numbers.overall, *(row for row in numbers.classes if row.failures)],
        "modes": modes.by_mode(modes.runbook_modes()),
        "can_report": request.user.has_perm("incidents.add_userreport"),
    }


def reliability(now: datetime) -> Summary:
    """The last 90 days, computed anew each minute and whenever an incident or the number of nodes
    has changed.

    A page that refreshes every five seconds would otherwise read every incident each time.
    """
    minute = now.replace(second=0, microsecond=0)
    changed = Incident.objects.aggregate(latest=Max("updated_at"), count=Count("pk"))
    state = (minute.isoformat(), str(changed["latest"]), changed["count"], Node.objects.count())
    key = f"reliability-{event_id(*state)}"
    found: Summary | None = cache.get(key)
    if found is None:
        found = statistics.summary(now - STATISTICS_SPAN, now)
        cache.set(key, found, timeout=60)
    return found


def costs(now: datetime) -> list[tuple[str, str]]:
    """What the incidents of the same days cost, in sentences; computed anew each minute."""
    key = f"costs-{now.replace(second=0, microsecond=0):%Y%m%d%H%M}"
    found: list[tuple[str, str]] | None = cache.get(key)
    if found is None:
        found = impact_statistics.sentences(impact_statistics.figures(now - STATISTICS_SPAN, now))
        cache.set(key, found, timeout=60)
    return found


def asks() -> list[WaitingItem]:
    """What waits for a person, oldest first within its kind: approvals, incidents, messages,
    quarantine."""
    waiting = (
        Run.objects.filter(state=RunState.AWAITING_APPROVAL)
        .select_related("node", "incident")
        .order_by("started_at")
    )
    approvals = list(waiting[:HOME_ROWS])
    asking = Incident.objects.open().exclude(needs_human="")
    others = asking.exclude(pk__in=[run.incident_id for run in approvals]).order_by("onset_at")
    incidents = list(others[: HOME_ROWS + 1])
    found = [
        WaitingItem(
            "back_hand",
            f"Approve or abort: {progress.get_title(run)} on {run.place}",
            f"run #{run.pk}",
            _page(run),
            run.started_at,
        )
        for run in approvals
    ]
    found += [
        WaitingItem(
            "back_hand", incident.needs_human, str(incident), _page(incident), incident.onset_at
        )
        for incident in incidents[:HOME_ROWS]
    ]
    if len(incidents) > HOME_ROWS:
        address = reverse("admin:incidents_incident_changelist") + "?state=unfinished"
        more = f"See what else is asked of people: {others.count() - HOME_ROWS} more"
        found.append(WaitingItem("back_hand", more, "open incidents", address))
    if failed := Notification.objects.filter(state=Notification.SendState.FAILED).count():
        address = reverse("admin:incidents_notification_changelist") + "?state__exact=failed"
        found.append(
            WaitingItem(
                "mail",
                f"See what keeps messages from being sent: {failed} failed",
                "messages",
                address,
            )
        )
    if held := QuarantinedEvent.objects.count():
        address = reverse("admin:incidents_quarantinedevent_changelist")
        found.append(
            WaitingItem(
                "report",
                f"Look at what could not be ingested: {held} held back",
                "quarantine",
                address,
            )
        )
    return found


def _page(row: Incident | Run) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def pods() -> list[dict[str, Any]]:
    """Nodes of the inventory per pod: total, out of service, under repair, in service.

    Out of service: an open incident says since when the node is out and not yet restored. Under
    repair: an unfinished run. Under repair counts as out.
    """
    out = Incident.objects.open().filter(
        node=OuterRef("pk"), out_of_service_at__isnull=False, restored_at=None
    )
    repair = Run.objects.unfinished().filter(node=OuterRef("pk")).exclude(mode=Mode.SHADOW)
    rows = (
        Node.objects.inventoried()
        .annotate(is_out=Exists(out), is_repaired=Exists(repair))
        .order_by("pod")
        .values("pod")
        .annotate(
            total=Count("pk"),
            repaired=Count("pk", filter=Q(is_repaired=True)),
            out=Count("pk", filter=Q(is_out=True, is_repaired=False)),
        )
    )
    return [{**row, "serving": row["total"] - row["repaired"] - row["out"]} for row in rows]


def switch_roles() -> list[dict[str, Any]]:
    """Switches per role: total, and how many have an open incident."""
    troubled = set(
        Incident.objects.open().filter(owner__startswith="switch/").values_list("owner", flat=True)
    )
    roles: dict[str, dict[str, Any]] = {}
    for name, role in Switch.objects.order_by("role").values_list("name", "role"):
        row = roles.setdefault(role, {"role": role, "total": 0, "troubled": 0, "untroubled": 0})
        row["total"] += 1
        row["troubled" if f"switch/{name}" in troubled else "untroubled"] += 1
    return list(roles.values())


def format_request(incident: Incident, run: Run | None) -> str:
    """What a person is asked to do, or may do."""
    if run is not None and incident.is_open and run.state == RunState.AWAITING_APPROVAL:
        return f"Approve or abort run #{run.pk}."
    if incident.needs_human and incident.is_open:
        return incident.needs_human
    return story.ASKED[State(incident.state)]


class IncidentPage(IncidentAdmin):
    """The incident's page with its runs."""

    page_template = "kintsugi/incident.html"

    def page_context(self, request: HttpRequest, row: Incident) -> dict[str, Any]:
        about = list(progress.get_runs_about(row).prefetch_related("steps"))
        runs = [run for run in about if run.incident_id == row.pk]
        latest = runs[0] if runs else None
        return {
            **super().page_context(request, row),
            "runs": runs,
            "doing": story.doing(row, progress.format_progress_of(row, about), timezone.now()),
            "asked": format_request(row, latest),
            "open_run": latest if latest is not None and latest.state in UNFINISHED else None,
            "asks": (
                bool(row.needs_human and row.is_open)
                or (
                    latest is not None
                    and latest.state == RunState.AWAITING_APPROVAL
                    and row.is_open
                )
            ),
        }


class NodePage(NodeAdmin):
    """The node's page with its runs."""

    page_template = "kintsugi/node.html"

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        pauses = poll_pauses.rows(row.name, timezone.now())
        return {**super().page_context(request, row), "runs": _runs(row), "pauses": pauses}


def _runs(node: Node) -> QuerySet[Run]:
    return Run.objects.filter(node=node).select_related("incident", "node")[:20]


def machine(request: HttpRequest, resource: str) -> HttpResponse:
    """Leads from a resource path to its machine's page."""
    kind, _, name = resource.partition("/")
    model: type[Node] | type[Switch] | None = {"node": Node, "switch": Switch}.get(kind)  # type: ignore[assignment]
    row = model.objects.filter(name=name.split("/")[0]).first() if model else None
    if row is None:
        raise Http404(f"The inventory has no machine {resource}.")
    return HttpResponseRedirect(
        reverse(f"admin:incidents_{row._meta.model_name}_change", args=[row.pk])
    )


def incident(request: HttpRequest, number: int) -> HttpResponse:
    """The short address of an incident's page."""
    if not request.user.has_perm("incidents.view_incident"):
        raise PermissionDenied
    return HttpResponseRedirect(reverse("admin:incidents_incident_change", args=[number]))
