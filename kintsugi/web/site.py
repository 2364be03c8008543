"""The console's site: who may enter, and what every page shows above its content."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from unfold.forms import AuthenticationForm
from unfold.sites import UnfoldAdminSite

from kintsugi import roles
from kintsugi.web import banners


class SignInForm(AuthenticationForm):  # type: ignore[misc]
    """Signs in whoever has a role, and tells who has none whom to ask."""

    def confirm_login_allowed(self, user: User) -> None:
        if not roles.may_enter(user):
            raise ValidationError(
                "This account has no role yet. An administrator puts it into the group viewer,"
                " on-call or admin on the page People.",
                code="no_role",
            )


class ConsoleSite(UnfoldAdminSite):  # type: ignore[misc]
    site_title = "Kintsugi"
    index_title = "Home"
    login_form = SignInForm
    login_template = "kintsugi/login.html"
    # An unknown address is not found, whoever asks: a load balancer must not take the sign-in page
    # for an answer.
    final_catch_all_view = False

    def has_permission(self, request: HttpRequest) -> bool:
        return roles.may_enter(request.user)

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        context: dict[str, Any] = super().each_context(request)
        if self.has_permission(request):
            context["banners"] = banners.get_banners()
        context["is_demo"] = settings.KINTSUGI["KINTSUGI_IS_DEMO"]
        return context
