"""The app that wires, and the admin site that it puts in Django's place."""

from django.apps import AppConfig, apps
from django.contrib.admin import apps as admin_apps
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from kintsugi import roles


class KintsugiConfig(AppConfig):
    name = "kintsugi"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Our checks among them: after all models, since the steps of runbooks know some.
        autodiscover_modules("checks")
        # Sent for the last app with tables: by then every permission exists. This app has none and is never sent for.
        post_migrate.connect(roles.after_migrate, sender=apps.get_app_config("runbooks"))


class ConsoleAdminConfig(admin_apps.AdminConfig):
    """`django.contrib.admin` with our site."""

    default = False
    default_site = "kintsugi.site.ConsoleSite"
