"""The app that remembers."""

from django.apps import AppConfig


class IncidentsConfig(AppConfig):
    name = "incidents"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Fleet"
