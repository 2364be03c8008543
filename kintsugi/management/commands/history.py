"""`manage.py history prune` and `manage.py history export --before DAY --to DIRECTORY`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_date

from kintsugi.history import files, retention
from kintsugi.management.store import StoreCommand


class Command(StoreCommand):
    help = (
        "History past KINTSUGI_KEEP, as JSON lines: `prune` writes it to KINTSUGI_HISTORY_DIR and"
        " removes it, `export` writes what ended before a day and removes nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        prune = verbs.add_parser("prune")
        prune.add_argument("--dry-run", action="store_true", help="count, and change nothing")
        export = verbs.add_parser("export")
        export.add_argument("--before", required=True, help="a day, such as 2025-01-31")
        export.add_argument("--to", type=Path, required=True, help="a directory")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["verb"] == "prune":
                self._prune(is_dry=options["dry_run"])
            else:
                self._export(options["before"], options["to"])
        except files.DirectoryInUse as error:
            raise CommandError(f"Another process writes to {error}: try again later.") from error
        except OSError as error:
            raise CommandError(f"Nothing more was removed: {error}") from error

    def _prune(self, *, is_dry: bool) -> None:
        keep = settings.KINTSUGI["KINTSUGI_KEEP"]
        if keep is None:
            raise CommandError("KINTSUGI_KEEP is unset: everything is kept. Set it, as to 2y.")
        now = timezone.now()
        if is_dry:
            counts = retention.count_past(now - keep)
            self.stdout.write(f"Would go: {_format(counts)}")
            return
        counts = retention.prune(settings.HISTORY_DIR, now - keep, now=now)
        self.stdout.write(f"Written to {settings.HISTORY_DIR} and removed: {_format(counts)}")

    def _export(self, day: str, directory: Path) -> None:
        try:
            date = parse_date(day)
        except ValueError:
            date = None
        if date is None:
            raise CommandError(f"--before {day}: expected a day such as 2025-01-31")
        midnight = datetime.combine(date, datetime.min.time())
        counts = retention.export(directory, timezone.make_aware(midnight))
        self.stdout.write(f"Written to {directory}: {_format(counts)}")


def _format(counts: Mapping[str, int]) -> str:
    parts = [f"{count} of kind {name}" for name, count in counts.items()]
    return ", ".join(parts) or "nothing"
