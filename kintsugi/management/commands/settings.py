"""`manage.py settings`: every setting, what it is now and what it may be."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from kintsugi.config import KEYS


class Command(BaseCommand):
    help = "Lists every setting with its value, what is expected and what it is for. Secrets are not shown."

    def handle(self, *args: Any, **options: Any) -> None:
        for key in KEYS:
            value = settings.KINTSUGI[key.name]
            shown = "(set)" if key.is_secret and value else value
            self.stdout.write(f"{key.name} = {shown if value is not None else '(unset)'}")
            self.stdout.write(f"    {key.meaning}; expected {key.expected}")
