"""The page on which people tell what they saw; `incidents.services.report` makes an incident of
it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from detectors.catalog import catalog
from incidents import services
from incidents.console.forms import ReportForm
from incidents.models import Incident, Node, Switch
from kintsugi.web.pages import render_page

MACHINES_OFFERED = 2000


def report(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm("incidents.add_userreport"):
        raise PermissionDenied
    now = timezone.now()
    initial = {"machine": request.GET.get("machine", "")}
    form = ReportForm(request.POST or None, now=now, initial=initial)
    if request.method == "POST" and form.is_valid():
        incident = _open_report(request.user.get_username(), form.cleaned_data, now)
        text = f"Your report is part of incident #{incident.pk}. This page shows how it goes on."
        messages.success(request, text)
        return HttpResponseRedirect(reverse("admin:incidents_incident_change", args=[incident.pk]))
    nodes = Node.objects.values_list("name", flat=True)
    switches = Switch.objects.values_list("name", flat=True)
    fault_types = [(fault.id, fault.title) for fault in catalog.load()]
    context = {
        "form": form,
        "machines": [*nodes, *switches][:MACHINES_OFFERED],
        "fault_types": fault_types,
    }
    status = 422 if form.errors else 200
    title = "Report a problem"
    return render_page(request, "incidents/report.html", title, context, status=status)


def _open_report(author: str, fields: dict[str, Any], now: datetime) -> Incident:
    return services.report(
        author=author,
        text=fields["text"],
        resource=fields["resource"],
        fault_type=fields["fault_type"],
        occurred_at=fields["since"],
        now=now,
    )
