"""`manage.py silence add|change|end|list`: what is not told to people for a time. Faults are
recorded all the same."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from incidents.evaluation.windows import Draft, WindowKind
from incidents.models import Silence
from kintsugi.management import window_texts as words
from kintsugi.management.store import StoreCommand
from kintsugi.management.typed_times import parse_moment


class Command(StoreCommand):
    help = "Makes, changes, ends and lists silences and shelves (docs/silencing.md)."

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True, metavar="add|change|end|list")
        add = acts.add_parser("add", help="keep faults from people until an end or a review")
        add.add_argument(
            "--resource", default="", help="a path or pattern such as node/gn042, node/gn0*"
        )
        add.add_argument("--type", default="", help="a fault type or pattern such as nic.link.*")
        add.add_argument(
            "--shelf",
            action="store_true",
            help="a known standing fault: needs --resource and --type",
        )
        words.add_making(add)
        change = acts.add_parser("change", help="another end or review")
        words.add_shared_arguments_and_verbs(acts, add, change)
        for act in (add, change):
            act.add_argument(
                "--review",
                metavar="T",
                help="when to ask whether it is still right; 30 days at most",
            )

    def handle(self, *args: Any, **options: Any) -> None:
        acts = {"add": _add, "change": _change, "end": words.end, "list": _list}
        self.stdout.write(acts[options["act"]](options, timezone.now()))


def _add(options: dict[str, Any], now: datetime) -> str:
    kind = WindowKind.SHELF if options["shelf"] else WindowKind.SILENCE
    draft = Draft(
        kind=kind,
        resource=options["resource"],
        fault_type=options["type"],
        review_at=_parse_review(options),
        **words.get_draft_fields(options, now),
    )
    return words.make(draft, options, now)


def _change(options: dict[str, Any], now: datetime) -> str:
    ways = "--for, --until, --review or --reason"
    return words.change(options, now, review_at=_parse_review(options), ways=ways)


def _list(options: dict[str, Any], now: datetime) -> str:
    return words.list_windows(options, now, Silence.Kind.SILENCE, Silence.Kind.SHELF)


def _parse_review(options: dict[str, Any]) -> datetime | None:
    return parse_moment("--review", options["review"]) if options["review"] else None
