"""`manage.py breaker [--close --reason WHY]`: whether the breaker has tripped, and why; or a person
closes it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from kintsugi.management.person import add_actor
from kintsugi.management.store import StoreCommand
from runbooks.models import Breaker


class Command(StoreCommand):
    help = "Shows whether the breaker has tripped, or closes it once a person has looked at why."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--close", action="store_true", help="let nodes be taken out of service again"
        )
        parser.add_argument(
            "--reason", default="", help="what was found; whoever reads of the trip next will ask"
        )
        add_actor(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["close"]:
            tripped = Breaker.objects.filter(closed_at=None).first()
            self.stdout.write(
                f"The breaker {tripped}." if tripped is not None else "The breaker has not tripped."
            )
            return
        self.require_serving()
        from runbooks import services  # noqa: PLC0415  (runbooks and steps: a look needs none)

        outcome = services.close_breaker(
            options["reason"], actor=options["actor"], now=timezone.now()
        )
        if isinstance(outcome, services.ControlRefused):
            raise CommandError(outcome.reason)
        self.stdout.write(outcome.text)
