"""`manage.py silence add|change|end|list`: what is not told to people for a time. Faults are recorded all the same."""

from __future__ import annotations

import getpass
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from incidents import planning
from incidents.models import Silence
from incidents.windows import Draft, Kind
from kintsugi import window_words as words
from kintsugi.typed_times import moment


class Command(BaseCommand):
    help = "Makes, changes, ends and lists silences and shelves (docs/silencing.md)."

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True, metavar="add|change|end|list")
        add = acts.add_parser("add", help="keep faults from people until an end or a review")
        add.add_argument("--resource", default="", help="a path or pattern such as node/gn042, node/gn0*")
        add.add_argument("--type", default="", help="a fault type or pattern such as nic.link.*")
        add.add_argument("--shelf", action="store_true", help="a known standing fault: needs --resource and --type")
        words.add_making(add)
        change = acts.add_parser("change", help="another end or review")
        change.add_argument("id", type=int)
        change.add_argument("--reason", default="", help="a new reason; the old one stays if unset")
        end = acts.add_parser("end", help="end it now: what still stands is announced")
        end.add_argument("id", type=int)
        for each in (add, change):
            words.add_times(each)
            each.add_argument("--review", metavar="T", help="when to ask whether it is still right; 30 days at most")
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
        kind=Kind.SHELF if options["shelf"] else Kind.SILENCE,
        reason=options["reason"],
        starts_at=start,
        ends_at=words.end_of(options, start),
        review_at=_review(options),
        resource=options["resource"],
        fault_type=options["type"],
        may_cover_all=options["yes"],
    )
    return words.make(draft, options, now)


def _changed(options: dict[str, Any], now: datetime) -> str:
    ends_at, review_at = words.end_of(options, now), _review(options)
    if ends_at is None and review_at is None and not options["reason"]:
        raise CommandError("Say what changes: --for, --until, --review or --reason.")
    row = Silence.objects.filter(pk=options["id"]).first()
    if row is not None and ends_at is None and review_at is None:
        ends_at, review_at = row.ends_at, row.review_at
    outcome = planning.change(
        options["id"],
        ends_at=ends_at,
        review_at=review_at,
        reason=options["reason"],
        actor=options["actor"],
        now=now,
    )
    return words.told(outcome)


def _ended(options: dict[str, Any], now: datetime) -> str:
    return words.told(planning.end(options["id"], actor=options["actor"], now=now))


def _listed(options: dict[str, Any], now: datetime) -> str:
    rows = words.chosen(options, Silence.Kind.SILENCE, Silence.Kind.SHELF)
    return words.as_json(rows, now) if options["json"] else "\n".join(words.as_lines(rows, now) or ["None."])


def _review(options: dict[str, Any]) -> datetime | None:
    return moment("--review", options["review"]) if options["review"] else None
