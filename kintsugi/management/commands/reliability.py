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
        since = None if options["since"] is None else parse_moment("--since", options["since"])
        now = timezone.now()
        until = now if options["until"] is None else parse_moment("--until", options["until"])
        if until > now:
            raise CommandError(
                f"--until {until.isoformat()} lies in the future: leave it out to count up to now."
                " Hours that have not passed are no hours without failures."
            )
        if since is not None and since >= until:
            raise CommandError(
                f"--since {since.isoformat()} is not before --until {until.isoformat()}."
            )
        summary = statistics.compute_summary(since, until)
        if options["json"]:
            impact = impact_statistics.as_json(_compute_impact(summary))
            fields = {**statistics.as_json(summary), "impact": impact}
            self.stdout.write(json.dumps(fields, indent=2))
            return
        for line in (*format_report(summary), *format_impact_report(summary)):
            self.stdout.write(line)


def _compute_impact(summary: Summary) -> ImpactFigures:
    return impact_statistics.compute_figures(summary.since, summary.until)


def format_impact_report(summary: Summary) -> list[str]:
    """What the same incidents cost in jobs, and how soon their owners heard of it."""
    lines = ["", "What it cost:"]
    for name, text in impact_statistics.format_sentences(_compute_impact(summary)):
        lines += _wrap_paragraph(name, text)
    for name, text in impact_statistics.DEFINITIONS.items():
        lines += _wrap_paragraph(name, text)
    return lines


def parse_moment(option: str, text: str) -> datetime:
    """The time that `text` names; a date or a time without zone is the site's. Raises
    CommandError."""
    try:
        parsed = _parse(text)
    except ValueError as error:
        raise CommandError(f"{option} {text}: there is no such day or time ({error}).") from error
    if parsed is None:
        raise CommandError(
            f"{option} {text}: expected a date such as 2025-01-31 or a time such as"
            " 2025-01-31T12:00Z."
        )
    return timezone.make_aware(parsed) if timezone.is_naive(parsed) else parsed


def _parse(text: str) -> datetime | None:
    """A day begins at midnight. Raises ValueError for a day or time that does not exist."""
    parsed = parse_datetime(text)
    if parsed is not None:
        return parsed
    day = parse_date(text)
    return datetime.combine(day, time()) if day is not None else None


def format_report(summary: Summary) -> list[str]:
    """The page for people: what was counted, two tables, the same in words, and what each number
    means."""
    since, until = _format_minute(summary.since), _format_minute(summary.until)
    lines = [f"Reliability from {since} to {until}", ""]
    if summary.notice:
        lines += [summary.notice, ""]
    if summary.left_out:
        lines += [words.format_left_out(summary.left_out), ""]
    figures = [row for row in summary.classes if row.failures]
    figures.append(summary.overall)
    lines += _format_table(_HOW_OFTEN, [_format_frequency_cells(row) for row in figures])
    if summary.overall.failures:
        lines += ["", *_format_table(_HOW_LONG, [_format_duration_cells(row) for row in figures])]
    lines += ["", "In words:"]
    for row in (summary.overall, *summary.classes):
        lines += _wrap_paragraph(_name(row), row.sentence)
    lines += ["", *_wrap_paragraph("by month", _format_counts(summary.overall.by_month))]
    lines += _wrap_paragraph("cured by", _format_counts(summary.overall.by_recovery))
    lines += ["", "What the numbers mean:"]
    for name, text in summary.definitions.items():
        lines += _wrap_paragraph(name, text)
    return lines


_HOW_OFTEN = ("class", "failures", "exposure", "MTBF (95 %)", "MTTF (95 %)", "trend")
_HOW_LONG = ("class", "restored: median (95 %)", "MTTR (95 %)", "within", "MTTD", "MTTA")
_WIDTH, _MARGIN = 110, 22


def _format_minute(at: datetime) -> str:
    return timezone.localtime(at).strftime("%Y-%m-%d %H:%M %Z")


def _name(row: Figures) -> str:
    return row.component.replace("_", " ")


def _format_frequency_cells(row: Figures) -> list[str]:
    is_open = f" ({row.open} open)" if row.open else ""
    mtbf, mttf = words.format_between_failures(row.mtbf), words.format_between_failures(row.mttf)
    exposure = f"{row.exposure:,.0f} {row.unit.hours}"
    return [_name(row), f"{row.failures:,}{is_open}", exposure, mtbf, mttf, words.format_trend(row)]


def _format_duration_cells(row: Figures) -> list[str]:
    if not row.failures:
        return [_name(row), "-", "-", "-", "-", "-"]
    restored = words.repair_time(row, row.restore_median)
    mttr = words.repair_time(row, row.mttr) if row.restored else "-"
    horizon = words.format_span(row.horizon) if row.restored else "-"
    return [
        _name(row),
        restored,
        mttr,
        horizon,
        _format_time_to_detect(row),
        _format_time_to_acknowledge(row),
    ]


def _format_time_to_detect(row: Figures) -> str:
    """From first known bad to our knowing; where polls found it, at most since their last good
    look."""
    mean, most = _format_mean(row.mttd), row.mttd_most
    if not most.count:
        return mean
    return f"{mean}, of {most.count} polled at most {_format_mean(most)}"


def _format_time_to_acknowledge(row: Figures) -> str:
    mean, count = _format_mean(row.mtta), row.mtta.count
    return f"{mean} ({count} of {row.failures})" if count else mean


def _wrap_paragraph(name: str, text: str) -> list[str]:
    """`name` in a column of its own, `text` beside it in lines that fit a terminal."""
    label = f"  {name}".ljust(_MARGIN)
    return textwrap.wrap(text, _WIDTH, initial_indent=label, subsequent_indent=" " * _MARGIN)


def _format_mean(times: Times) -> str:
    return "-" if times.mean is None else words.format_span(times.mean)


def _format_counts(counts: dict[str, int]) -> str:
    texts = [f"{name.replace('_', ' ')} {count}" for name, count in counts.items()]
    return ", ".join(texts) or "none"


def _format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    columns = zip(head, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    title = _format_row(head, widths)
    lines = [_format_row(row, widths) for row in rows]
    return [title, "-" * len(title), *lines]


def _format_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()
