"""Pages that show incidents and runs together: home, the incident's page, the node's page. Reads
only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Exists, Max, OuterRef, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from detectors.faults import event_id
from incidents.admin import NodeAdmin
from incidents.console.incident import IncidentAdmin, add_place
from incidents.inventory import node_states
from incidents.models import (
    Incident,
    Node,
    NodeInterval,
    Notification,
    QuarantinedEvent,
    Switch,
)
from incidents.notify import story
from incidents.polling import poll_pauses
from incidents.reliability.summary import Summary
from incidents.statistics import impact_statistics, statistics
from incidents.vocabulary.lifecycle import State
from kintsugi.web import modes
from kintsugi.web.pages import render_page
from runbooks.models import UNFINISHED, Mode, Run, RunbookMode, RunState, SecondPersonRequest
from runbooks.people import progress
from runbooks.second_person import requests
from runbooks.second_person.changes import Order

HOME_ROWS = 25
STATES_SHOWN = 50
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
    context = build_overview(request, timezone.now())
    return render_page(request, "kintsugi/home.html", "Home", context)


def build_overview(request: HttpRequest, now: datetime) -> dict[str, Any]:
    """What the home page shows. A fixed number of queries, however many rows there are."""
    return {
        "now": now,
        "asks": get_waiting_items(),
        "modes": modes.group_by_mode(modes.list_runbook_modes()),
        "can_report": request.user.has_perm("incidents.add_userreport"),
        **_get_latest(),
        **_get_fleet(),
        **_get_statistics(now),
    }


def _get_latest() -> dict[str, Any]:
    """The open incidents, the worst first, those closed lately, and the last runs."""
    open_incidents = add_place(Incident.objects.open()).order_by("-rank", "onset_at", "pk")
    ended = Incident.objects.closed().filter(closed_at__isnull=False)
    closed_incidents = add_place(ended).order_by("-closed_at")
    runs = Run.objects.select_related("node", "incident")
    first_page = list(open_incidents[:HOME_ROWS])
    is_all = len(first_page) < HOME_ROWS
    return {
        "open_incidents": first_page,
        "open_count": len(first_page) if is_all else open_incidents.count(),
        "closed_lately": closed_incidents[:5],
        "runs": runs[:8],
    }


def _get_fleet() -> dict[str, Any]:
    return {
        "pods": count_pods(),
        "switch_roles": count_switch_roles(),
        "slurm": node_states.get_freshness(),
        "provisional": Node.objects.filter(is_provisional=True).count(),
    }


def _get_statistics(now: datetime) -> dict[str, Any]:
    numbers = get_reliability(now)
    failed_classes = [row for row in numbers.classes if row.failures]
    return {
        "numbers": numbers,
        "costs": get_costs(now),
        "figures": [numbers.overall, *failed_classes],
    }


def get_reliability(now: datetime) -> Summary:
    """The last 90 days, computed anew each minute and when an incident or node comes or an incident
    ends.

    A page that refreshes every five seconds would otherwise read the incidents of 90 days each
    time.
    """
    # Each served by an index, however many incidents there have been.
    newest = Incident.objects.aggregate(newest=Max("pk"), ended_at=Max("closed_at"))
    counts = (Incident.objects.open().count(), Node.objects.count())
    state = (f"{now:%Y%m%d%H%M}", *newest.values(), *counts)
    key = f"reliability-{event_id(*state)}"
    summary: Summary | None = cache.get(key)
    if summary is None:
        summary = statistics.compute_summary(now - STATISTICS_SPAN, now)
        cache.set(key, summary, timeout=60)
    return summary


def get_costs(now: datetime) -> list[tuple[str, str]]:
    """What the incidents of the same days cost, in sentences; computed anew each minute."""
    key = f"costs-{now:%Y%m%d%H%M}"
    sentences: list[tuple[str, str]] | None = cache.get(key)
    if sentences is None:
        figures = impact_statistics.compute_figures(now - STATISTICS_SPAN, now)
        sentences = impact_statistics.format_sentences(figures)
        cache.set(key, sentences, timeout=60)
    return sentences


def get_waiting_items() -> list[WaitingItem]:
    """What waits for a person, oldest first within its kind: approvals, incidents, messages,
    quarantine."""
    waiting = (
        Run.objects.filter(state=RunState.AWAITING_APPROVAL)
        .select_related("node", "incident")
        .order_by("started_at", "pk")
    )
    runs = list(waiting[:HOME_ROWS])
    approvals = [_build_approval_item(run) for run in runs]
    incidents = _list_incident_items([run.incident_id for run in runs])
    others = (
        *_list_second_person_items(),
        *_list_stepped_back_items(),
        *_list_failed_message_items(),
        *_list_quarantine_items(),
    )
    return [*approvals, *incidents, *others]


def _build_approval_item(run: Run) -> WaitingItem:
    text = f"Approve or abort: {progress.get_title(run)} on {run.place}"
    return WaitingItem("back_hand", text, f"run #{run.pk}", _get_page_address(run), run.started_at)


def _list_second_person_items() -> list[WaitingItem]:
    """What one person asks for and another may confirm; a step of a run is asked for there."""
    standing = requests.list_standing(timezone.now()).exclude(order=Order.APPROVAL)
    return [_build_second_person_item(request) for request in standing[:HOME_ROWS]]


def _build_second_person_item(request: SecondPersonRequest) -> WaitingItem:
    text = f"Confirm or reject, as a second person: {request.what}"
    about = f"asked for by {request.asked_by}"
    return WaitingItem("back_hand", text, about, reverse("modes"), request.asked_at)


def _list_stepped_back_items() -> list[WaitingItem]:
    """Runbooks whose mode went down by itself, until a person sets it again or keeps it."""
    rows = RunbookMode.objects.exclude(stepped_back_at=None).order_by("stepped_back_at", "pk")
    return [_build_stepped_back_item(row) for row in rows[:HOME_ROWS]]


def _build_stepped_back_item(row: RunbookMode) -> WaitingItem:
    text = f"Set the mode of {row.runbook} again, or keep it: it stepped back to {row.mode}"
    address = reverse("modes")
    return WaitingItem("back_hand", text, row.stepped_back_why, address, row.stepped_back_at)


def _list_incident_items(approval_incidents: list[int]) -> list[WaitingItem]:
    """Of the open incidents that need a person; one whose run waits for approval is left out."""
    asking = Incident.objects.open().exclude(needs_human="")
    rows = asking.exclude(pk__in=approval_incidents).order_by("onset_at", "pk")
    incidents = list(rows[: HOME_ROWS + 1])
    items = [_build_incident_item(incident) for incident in incidents[:HOME_ROWS]]
    if len(incidents) > HOME_ROWS:
        address = reverse("admin:incidents_incident_changelist") + "?state=unfinished"
        text = f"See what else is asked of people: {rows.count() - HOME_ROWS} more"
        items.append(WaitingItem("back_hand", text, "open incidents", address))
    return items


def _build_incident_item(incident: Incident) -> WaitingItem:
    return WaitingItem(
        "back_hand",
        text=incident.needs_human,
        about=str(incident),
        address=_get_page_address(incident),
        since=incident.onset_at,
    )


def _list_failed_message_items() -> list[WaitingItem]:
    count = Notification.objects.filter(state=Notification.SendState.FAILED).count()
    if not count:
        return []
    address = reverse("admin:incidents_notification_changelist") + "?state__exact=failed"
    text = f"See what keeps messages from being sent: {count} failed"
    return [WaitingItem("mail", text, "messages", address)]


def _list_quarantine_items() -> list[WaitingItem]:
    count = QuarantinedEvent.objects.count()
    if not count:
        return []
    address = reverse("admin:incidents_quarantinedevent_changelist")
    text = f"Look at what could not be ingested: {count} held back"
    return [WaitingItem("report", text, "quarantine", address)]


def _get_page_address(row: Incident | Run | Node | Switch) -> str:
    meta = row._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[row.pk])


def count_pods() -> list[dict[str, Any]]:
    """Nodes of the inventory per pod: total, out of service, under repair, in service.

    Out of service: at the last look Slurm gave it no jobs of users, whoever keeps it from them, or
    an open incident took it out and nobody was seen to give it back. Under repair: an
    unfinished run. Under repair counts as out.
    """
    out = Incident.objects.out_of_service().filter(node=OuterRef("pk"))
    repair = Run.objects.unfinished().filter(node=OuterRef("pk")).exclude(mode=Mode.SHADOW)
    seen = NodeInterval.objects.current().filter(node=OuterRef("name"))
    is_out = Exists(out) | Exists(seen.filter(is_serving=False))
    nodes = Node.objects.inventoried().annotate(is_out=is_out, is_repaired=Exists(repair))
    counts = {
        "total": Count("pk"),
        "repaired": Count("pk", filter=Q(is_repaired=True)),
        "out": Count("pk", filter=Q(is_out=True, is_repaired=False)),
    }
    by_pod = nodes.order_by("pod").values("pod").annotate(**counts)
    rows: list[dict[str, Any]] = list(by_pod)
    for row in rows:
        row["serving"] = row["total"] - row["repaired"] - row["out"]
    return rows


def count_switch_roles() -> list[dict[str, Any]]:
    """Switches per role: total, and how many have an open incident."""
    incidents = Incident.objects.open().filter(owner__startswith="switch/")
    troubled = set(incidents.values_list("owner", flat=True))
    roles: dict[str, dict[str, Any]] = {}
    for name, role in Switch.objects.order_by("role").values_list("name", "role"):
        counts = roles.setdefault(role, {"role": role, "total": 0, "troubled": 0, "untroubled": 0})
        counts["total"] += 1
        counts["troubled" if f"switch/{name}" in troubled else "untroubled"] += 1
    return list(roles.values())


def is_waiting_for_person(incident: Incident, run: Run | None) -> bool:
    if not incident.is_open:
        return False
    is_approval = run is not None and run.state == RunState.AWAITING_APPROVAL
    return is_approval or bool(incident.needs_human)


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

    def get_page_context(self, request: HttpRequest, row: Incident) -> dict[str, Any]:
        related_runs = list(progress.get_runs_about(row).prefetch_related("steps"))
        runs = [run for run in related_runs if run.incident_id == row.pk]
        latest = runs[0] if runs else None
        is_unfinished = latest is not None and latest.state in UNFINISHED
        progress_words = progress.format_progress_of(row, related_runs)
        doing = story.format_doing(row, progress_words, timezone.now())
        context = {
            "runs": runs,
            "doing": doing,
            "asked": format_request(row, latest),
            "open_run": latest if is_unfinished else None,
            "asks": is_waiting_for_person(row, latest),
        }
        return super().get_page_context(request, row) | context | _describe_advice(row)


def _describe_advice(incident: Incident) -> dict[str, str]:
    advice = story.find_advice(incident)
    if advice is None:
        return {"advice": "", "advice_url": ""}
    return {"advice": advice.format(incident.root_resource), "advice_url": advice.url}


class NodePage(NodeAdmin):
    """The node's page with its runs."""

    page_template = "kintsugi/node.html"

    def get_page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        pauses = poll_pauses.filter_current(row.name, timezone.now())
        states = node_states.get_history(row.name)[: STATES_SHOWN + 1]
        has_older_states = len(states) > STATES_SHOWN
        context = {
            "runs": _get_runs(row),
            "pauses": pauses,
            "slurm": node_states.get_freshness(),
            "states": states[:STATES_SHOWN],
            "has_older_states": has_older_states,
        }
        return super().get_page_context(request, row) | context


def _get_runs(node: Node) -> QuerySet[Run]:
    return Run.objects.filter(node=node).select_related("incident", "node")[:20]


def machine(request: HttpRequest, resource: str) -> HttpResponse:
    """Leads from a resource path to its machine's page."""
    kind, _, path = resource.partition("/")
    model: type[Node] | type[Switch] | None = {"node": Node, "switch": Switch}.get(kind)  # type: ignore[assignment]
    name = path.split("/")[0]
    row = model.objects.filter(name=name).first() if model else None
    if row is None:
        raise Http404(f"The inventory has no machine {resource}.")
    return HttpResponseRedirect(_get_page_address(row))


def incident(request: HttpRequest, number: int) -> HttpResponse:
    """The short address of an incident's page."""
    if not request.user.has_perm("incidents.view_incident"):
        raise PermissionDenied
    return HttpResponseRedirect(reverse("admin:incidents_incident_change", args=[number]))
