"""`manage.py why INCIDENT`: what was seen, what was joined by which rule, what was held, and what
people changed."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from incidents.people import explain
from incidents.text import account
from kintsugi.management.store import StoreCommand

UNKNOWN, USAGE = 1, 2


class Command(StoreCommand):
    help = (
        "Tells why an incident is as it is: what was seen, by whom, joined by which rule, held,"
        " moved, silenced."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("incident", help="its number, such as 17 or #17")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        number = options["incident"].removeprefix("#")
        if not number.isdecimal():
            raise CommandError(
                f"{options['incident']} is no incident's number; expected one like 17",
                returncode=USAGE,
            )
        explanation = explain.build_account(int(number))
        if explanation is None:
            raise CommandError(f"There is no incident #{number}.", returncode=UNKNOWN)
        if options["json"]:
            self.stdout.write(json.dumps(explanation.as_json(), indent=1))
        else:
            self.stdout.write(account.format_text(explanation))
