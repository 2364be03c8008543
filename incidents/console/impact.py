"""What a person says of an incident's impact: the owners of lost jobs were told.
`incidents.impact.impact` alone writes."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from incidents.impact import impact
from incidents.models import Incident


def mark_told_view(request: HttpRequest, object_id: int) -> HttpResponse:
    if not request.user.has_perm("incidents.act_on_incident"):
        raise PermissionDenied
    if not Incident.objects.filter(pk=object_id).exists():
        raise Http404
    count = impact.mark_told(object_id, actor=request.user.get_username(), now=timezone.now())
    if count:
        messages.success(
            request,
            f"Written to the timeline: owners of {count} job{'' if count == 1 else 's'} told.",
        )
    else:
        messages.info(request, "All owners had been told already.")
    return HttpResponseRedirect(reverse("admin:incidents_incident_change", args=[object_id]))
