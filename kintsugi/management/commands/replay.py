"""`manage.py replay LOG...`: plays log files through the real pipeline on a temporary database.

`--shadow` plays this site's own last days instead, as other rules of correlation would have placed
them.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from incidents.correlation.rules import CorrelationError
from kintsugi import clock
from kintsugi.management.store import PrintableCommand
from kintsugi.replay import database, log_file, logs, report, shadow
from kintsugi.replay.report import Played

USAGE = 2


class Command(PrintableCommand):
    help = (
        "Play log files through the real pipeline, on a temporary database and a virtual clock. The"
        " site's own database and Slurm are never touched."
    )
    requires_system_checks = ()
    paths_help = "a log file"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("paths", nargs="*", metavar="PATH", help=self.paths_help)
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object instead of tables"
        )
        parser.add_argument(
            "--year", type=int, help="year of time stamps that have none (default: the nearest)"
        )
        shadow = parser.add_argument_group("this site's last days")
        shadow.add_argument(
            "--shadow",
            action="store_true",
            help="play them by other rules, and tell the difference",
        )
        shadow.add_argument("--days", type=int, default=7, help="how many days back (default: 7)")
        shadow.add_argument(
            "--rules",
            type=Path,
            metavar="DIR",
            help=(
                "a folder of correlation and counting rules in the place of the site's own; without"
                " it the present rules are compared with what was recorded"
            ),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["paths"] and not options["shadow"]:
            raise CommandError(
                f"name {self.paths_help}, or play the site with --shadow", returncode=USAGE
            )
        with report.log_only_errors():
            if options["shadow"]:
                self._replay_shadow(options)
            else:
                self.play([Path(path) for path in options["paths"]], options)

    def play(self, paths: Sequence[Path], options: dict[str, Any]) -> None:
        """Raises CommandError."""
        for path in paths:
            if path.is_dir():
                raise CommandError(
                    f"{path}: a folder; expected a log file. Scenarios are played where the"
                    " simulator is installed.",
                    returncode=USAGE,
                )
            if not path.is_file():
                raise CommandError(f"{path}: no such file; expected a log file", returncode=USAGE)
        played = self.play_logs(paths, options)
        if options["json"]:
            self.stdout.write(json.dumps(played.as_json(), indent=1))

    def play_logs(self, files: Sequence[Path], options: dict[str, Any]) -> Played:
        """Plays the files as one log and prints its tables. Raises CommandError."""
        try:
            lines = log_file.read(files, now=clock.now(), year=options["year"])
        except OSError as error:
            raise CommandError(
                f"{error.filename}: cannot be read ({error.strerror})", returncode=USAGE
            ) from error
        if not lines:
            raise CommandError(f"{', '.join(map(str, files))}: no line in it", returncode=USAGE)
        with database.use_temporary_database():
            played = logs.play(lines, say=self.say)
            self.tell(played, ", ".join(path.name for path in files), options["json"])
        return played

    def say(self, text: str) -> None:
        self.stderr.write(text)

    def tell(self, played: Played, name: str, as_json: bool) -> None:
        if as_json:
            return
        self.stdout.write(f"{name}\n")
        for line in report.format_text(played):
            self.stdout.write(line)

    def _replay_shadow(self, options: dict[str, Any]) -> None:
        if options["paths"] or options["days"] < 1:
            raise CommandError("--shadow plays no PATH, and at least one day", returncode=USAGE)
        try:
            compared = shadow.compare(
                now=clock.now(), days=options["days"], rules=options["rules"], say=self.say
            )
        except CorrelationError as error:
            raise CommandError(str(error), returncode=USAGE) from error
        if options["json"]:
            self.stdout.write(json.dumps(compared.as_json(), indent=1))
        else:
            self.stdout.write("\n".join(compared.format_lines()))
