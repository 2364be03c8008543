"""`manage.py maintenance add|end|list`: machines that people work on. Nothing is told, and no repair starts there."""

from __future__ import annotations

import getpass
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from incidents import planning
from incidents.models import Silence
from incidents.windows import Draft, Kind
from kintsugi import window_words as words


class Command(BaseCommand):
    help = "Plans, ends and lists maintenance of machines (docs/silencing.md). Slurm's reservations come by themselves."

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True, metavar="add|change|end|list")
        add = acts.add_parser("add", help="keep the faults of machines from people, and repairs off them")
        add.add_argument("machines", nargs="+", help="nodes and switches, such as gn[001-004] leaf-03")
        words.add_making(add)
        change = acts.add_parser("change", help="another end")
        change.add_argument("id", type=int)
        change.add_argument("--reason", default="", help="a new reason; the old one stays if unset")
        end = acts.add_parser("end", help="end it now: what still stands is announced")
        end.add_argument("id", type=int)
        for each in (add, change):
            words.add_times(each)
        for each in (add, change, end):
            each.add_argument("--actor", default=getpass.getuser(), help="who does it, for the record")
        shown = acts.add_parser("list", help="those in force and planned")
        shown.add_argument("--expired", action="store_true", help="those that ended, the latest first")
        shown.add_argument("--json", action="store_true", help="one JSON list (docs/contracts.md)")

    def handle(self, *args: Any, **options: Any) -> None:
        acts = {"add": _added, "change": _changed, "end": _ended, "list": _listed}
        self.stdout.write(acts[options["act"]](options, timezone.now()))


def _added(options: dict[str, Any], now: datetime) -> str:
    start = words.start_of(options, now)
    draft = Draft(
        kind=Kind.MAINTENANCE,
        reason=options["reason"],
        starts_at=start,
        ends_at=words.end_of(options, start),
        machines=planning.machines(" ".join(options["machines"]), planning.known()),
        may_cover_all=options["yes"],
    )
    return words.make(draft, options, now)


def _changed(options: dict[str, Any], now: datetime) -> str:
    outcome = planning.change(
        options["id"],
        ends_at=words.end_of(options, now),
        review_at=None,
        reason=options["reason"],
        actor=options["actor"],
        now=now,
    )
    return words.told(outcome)


def _ended(options: dict[str, Any], now: datetime) -> str:
    return words.told(planning.end(options["id"], actor=options["actor"], now=now))


def _listed(options: dict[str, Any], now: datetime) -> str:
    rows = words.chosen(options, Silence.Kind.MAINTENANCE)
    return words.as_json(rows, now) if options["json"] else "\n".join(words.as_lines(rows, now) or ["None."])
