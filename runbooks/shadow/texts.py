"""The dry-run report in sentences, for the page and the command. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from runbooks.shadow.report import DryRunReport, Share


def describe_report(report: DryRunReport) -> Iterator[str]:
    """The three numbers, and what stands in none of them."""
    well, died, held = report.well, report.died, report.held
    yield (f"Drains of nodes that were well: {_format_share(well)}.{_format_spared(report.spared)}")
    on_them = ""
    if died.count:
        on_them = (
            f" {_format_count(report.jobs_died, 'job')} died there, and they took jobs for"
            f" {report.hours:.1f} node-hours more"
        )
    yield (
        "Broken nodes on which jobs died that began after Kintsugi would have drained them:"
        f" {_format_share(died)}.{on_them}{'.' if on_them else ''}"
    )
    by = f", by {' and '.join(report.guards)}".replace("_", " ") if report.guards else ""
    yield (
        f"Broken nodes that the guards would have kept in service: {_format_share(held)};"
        f" {report.held_hours:.1f} node-hours{by}."
    )
    if report.unknown or report.left_out:
        unknown = _format_count(report.unknown, "node")
        left_out = _format_count(report.left_out, "node")
        yield (
            f"In none of these: {unknown} that did not show whether the fault was there,"
            f" {left_out} that people had in hand already."
        )


def _format_spared(count: int) -> str:
    if not count:
        return ""
    were = "was" if count == 1 else "were"
    return f" {count} more that {were} well would have stayed in service."


def _format_share(share: Share) -> str:
    limits = f"95 % interval {share.low:.1%} to {share.high:.1%}"
    return f"{share.count} of {share.of} ({limits})"


def _format_count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
