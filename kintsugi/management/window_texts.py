"""What the commands `silence` and `maintenance` have in common: who acts, what is printed, how it
is refused."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from incidents.evaluation.windows import Draft, DraftField
from incidents.maintenance import active_windows, planning
from incidents.maintenance.planning import NotPlanned, PlannedWindow
from incidents.models import Silence
from incidents.vocabulary.changes import Refused
from kintsugi.management.person import add_actor
from kintsugi.management.typed_times import parse_length, parse_moment

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


def add_shared_arguments_and_verbs(acts: Any, add: CommandParser, change: CommandParser) -> None:
    """What every window has beside how it is made: another reason, an end, and a list."""
    change.add_argument("id", type=int)
    change.add_argument("--reason", default="", help="a new reason; the old one stays if unset")
    end = acts.add_parser("end", help="end it now: what still stands is announced")
    end.add_argument("id", type=int)
    add_times(add)
    add_times(change)
    for act in (add, change, end):
        add_actor(act)
    listing = acts.add_parser("list", help="those in force and planned")
    listing.add_argument(
        "--expired", action="store_true", help="those that ended, the latest first"
    )
    listing.add_argument(
        "--json", action="store_true", help="one JSON list (docs/reference/contracts.md)"
    )


def start_of(options: dict[str, Any], now: datetime) -> datetime:
    return parse_moment("--starts", options["starts"]) if options["starts"] else now


def end_of(options: dict[str, Any], start: datetime) -> datetime | None:
    """Raises CommandError when both ways are given."""
    if options["lasts"] and options["until"]:
        raise CommandError("Give --for or --until, not both.")
    if options["until"]:
        return parse_moment("--until", options["until"])
    return start + parse_length("--for", options["lasts"]) if options["lasts"] else None


def get_draft_fields(options: dict[str, Any], now: datetime) -> dict[str, Any]:
    """What every draft has. Raises CommandError."""
    start = start_of(options, now)
    return {
        "reason": options["reason"],
        "starts_at": start,
        "ends_at": end_of(options, start),
        "may_cover_all": options["yes"],
    }


def make(draft: Draft, options: dict[str, Any], now: datetime) -> str:
    """Makes the window, or says what it would keep. Raises CommandError with every problem."""
    if options["dry_run"]:
        problems = planning.list_refusals(draft, now)
        if problems:
            return format_outcome(NotPlanned(tuple(problems)))
        return planning.preview(draft, now).text
    outcome = planning.plan(draft, author=options["actor"], now=now)
    text = format_outcome(outcome)
    incidents = outcome.incidents if isinstance(outcome, PlannedWindow) else 0
    return f"{text} {incidents} open incidents are kept from people by it."


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
    outcome = planning.change(
        options["id"],
        ends_at=ends_at,
        review_at=review_at,
        reason=options["reason"],
        actor=options["actor"],
        now=now,
    )
    return format_outcome(outcome)


def end(options: dict[str, Any], now: datetime) -> str:
    outcome = planning.end(options["id"], actor=options["actor"], now=now)
    return format_outcome(outcome)


def list_windows(options: dict[str, Any], now: datetime, *kinds: Silence.Kind) -> str:
    windows = _get_windows(kinds, is_expired=options["expired"])
    if options["json"]:
        return json.dumps([_as_json(window, now) for window in windows], indent=2)
    lines = [_format_line(window, now) for window in windows]
    return "\n".join(lines) or "None."


def format_outcome(outcome: PlannedWindow | NotPlanned | Refused) -> str:
    if isinstance(outcome, NotPlanned):
        lines = [f"{_OPTIONS[problem.field]}: {problem.text}" for problem in outcome.problems]
        raise CommandError("\n".join(lines))
    if isinstance(outcome, Refused):
        raise CommandError(outcome.reason)
    return outcome.text


def _get_windows(kinds: tuple[Silence.Kind, ...], *, is_expired: bool) -> list[Silence]:
    """Those in force and planned, or the ended ones, the latest first."""
    windows = Silence.objects.filter(kind__in=kinds, ended_at__isnull=not is_expired)
    order = "-ended_at" if is_expired else "starts_at"
    return list(windows.order_by(order, "pk")[:1000])


def _format_line(window: Silence, now: datetime) -> str:
    """Times in the site's zone."""
    what = active_windows.make_window(window).what
    parts = [f"{window.pk:>5}", f"{_get_state(window, now):<8}", what]
    parts.append(f"from {_format_minute(window.starts_at)}")
    ends_at = window.ended_at or window.ends_at
    if ends_at is not None:
        parts.append(f"until {_format_minute(ends_at)}")
    if window.review_at and not window.ended_at:
        parts.append(f"review {_format_minute(window.review_at)}")
    parts.append(f"by {window.author}: {window.reason}")
    return "  ".join(parts)


def _get_state(window: Silence, now: datetime) -> str:
    if window.ended_at is not None:
        return "ended"
    return "in force" if active_windows.make_window(window).is_in_force(now) else "planned"


def _as_json(window: Silence, now: datetime) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": window.pk, "kind": window.kind}
    fields["state"] = _get_state(window, now).replace(" ", "_")
    fields["what"] = active_windows.make_window(window).what
    for name in ("resource", "machines", "fault_type", "reason", "author", "origin"):
        fields[name] = getattr(window, name)
    for name in ("starts_at", "ends_at", "review_at", "ended_at"):
        time: datetime | None = getattr(window, name)
        fields[name] = time.isoformat() if time is not None else None
    fields["ended_by"] = window.ended_by
    fields["incidents"] = window.incidents.count()
    return fields


def _format_minute(time: datetime) -> str:
    return f"{timezone.localtime(time):%Y-%m-%d %H:%M %Z}"
