"""`manage.py stop --reason WHY`: nothing disruptive is done anywhere until `manage.py stop
--release`."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from kintsugi.configuration.schema import store_name
from kintsugi.management.person import add_actor
from kintsugi.management.store import StoreCommand
from runbooks import services


class Command(StoreCommand):
    help = (
        "Engages the stop switch, or releases it: while it is engaged no node is drained or"
        " rebooted."
    )
    # What is wrong with a setting elsewhere must not keep anybody from stopping.
    requires_system_checks = ()
    # Nor must tables that wait for their migration, in the middle of an upgrade.
    works_with_earlier_tables = True

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--release", action="store_true", help="let runs go on")
        parser.add_argument(
            "--give-nothing-back",
            action="store_true",
            help="also end the runs under way: their nodes stay drained, for a person",
        )
        parser.add_argument(
            "--reason", default="", help="why; everyone who sees the switch will ask"
        )
        add_actor(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["release"] and options["give_nothing_back"]:
            raise CommandError("--release lets nodes be given back again: name one of the two.")
        now, actor, reason = timezone.now(), options["actor"], options["reason"]
        if options["release"]:
            outcome = services.release(actor=actor, note=reason, now=now)
        else:
            gives_back = not options["give_nothing_back"]
            outcome = services.stop(reason, actor=actor, now=now, gives_back=gives_back)
        if isinstance(outcome, services.ControlRefused):
            raise CommandError(outcome.reason)
        self.stdout.write(f"{outcome.text} ({store_name()})")
