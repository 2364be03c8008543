"""The app that wires."""

from django.apps import AppConfig


class KintsugiConfig(AppConfig):
    name = "kintsugi"
    default_auto_field = "django.db.models.BigAutoField"
