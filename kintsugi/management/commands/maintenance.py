"""`manage.py maintenance add|end|list`: machines that people work on. Nothing is told, and no
repair starts there."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from incidents.evaluation.windows import Draft, WindowKind
from incidents.maintenance import planning
from incidents.models import Silence
from kintsugi.management import window_texts as words
from kintsugi.management.store import StoreCommand


class Command(StoreCommand):
    help = (
        "Plans, ends and lists maintenance of machines (docs/silencing.md). Slurm's reservations"
        " come by themselves."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True, metavar="add|change|end|list")
        add = acts.add_parser(
            "add", help="keep the faults of machines from people, and repairs off them"
        )
        add.add_argument(
            "machines", nargs="+", help="nodes and switches, such as gn[001-004] leaf-03"
        )
        words.add_making(add)
        change = acts.add_parser("change", help="another end")
        words.add_shared_arguments_and_verbs(acts, add, change)

    def handle(self, *args: Any, **options: Any) -> None:
        acts = {"add": _add, "change": _change, "end": words.end, "list": _list}
        self.stdout.write(acts[options["act"]](options, timezone.now()))


def _add(options: dict[str, Any], now: datetime) -> str:
    try:
        machines = planning.parse_machines(
            " ".join(options["machines"]), planning.get_known_names()
        )
    except ValueError as error:
        raise CommandError(str(error)) from error
    fields = words.get_draft_fields(options, now)
    draft = Draft(kind=WindowKind.MAINTENANCE, machines=machines, **fields)
    return words.make(draft, options, now)


def _change(options: dict[str, Any], now: datetime) -> str:
    return words.change(options, now, review_at=None, ways="--for, --until or --reason")


def _list(options: dict[str, Any], now: datetime) -> str:
    return words.list_windows(options, now, Silence.Kind.MAINTENANCE)
