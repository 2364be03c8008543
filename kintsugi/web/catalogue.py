"""The catalogue of fault types as pages to read: what each means, how bad it is, what to do, how it
stops."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from detectors.catalog import catalog
from detectors.catalog.catalog import FaultType
from detectors.faults import Action, Severity
from incidents.console.incident import with_place
from incidents.models import Fault, Incident
from incidents.text import wording
from incidents.vocabulary.lifecycle import CLOSED

PER_PAGE = 50


def matches(fault: FaultType, words: list[str]) -> bool:
    """Whether every word occurs in what a person would look for: id, code, title, meaning."""
    text = f"{fault.id} {fault.code or ''} {fault.title} {fault.meaning}".lower()
    return all(word in text for word in words)


def chosen(parameters: dict[str, str]) -> list[FaultType]:
    """The fault types that the query names, the worst first, then by id as numbers count."""
    words = parameters["q"].lower().split()
    found = [
        fault
        for fault in catalog.load()
        if matches(fault, words)
        and parameters["component"] in ("", str(fault.component))
        and parameters["severity"] in ("", str(fault.severity))
        and parameters["action"] in ("", str(fault.action))
    ]
    return sorted(
        found,
        key=lambda fault: (
            -fault.severity.rank,
            fault.id.rsplit(".", 1)[0],
            fault.code or 0,
            fault.id,
        ),
    )


def entries(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm("incidents.view_fault"):
        raise PermissionDenied
    parameters = {
        name: request.GET.get(name, "") for name in ("q", "component", "severity", "action")
    }
    page = Paginator(chosen(parameters), PER_PAGE).get_page(request.GET.get("page"))
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Catalogue of fault types",
        "page": page,
        "parameters": parameters,
        "query": "&".join(f"{name}={value}" for name, value in parameters.items() if value),
        "choices": [
            ("component", "Component", [(str(c), text) for c, text in wording.COMPONENTS.items()]),
            ("severity", "Severity", [(str(s), str(s)) for s in reversed(Severity)]),
            ("action", "Action", [(str(a), wording.ACTIONS[a]) for a in Action]),
        ],
        "total": sum(1 for _ in catalog.load()),
    }
    return TemplateResponse(request, "kintsugi/catalogue.html", context)


def entry(request: HttpRequest, fault_type: str) -> HttpResponse:
    if not request.user.has_perm("incidents.view_fault"):
        raise PermissionDenied
    fault = catalog.load().get(fault_type)
    if fault is None:
        raise Http404(f"The catalogue has no fault type {fault_type}.")
    incidents = with_place(Incident.objects.filter(fault_type=fault_type))
    context = {
        **admin.site.each_context(request),
        "title": fault.title,
        "fault": fault,
        "open_incidents": incidents.exclude(state__in=CLOSED),
        "past_incidents": incidents.filter(state__in=CLOSED)[:20],
        "seen": Fault.objects.filter(fault_type=fault_type).count(),
    }
    return TemplateResponse(request, "kintsugi/catalogue_entry.html", context)
