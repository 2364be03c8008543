"""The catalogue of fault types as pages to read: what each means, how bad it is, what to do, how it
stops. And the lines that it does not read."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone

from detectors.catalog import catalog
from detectors.catalog.catalog import FaultType
from detectors.catalog.vendor_catalogs import VendorCatalog
from detectors.faults import Action, Fitness, Severity
from incidents.checks import unread_lines
from incidents.console.incident import add_place
from incidents.models import Fault, Incident
from incidents.text import wording
from incidents.vocabulary.lifecycle import CLOSED, OPEN
from kintsugi.web.pages import render_page

PER_PAGE = 50
_PARAMETERS = ("q", "component", "severity", "action", "fitness")


def has_all_words(fault: FaultType, words: list[str]) -> bool:
    """Whether every word occurs in what a person would look for: id, code, title, meaning."""
    text = f"{fault.id} {fault.code or ''} {fault.title} {fault.meaning}".lower()
    return all(word in text for word in words)


def search(parameters: dict[str, str]) -> list[FaultType]:
    """The fault types that the query names, the worst first, then by id as numbers count."""
    words = parameters["q"].lower().split()
    with_words = [fault for fault in catalog.load() if has_all_words(fault, words)]
    matching = [fault for fault in with_words if _has_fields(fault, parameters)]
    return sorted(matching, key=_sort_key)


def _has_fields(fault: FaultType, parameters: dict[str, str]) -> bool:
    """Whether its component, severity and action are those that were asked for, where any was."""
    fields = {
        "component": fault.component,
        "severity": fault.severity,
        "action": fault.action,
        "fitness": fault.fitness,
    }
    return all(parameters[name] in ("", str(value)) for name, value in fields.items())


def _sort_key(fault: FaultType) -> tuple[int, str, int, str]:
    family = fault.id.rsplit(".", 1)[0]
    return -fault.severity.rank, family, fault.code or 0, fault.id


def entries(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm("incidents.view_fault"):
        raise PermissionDenied
    parameters = {name: request.GET.get(name, "") for name in _PARAMETERS}
    pages = Paginator(search(parameters), PER_PAGE)
    page = pages.get_page(request.GET.get("page"))
    known = catalog.load()
    context = {
        "page": page,
        "parameters": parameters,
        "query": _format_query_string(parameters),
        "choices": _list_choices(),
        "total": len(known),
        "vendor_catalogs": _list_vendor_catalogs(known),
    }
    return render_page(request, "kintsugi/catalogue.html", "Catalogue of fault types", context)


def _list_vendor_catalogs(known: catalog.Catalog) -> list[tuple[str, bool]]:
    """Each vendor's list with its age, and whether that is much."""
    today = timezone.now().date()
    return [(row.format_age(today), row.is_old(today)) for row in known.vendor_catalogs]


def _format_query_string(parameters: dict[str, str]) -> str:
    pairs = [f"{name}={value}" for name, value in parameters.items() if value]
    return "&".join(pairs)


def _list_choices() -> list[tuple[str, str, list[tuple[str, str]]]]:
    """For each field to choose by: its name, its label, and its values with their labels."""
    components = [(str(component), text) for component, text in wording.COMPONENTS.items()]
    severities = [(str(severity), str(severity)) for severity in reversed(Severity)]
    actions = [(str(action), wording.ACTIONS[action]) for action in Action]
    fitness = [(str(word), str(word)) for word in Fitness]
    return [
        ("component", "Component", components),
        ("severity", "Severity", severities),
        ("action", "Action", actions),
        ("fitness", "For jobs", fitness),
    ]


def entry(request: HttpRequest, fault_type: str) -> HttpResponse:
    if not request.user.has_perm("incidents.view_fault"):
        raise PermissionDenied
    known = catalog.load()
    fault = known.get(fault_type)
    if fault is None:
        raise Http404(f"The catalogue has no fault type {fault_type}.")
    advice = known.get_advice(fault.id)
    advice_text = advice.format("") if advice is not None else ""
    seen = Fault.objects.filter(fault_type=fault_type).count()
    context = {
        "fault": fault,
        "advice": advice,
        "advice_text": advice_text,
        "seen": seen,
        **_describe_vendor_catalog(known.get_vendor_catalog(fault.family)),
        **_find_incidents(fault_type),
    }
    return render_page(request, "kintsugi/catalogue_entry.html", fault.title, context)


def _describe_vendor_catalog(vendor_catalog: VendorCatalog | None) -> dict[str, Any]:
    """How old the list is that the fault type was taken from; nothing of one without a list."""
    if vendor_catalog is None:
        return {"vendor_catalog": "", "is_old": False}
    today = timezone.now().date()
    age = vendor_catalog.format_age(today)
    return {"vendor_catalog": age, "is_old": vendor_catalog.is_old(today)}


def _find_incidents(fault_type: str) -> dict[str, Any]:
    incidents = add_place(Incident.objects.filter(fault_type=fault_type))
    past = incidents.filter(state__in=CLOSED)
    return {"open_incidents": incidents.filter(state__in=OPEN), "past_incidents": past[:20]}


def unread(request: HttpRequest) -> HttpResponse:
    """Templates of lines that no signature takes, the newest first."""
    if not request.user.has_perm("incidents.view_fault"):
        raise PermissionDenied
    words = request.GET.get("q", "")
    pages = Paginator(unread_lines.list_templates(words.split()), PER_PAGE)
    context = {"page": pages.get_page(request.GET.get("page")), "words": words}
    return render_page(request, "kintsugi/unread.html", "Unread lines", context)


def unread_template(request: HttpRequest, key: str) -> HttpResponse:
    """One template with its lines and the machines that printed them."""
    if not request.user.has_perm("incidents.view_fault"):
        raise PermissionDenied
    template = unread_lines.list_templates().filter(key=key).first()
    if template is None:
        raise Http404(f"There is no unread template {key}.")
    machines = template.machines.order_by("-last_at", "pk")[:PER_PAGE]
    context = {"template": template, "machines": machines}
    title = f"Unread lines of {template.program}"
    return render_page(request, "kintsugi/unread_template.html", title, context)
