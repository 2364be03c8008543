"""`manage.py reliability`: the numbers, with the definitions beside them."""

from __future__ import annotations

import json
import textwrap
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime, time
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from incidents.reliability import texts as words
from incidents.reliability.summary import Figures, Summary, Times
from incidents.statistics import impact_statistics, statistics
from incidents.statistics.impact_statistics import ImpactFigures
from kintsugi.management.store import StoreCommand


class Command(StoreCommand):
    help = "MTBF, MTTF, MTTR, MTTD and MTTA per component class, with intervals and definitions."

    def add_arguments(self, parser: ArgumentParser) -> None:
        form = (
            "a date such as 2025-01-31 (midnight in the site's zone) or a time such as"
            " 2025-01-31T12:00+09:00"
        )
        parser.add_argument(
            "--since", metavar="D", help=f"{form}; default: the first machine's entry into service"
        )
        parser.add_argument("--until", metavar="D", help=f"{form}; default: now")
        parser.add_argument(
            "--json", action="store_true", help="one JSON object (docs/reference/contracts.md)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        since = None if options["since"] is None else moment("--since", options["since"])
        now = timezone.now()
        until = now if options["until"] is None else moment("--until", options["until"])
        if until > now:
            raise CommandError(
                f"--until {until.isoformat()} lies in the future: leave it out to count up to now."
                " Hours that have not passed are no hours without failures."
            )
        if since is not None and since >= until:
            raise CommandError(
                f"--since {since.isoformat()} is not before --until {until.isoformat()}."
            )
        summary = statistics.summary(since, until)
        if options["json"]:
            told = {
                **statistics.as_json(summary),
                "impact": impact_statistics.as_json(_impact(summary)),
            }
            self.stdout.write(json.dumps(told, indent=2))
            return
        for line in (*report(summary), *impact_report(summary)):
            self.stdout.write(line)


def _impact(summary: Summary) -> ImpactFigures:
    return impact_statistics.figures(summary.since, summary.until)


def impact_report(summary: Summary) -> list[str]:
    """What the same incidents cost in jobs, and how soon their owners heard of it."""
    lines = ["", "What it cost:"]
    for name, text in impact_statistics.sentences(_impact(summary)):
        lines += _wrapped(name, text)
    for name, text in impact_statistics.DEFINITIONS.items():
        lines += _wrapped(name, text)
    return lines


def moment(option: str, text: str) -> datetime:
    """The time that `text` names; a date or a time without zone is the site's. Raises
    CommandError."""
    try:
        found = parse_datetime(text)
        day = None if found is not None else parse_date(text)
    except ValueError as error:
        raise CommandError(f"{option} {text}: there is no such day or time ({error}).") from error
    if found is None and day is not None:
        found = datetime.combine(day, time())
    if found is None:
        raise CommandError(
            f"{option} {text}: expected a date such as 2025-01-31 or a time such as"
            " 2025-01-31T12:00Z."
        )
    return timezone.make_aware(found) if timezone.is_naive(found) else found


def report(summary: Summary) -> list[str]:
    """The page for people: what was counted, two tables, the same in words, and what each number
    means."""
    since, until = (_local(moment) for moment in (summary.since, summary.until))
    lines = [f"Reliability from {since} to {until}", ""]
    if summary.notice:
        lines += [summary.notice, ""]
    if summary.left_out:
        lines += [words.left_out(summary.left_out), ""]
    rows = [*(row for row in summary.classes if row.failures), summary.overall]
    lines += _table(_HOW_OFTEN, [_how_often(row) for row in rows])
    if summary.overall.failures:
        lines += ["", *_table(_HOW_LONG, [_how_long(row) for row in rows])]
    lines += ["", "In words:"]
    for row in (summary.overall, *summary.classes):
        lines += _wrapped(_name(row), row.sentence)
    lines += ["", *_wrapped("by month", _counts(summary.overall.by_month))]
    lines += _wrapped("cured by", _counts(summary.overall.by_recovery))
    lines += ["", "What the numbers mean:"]
    for name, text in summary.definitions.items():
        lines += _wrapped(name, text)
    return lines


_HOW_OFTEN = ("class", "failures", "exposure", "MTBF (95 %)", "MTTF (95 %)", "trend")
_HOW_LONG = ("class", "restored: median (95 %)", "MTTR (95 %)", "within", "MTTD", "MTTA")
_WIDTH, _MARGIN = 110, 22


def _local(moment: datetime) -> str:
    return timezone.localtime(moment).strftime("%Y-%m-%d %H:%M %Z")


def _name(row: Figures) -> str:
    return row.component.replace("_", " ")


def _how_often(row: Figures) -> tuple[str, ...]:
    return (
        _name(row),
        f"{row.failures:,}" + (f" ({row.open} open)" if row.open else ""),
        f"{row.exposure:,.0f} {row.unit.hours}",
        words.between_failures(row.mtbf),
        words.between_failures(row.mttf),
        words.trend(row),
    )


def _how_long(row: Figures) -> tuple[str, ...]:
    if not row.failures:
        return (_name(row), "-", "-", "-", "-", "-")
    return (
        _name(row),
        words.repair_time(row, row.restore_median),
        words.repair_time(row, row.mttr) if row.restored else "-",
        words.span(row.horizon) if row.restored else "-",
        _detected(row),
        _mean(row.mtta) + (f" ({row.mtta.count} of {row.failures})" if row.mtta.count else ""),
    )


def _detected(row: Figures) -> str:
    """From first known bad to our knowing; where polls found it, at most since their last good
    look."""
    most = row.mttd_most
    return _mean(row.mttd) + (
        f", of {most.count} polled at most {_mean(most)}" if most.count else ""
    )


def _wrapped(name: str, text: str) -> list[str]:
    """`name` in a column of its own, `text` beside it in lines that fit a terminal."""
    label = f"  {name}".ljust(_MARGIN)
    return textwrap.wrap(text, _WIDTH, initial_indent=label, subsequent_indent=" " * _MARGIN)


def _mean(times: Times) -> str:
    return "-" if times.mean is None else words.span(times.mean)


def _counts(counts: dict[str, int]) -> str:
    return (
        ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items()) or "none"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]
