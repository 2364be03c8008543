"""`manage.py mode RUNBOOK|site [off|shadow|approval|armed]`: how far a runbook, or any, may go.

Arming runs preflight first.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from kintsugi.management.person import add_actor
from kintsugi.management.store import StoreCommand
from runbooks import services
from runbooks.models import Mode


class Command(StoreCommand):
    help = "Shows how far each runbook may go, or sets it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "runbook", nargs="?", help="its name, or `site` for all; without it, all are listed"
        )
        parser.add_argument("mode", nargs="?", choices=Mode.values)
        add_actor(parser, "who sets it, for the record", may_need_second=True)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["mode"] is None:
            self._list(options["runbook"])
            return
        self.require_serving()
        from kintsugi.clients import wiring  # noqa: PLC0415  (Slurm and node access: arming looks at them)

        outcome = services.set_mode(
            options["runbook"],
            options["mode"],
            actor=options["actor"],
            now=timezone.now(),
            world=wiring.build_world(),
        )
        if isinstance(outcome, services.ControlRefused):
            raise CommandError(outcome.reason)
        self.stdout.write(outcome.text)

    def _list(self, wanted: str | None) -> None:
        books = services.get_runbook_titles()
        if wanted is not None and wanted not in books:
            raise CommandError(f"There is no runbook {wanted}; there are {', '.join(books)}.")
        ceiling = services.get_site_mode()
        if ceiling is not None and wanted is None:
            self.stdout.write(f"site: {ceiling} (no runbook goes further)")
        for name, title in books.items():
            if wanted in (None, name):
                self.stdout.write(f"{name}: {services.get_mode(name)} ({title})")
