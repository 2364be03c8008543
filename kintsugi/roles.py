"""Who may do what: three groups, each a superset of the one before. Nothing else decides on
access."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from django.apps import apps
from django.db.models import Q

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User


class UserRole(StrEnum):
    VIEWER = "viewer"
    ON_CALL = "on-call"
    ADMIN = "admin"


SEES = tuple(
    f"incidents.view_{model}"
    for model in (
        "alias",
        "cable",
        "decommission",
        "evidence",
        "expectation",
        "fault",
        "gpu",
        "incident",
        "incidentfault",
        "inservice",
        "module",
        "nic",
        "node",
        "nodetoken",
        "notification",
        "nvswitch",
        "port",
        "powerfeed",
        "quarantine",
        "quarantinedevent",
        "rack",
        "shown",
        "silence",
        "spare",
        "storagepath",
        "switch",
        "timelineentry",
        "userreport",
        "vendorcase",
        "vendormove",
    )
) + tuple(
    f"runbooks.view_{model}"
    for model in ("auditentry", "run", "runbookmode", "shadowact", "steprun", "stopswitch")
)

ACTS = (
    "incidents.act_on_incident",
    "incidents.add_userreport",
    "incidents.handle_vendor_case",
    "incidents.silence",
    "runbooks.control_run",
    "runbooks.use_stop_switch",
)
RULES = (
    "runbooks.set_mode",
    "auth.view_user",
    "auth.add_user",
    "auth.change_user",
    "auth.view_group",
)

PERMISSIONS: dict[UserRole, tuple[str, ...]] = {
    UserRole.VIEWER: SEES,
    UserRole.ON_CALL: SEES + ACTS,
    UserRole.ADMIN: SEES + ACTS + RULES,
}


def update_groups() -> dict[UserRole, int]:
    """The three groups with exactly these permissions; how many each has. Safe to repeat."""
    groups, permissions = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    given = {}
    for role, names in PERMISSIONS.items():
        group, _ = groups.objects.get_or_create(name=role.value)
        wanted = Q(pk__in=[])
        for name in names:
            app, codename = name.split(".")
            wanted |= Q(content_type__app_label=app, codename=codename)
        found = list(permissions.objects.filter(wanted))
        group.permissions.set(found)
        given[role] = len(found)
    return given


def update_groups_after_migrate(**_signal: object) -> None:
    """Each `migrate` leaves the groups as this file has them, so that no deployment can forget
    it."""
    update_groups()


def may_enter(user: User | AnonymousUser) -> bool:
    """Whoever may see incidents may enter the console; Django's staff flag plays no part."""
    return user.is_active and user.has_perm("incidents.view_incident")
