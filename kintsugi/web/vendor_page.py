"""The page of a vendor case with its evidence: what incidents, runs and the machine know, as one
download."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from incidents.console.vendor import MAY, VendorCaseAdmin
from incidents.models import VendorCase
from incidents.vocabulary.changes import Refused
from kintsugi import vendor_bundle
from kintsugi.clients import wiring


class VendorCasePage(VendorCaseAdmin):
    def get_page_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_GET(self.bundle_view))
        return [
            *super().get_page_urls(),
            path("<int:object_id>/bundle/", view, name="incidents_vendorcase_bundle"),
        ]

    def get_page_context(self, request: HttpRequest, row: VendorCase) -> dict[str, Any]:
        address = reverse("admin:incidents_vendorcase_bundle", args=[row.pk])
        return {**super().get_page_context(request, row), "bundle_address": address}

    def bundle_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """What cannot be had, also because this process has no access to nodes, is named in the
        archive."""
        if not request.user.has_perm(MAY):
            raise PermissionDenied
        bundle = vendor_bundle.collect(
            object_id, shell=wiring.build_node_shell(), now=timezone.now()
        )
        if isinstance(bundle, Refused):
            messages.error(request, bundle.reason)
            return HttpResponseRedirect(reverse("admin:incidents_vendorcase_changelist"))
        answer = HttpResponse(bundle.content, content_type="application/gzip")
        answer.headers["Content-Disposition"] = f'attachment; filename="{bundle.name}"'
        return answer
