"""The page on which people tell what they saw; `incidents.services.report` makes an incident of
it."""

from __future__ import annotations

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone

from detectors.catalog import catalog
from incidents import services
from incidents.console.forms import ReportForm
from incidents.models import Node, Switch

MACHINES_OFFERED = 2000


def report(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm("incidents.add_userreport"):
        raise PermissionDenied
    now = timezone.now()
    form = ReportForm(
        request.POST or None, now=now, initial={"machine": request.GET.get("machine", "")}
    )
    if request.method == "POST" and form.is_valid():
        incident = services.report(
            author=request.user.get_username(),
            text=form.cleaned_data["text"],
            resource=form.cleaned_data["resource"],
            fault_type=form.cleaned_data["fault_type"],
            occurred_at=form.cleaned_data["since"],
            now=now,
        )
        messages.success(
            request,
            f"Your report is part of incident #{incident.pk}. This page shows how it goes on.",
        )
        return HttpResponseRedirect(reverse("admin:incidents_incident_change", args=[incident.pk]))
    machines = [
        *Node.objects.values_list("name", flat=True),
        *Switch.objects.values_list("name", flat=True),
    ]
    context = {
        **admin.site.each_context(request),
        "title": "Report a problem",
        "form": form,
        "machines": machines[:MACHINES_OFFERED],
        "fault_types": [(fault.id, fault.title) for fault in catalog.load()],
    }
    return TemplateResponse(
        request, "incidents/report.html", context, status=422 if form.errors else 200
    )
