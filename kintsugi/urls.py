"""The addresses of the web process. The console's own pages stand before those that the models'
admins give; `/healthz`, `/readyz` and `/metrics` are answered before any of them, by
`kintsugi.web.middleware.health`."""

from django.contrib import admin
from django.urls import path
from django.views.decorators.http import require_POST
from django.views.generic import RedirectView

from kintsugi.slack import inbound
from kintsugi.web import (
    catalogue,
    console,
    controls,
    reports,
    runbook_page,
    shadow_page,
    status_page,
)
from kintsugi.web.node_check import api
from runbooks.console.questions import answer_view

admin.autodiscover()
handler500 = "kintsugi.web.middleware.database_away.show_failure"
_signed_in = admin.site.admin_view

urlpatterns = [
    path("", _signed_in(console.home), name="home"),
    path("report/", _signed_in(reports.report), name="report"),
    path("status/", _signed_in(status_page.status), name="status"),
    path("stop/", _signed_in(controls.stop_switch), name="stop_switch"),
    path("modes/", _signed_in(controls.modes), name="modes"),
    path("runbook/<str:name>/", _signed_in(runbook_page.runbook), name="runbook"),
    path("shadow/", _signed_in(shadow_page.report), name="shadow"),
    path("catalogue/", _signed_in(catalogue.entries), name="catalogue"),
    path("catalogue/<str:fault_type>/", _signed_in(catalogue.entry), name="catalogue_entry"),
    path("unread/", _signed_in(catalogue.unread), name="unread"),
    path("unread/<str:key>/", _signed_in(catalogue.unread_template), name="unread_template"),
    path("answer/<int:question_id>/", _signed_in(require_POST(answer_view)), name="answer"),
    path("machine/<path:resource>/", _signed_in(console.machine), name="machine"),
    path("api/v1/readings/", api.readings, name="api_readings"),
    path("api/v1/leases/", api.leases, name="api_leases"),
    path("api/v1/drain-requests/", api.drain_requests, name="api_drain_requests"),
    # A redirect would lose what was posted.
    path("api/v1/readings", api.readings),
    path("api/v1/leases", api.leases),
    path("api/v1/drain-requests", api.drain_requests),
    path("slack/command/", inbound.command, name="slack_command"),
    path("slack/action/", inbound.action, name="slack_action"),
    path("incidents/<int:number>/", _signed_in(console.incident), name="incident"),
    path("incidents/", RedirectView.as_view(pattern_name="admin:incidents_incident_changelist")),
    path("runbooks/", RedirectView.as_view(pattern_name="admin:runbooks_run_changelist")),
    path("auth/", RedirectView.as_view(pattern_name="admin:auth_user_changelist")),
    path("", admin.site.urls),
]
