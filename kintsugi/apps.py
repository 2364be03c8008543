"""The app that wires, and the admin site that it puts in Django's place."""

from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.contrib import admin
from django.contrib.admin import apps as admin_apps
from django.contrib.admin import checks as admin_checks
from django.core import checks
from django.db.models.signals import post_migrate

from detectors.catalog import site_catalog
from kintsugi import roles, startup


class KintsugiConfig(AppConfig):
    name = "kintsugi"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        startup.register_checks()
        site_catalog.set_directory(settings.KINTSUGI["KINTSUGI_CATALOG_DIR"] or None)
        # Sent for the last app with tables: by then every permission exists. This app has none and
        # is never sent for.
        post_migrate.connect(
            roles.update_groups_after_migrate, sender=apps.get_app_config("runbooks")
        )


class ConsoleAdminConfig(admin_apps.SimpleAdminConfig):
    """`django.contrib.admin` with our site.

    Pages register themselves when `kintsugi.urls` is loaded: only the web process shows them.
    """

    default = False
    default_site = "kintsugi.web.site.ConsoleSite"

    def ready(self) -> None:
        checks.register(admin_checks.check_dependencies, checks.Tags.admin)
        checks.register(_check_pages, checks.Tags.admin)


def _check_pages(app_configs: Any, **options: Any) -> list[checks.CheckMessage]:
    admin.autodiscover()
    found: list[checks.CheckMessage] = admin_checks.check_admin_app(app_configs, **options)
    return found
