"""`manage.py preflight`: what arming needs, looked at now. Touches nothing."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from django.core.management.base import CommandParser

from kintsugi import clock, startup
from kintsugi.clients import wiring
from kintsugi.management.store import StoreCommand
from runbooks.people import preflight


class Command(StoreCommand):
    help = (
        "Checks what arming a runbook needs: Slurm's settings, privileges, access to nodes. Exits 1"
        " on a problem."
    )
    requires_system_checks = (startup.CONFIGURATION, startup.SERVING)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")

    def handle(self, *args: Any, **options: Any) -> None:
        checks = [*preflight.run_checks(wiring.build_world()), preflight.check_parts(clock.now())]
        is_ready = all(check.is_ok for check in checks)
        if options["json"]:
            points = [dataclasses.asdict(check) for check in checks]
            self.stdout.write(json.dumps({"is_ready": is_ready, "checks": points}, indent=1))
        else:
            for check in checks:
                self.stdout.write(
                    f"{'ok' if check.is_ok else 'problem':<8} {check.name}: {check.found}"
                    f" {check.todo}".rstrip()
                )
            self.stdout.write(
                "Ready to be armed."
                if is_ready
                else "Not ready: runbooks stay in shadow or approval."
            )
        if not is_ready:
            sys.exit(1)
