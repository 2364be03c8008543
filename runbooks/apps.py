"""The app that acts."""

from django.apps import AppConfig


class RunbooksConfig(AppConfig):
    name = "runbooks"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Repairs"
