"""What the commands `silence` and `maintenance` have in common: who acts, what is printed, how it
is refused."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from incidents.evaluation.windows import Draft, DraftField
from incidents.maintenance import active_windows, planning
from incidents.maintenance.planning import NotPlanned, PlannedWindow
from incidents.models import Silence
from incidents.vocabulary.changes import Refused
from kintsugi.management.typed_times import length, moment

_OPTIONS: dict[DraftField, str] = {
    DraftField.WHERE: "where",
    DraftField.FAULT_TYPE: "--type",
    DraftField.REASON: "--reason",
    DraftField.STARTS_AT: "--starts",
    DraftField.ENDS_AT: "--for or --until",
    DraftField.REVIEW_AT: "--review",
    DraftField.EVERYTHING: "--yes",
}


def add_times(parser: CommandParser) -> None:
    parser.add_argument(
        "--for", dest="lasts", metavar="TIME", help="how long, such as 90m, 2h or 3d"
    )
    parser.add_argument(
        "--until", metavar="T", help="its end, such as '2025-01-31 14:00' in the site's zone"
    )


def add_making(parser: CommandParser) -> None:
    parser.add_argument("--starts", metavar="T", help="when it begins; now if unset")
    parser.add_argument("--reason", default="", help="why; everyone who sees it will ask")
    parser.add_argument("--yes", action="store_true", help="it may cover everything")
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what it would keep from people now"
    )


def add_others(acts: Any, add: CommandParser, change: CommandParser) -> None:
    """What every window has beside how it is made: another reason, an end, and a list."""
    change.add_argument("id", type=int)
    change.add_argument("--reason", default="", help="a new reason; the old one stays if unset")
    end = acts.add_parser("end", help="end it now: what still stands is announced")
    end.add_argument("id", type=int)
    for each in (add, change):
        add_times(each)
    for each in (add, change, end):
        each.add_argument("--actor", default=getpass.getuser(), help="who does it, for the record")
    shown = acts.add_parser("list", help="those in force and planned")
    shown.add_argument("--expired", action="store_true", help="those that ended, the latest first")
    shown.add_argument(
        "--json", action="store_true", help="one JSON list (docs/reference/contracts.md)"
    )


def start_of(options: dict[str, Any], now: datetime) -> datetime:
    return moment("--starts", options["starts"]) if options["starts"] else now


def end_of(options: dict[str, Any], start: datetime) -> datetime | None:
    """Raises CommandError when both ways are given."""
    if options["lasts"] and options["until"]:
        raise CommandError("Give --for or --until, not both.")
    if options["until"]:
        return moment("--until", options["until"])
    return start + length("--for", options["lasts"]) if options["lasts"] else None


def make(draft: Draft, options: dict[str, Any], now: datetime) -> str:
    """Makes the window, or says what it would keep. Raises CommandError with every problem."""
    if options["dry_run"]:
        found = planning.refusals(draft, now)
        return (
            format_outcome(NotPlanned(tuple(found))) if found else planning.preview(draft, now).text
        )
    outcome = planning.plan(draft, author=options["actor"], now=now)
    text = format_outcome(outcome)
    kept = outcome.incidents if isinstance(outcome, PlannedWindow) else 0
    return f"{text} {kept} open incidents are kept from people by it."


def change(options: dict[str, Any], now: datetime, *, review_at: datetime | None, ways: str) -> str:
    """Another end, review or reason; what is not given stays. Raises CommandError when nothing is
    given."""
    ends_at = end_of(options, now)
    if ends_at is None and review_at is None:
        if not options["reason"]:
            raise CommandError(f"Say what changes: {ways}.")
        row = Silence.objects.filter(pk=options["id"]).first()
        if row is not None:
            ends_at, review_at = row.ends_at, row.review_at
    return format_outcome(
        planning.change(
            options["id"],
            ends_at=ends_at,
            review_at=review_at,
            reason=options["reason"],
            actor=options["actor"],
            now=now,
        )
    )


def end(options: dict[str, Any], now: datetime) -> str:
    return format_outcome(planning.end(options["id"], actor=options["actor"], now=now))


def listed(options: dict[str, Any], now: datetime, *kinds: Silence.Kind) -> str:
    rows = chosen(options, *kinds)
    return as_json(rows, now) if options["json"] else "\n".join(as_lines(rows, now) or ["None."])


def format_outcome(outcome: PlannedWindow | NotPlanned | Refused) -> str:
    if isinstance(outcome, NotPlanned):
        raise CommandError(
            "\n".join(f"{_OPTIONS[problem.field]}: {problem.text}" for problem in outcome.problems)
        )
    if isinstance(outcome, Refused):
        raise CommandError(outcome.reason)
    return outcome.text


def chosen(options: dict[str, Any], *kinds: Silence.Kind) -> list[Silence]:
    """Those in force and planned; with `--expired` the ended ones, the latest first."""
    rows = Silence.objects.filter(kind__in=kinds, ended_at__isnull=not options["expired"])
    return list(rows.order_by("-ended_at" if options["expired"] else "starts_at", "pk")[:1000])


def as_json(rows: Iterable[Silence], now: datetime) -> str:
    return json.dumps([_json(row, now) for row in rows], indent=2)


def as_lines(rows: Iterable[Silence], now: datetime) -> list[str]:
    """One line each, times in the site's zone."""
    lines = []
    for row in rows:
        parts = [f"{row.pk:>5}", f"{_state(row, now):<8}", active_windows.as_window(row).what]
        parts += [f"from {_local(row.starts_at)}"]
        end = row.ended_at or row.ends_at
        parts += [f"until {_local(end)}"] if end is not None else []
        parts += [f"review {_local(row.review_at)}"] if row.review_at and not row.ended_at else []
        lines.append("  ".join([*parts, f"by {row.author}: {row.reason}"]))
    return lines


def _state(row: Silence, now: datetime) -> str:
    if row.ended_at is not None:
        return "ended"
    return "in force" if active_windows.as_window(row).is_in_force(now) else "planned"


def _json(row: Silence, now: datetime) -> dict[str, Any]:
    times = ("starts_at", "ends_at", "review_at", "ended_at")
    return {
        "id": row.pk,
        "kind": row.kind,
        "state": _state(row, now).replace(" ", "_"),
        "what": active_windows.as_window(row).what,
        "resource": row.resource,
        "machines": row.machines,
        "fault_type": row.fault_type,
        "reason": row.reason,
        "author": row.author,
        "origin": row.origin,
        **{
            name: at.isoformat() if (at := getattr(row, name)) is not None else None
            for name in times
        },
        "ended_by": row.ended_by,
        "incidents": row.incidents.count(),
    }


def _local(at: datetime) -> str:
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M %Z}"
