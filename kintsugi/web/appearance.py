"""How the console looks: names, colours, and what stands in the side bar for whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy

PRIMARY = {
    "50": "240 249 255",
    "100": "224 242 254",
    "200": "186 230 253",
    "300": "125 211 252",
    "400": "56 189 248",
    "500": "14 165 233",
    "600": "2 112 173",
    "700": "3 95 150",
    "800": "7 89 133",
    "900": "12 74 110",
    "950": "8 47 73",
}


def _may(permission: str) -> Callable[[HttpRequest], bool]:
    return lambda request: request.user.has_perm(permission)


def _build_item(title: str, icon: str, view: str, permission: str) -> dict[str, Any]:
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(view),
        "permission": _may(permission),
    }


NAVIGATION: list[dict[str, Any]] = [
    {
        "items": [
            _build_item("Home", "home", "home", "incidents.view_incident"),
            _build_item(
                "Incidents",
                "e911_emergency",
                "admin:incidents_incident_changelist",
                "incidents.view_incident",
            ),
            _build_item(
                "Silences",
                "notifications_paused",
                "admin:incidents_silence_changelist",
                "incidents.view_silence",
            ),
            _build_item("Report a problem", "campaign", "report", "incidents.add_userreport"),
        ],
    },
    {
        "title": "Fleet",
        "separator": True,
        "items": [
            _build_item("Nodes", "dns", "admin:incidents_node_changelist", "incidents.view_node"),
            _build_item(
                "Switches", "hub", "admin:incidents_switch_changelist", "incidents.view_switch"
            ),
            _build_item(
                "Parts",
                "memory",
                "admin:incidents_inservice_changelist",
                "incidents.view_inservice",
            ),
            _build_item(
                "Faults", "bolt", "admin:incidents_fault_changelist", "incidents.view_fault"
            ),
            _build_item(
                "Vendor cases",
                "local_shipping",
                "admin:incidents_vendorcase_changelist",
                "incidents.view_vendorcase",
            ),
            _build_item(
                "Hot spares",
                "swap_horiz",
                "admin:incidents_spare_changelist",
                "incidents.view_spare",
            ),
            _build_item(
                "Lemons",
                "nutrition",
                "admin:incidents_quarantine_changelist",
                "incidents.view_quarantine",
            ),
            _build_item(
                "Decommissioning",
                "logout",
                "admin:incidents_decommission_changelist",
                "incidents.view_decommission",
            ),
            _build_item(
                "Node tokens",
                "key",
                "admin:incidents_nodetoken_changelist",
                "incidents.view_nodetoken",
            ),
        ],
    },
    {
        "title": "Repairs",
        "separator": True,
        "items": [
            _build_item("Runs", "build", "admin:runbooks_run_changelist", "runbooks.view_run"),
            _build_item("Runbook modes", "tune", "modes", "runbooks.view_runbookmode"),
            _build_item("Dry-run report", "balance", "shadow", "runbooks.view_run"),
            _build_item("Stop switch", "front_hand", "stop_switch", "runbooks.view_stopswitch"),
        ],
    },
    {
        "title": "Reference",
        "separator": True,
        "items": [
            _build_item("Status of Kintsugi", "monitor_heart", "status", "incidents.view_fault"),
            _build_item("Catalogue", "menu_book", "catalogue", "incidents.view_fault"),
            _build_item("Unread lines", "help_center", "unread", "incidents.view_fault"),
            _build_item(
                "Messages",
                "mail",
                "admin:incidents_notification_changelist",
                "incidents.view_notification",
            ),
            _build_item(
                "Events held back",
                "report",
                "admin:incidents_quarantinedevent_changelist",
                "incidents.view_quarantinedevent",
            ),
            _build_item(
                "Audit log",
                "history_edu",
                "admin:runbooks_auditentry_changelist",
                "runbooks.view_auditentry",
            ),
            _build_item("People", "group", "admin:auth_user_changelist", "auth.view_user"),
        ],
    },
]

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Kintsugi",
    "SITE_HEADER": "Kintsugi",
    "SITE_SUBHEADER": "faults and repairs",
    "SITE_ICON": lambda request: static("kintsugi/mark.svg"),
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "type": "image/svg+xml",
            "href": lambda request: static("kintsugi/mark.svg"),
        },
    ],
    "SITE_URL": None,
    "SHOW_HISTORY": False,
    "SHOW_VIEW_ON_SITE": False,
    "STYLES": [lambda request: static("kintsugi/console.css")],
    "SCRIPTS": [lambda request: static("kintsugi/console.js")],
    "COLORS": {"primary": PRIMARY},
    "LOGIN": {"form": "kintsugi.web.site.SignInForm"},
    "SIDEBAR": {"show_search": False, "navigation": NAVIGATION},
}
