"""Puts the joined pages and the people who use them on the site."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from incidents.console.reserve import QuarantineAdmin, SpareAdmin
from incidents.models import (
    Decommission,
    Incident,
    Node,
    NodeToken,
    Quarantine,
    Spare,
    VendorCase,
)
from kintsugi.web.console import IncidentPage, NodePage
from kintsugi.web.decommission_page import DecommissionPage
from kintsugi.web.node_check.page import NodeTokenPage
from kintsugi.web.vendor_page import VendorCasePage

admin.site.register(Incident, IncidentPage)
admin.site.register(Node, NodePage)
admin.site.register(VendorCase, VendorCasePage)
admin.site.register(Spare, SpareAdmin)
admin.site.register(Quarantine, QuarantineAdmin)
admin.site.register(Decommission, DecommissionPage)
admin.site.register(NodeToken, NodeTokenPage)
admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class PeopleAdmin(UserAdmin, ModelAdmin):  # type: ignore[misc, type-arg]
    """People and their roles. Groups alone give rights here: nobody makes himself a superuser on
    this page."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "first_name", "last_name", "roles", "is_active", "last_login")
    list_filter: ClassVar = ["groups", "is_active"]
    filter_horizontal = ()
    fieldsets: ClassVar = [
        (None, {"fields": ("username", "password")}),
        ("Person", {"fields": ("first_name", "last_name", "email")}),
        ("Role", {"fields": ("is_active", "groups")}),
    ]

    @admin.display(description="Roles")
    def roles(self, user: User) -> str:
        return (
            "superuser"
            if user.is_superuser
            else ", ".join(group.name for group in user.groups.all())
        )

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("groups")

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """A superuser's account is changed by superusers: else a role could take one over by its
        password."""
        if obj is not None and obj.is_superuser and not request.user.is_superuser:
            return False
        return super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Never: timelines name people. An account is made inactive."""
        return False
