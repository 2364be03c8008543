"""`manage.py settings`: every setting, what it is now and what it may be, as a file that can be
used again."""

from __future__ import annotations

import os
import shlex
from typing import Any

from kintsugi import startup
from kintsugi.configuration import config, settings_file
from kintsugi.management.store import PrintableCommand


class Command(PrintableCommand):
    help = (
        "Prints every setting as an environment file: its value, what is expected and what it is"
        " for. Secrets are not shown; those that come from a file are named by it."
    )
    requires_system_checks = (startup.CONFIGURATION,)

    def handle(self, *args: Any, **options: Any) -> None:
        assigned = config.get_assignments(settings_file.merge(os.environ).values)
        for key in config.KEYS:
            self.stdout.write(f"# {key.meaning}; expected {key.expected}")
            name = key.name if key.name in assigned else f"{key.name}_FILE"
            text = assigned[name]
            if text is None:
                self.stdout.write(f"# {name} is unset")
            elif not text:
                self.stdout.write(
                    f"# {name} is set and not shown; better keep it in a file, and name that:"
                    f" {name}_FILE"
                )
            else:
                self.stdout.write(f"{name}={shlex.quote(text)}")
