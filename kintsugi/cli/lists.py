"""Runbooks, modes, the breaker and spares on the command line. They are only read here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer
from django.core.management.base import CommandError
from django.utils import timezone

from incidents.checks import part_statuses
from incidents.models import Spare
from kintsugi import clock
from kintsugi.cli import exit_codes, output
from kintsugi.cli.incidents import Json
from runbooks import services
from runbooks.library import library
from runbooks.models import Breaker, RunbookMode

# As long as incidents may be kept.
_LONGEST = 3650
_INCIDENTS = 5
_PART_COLUMNS = ("part", "host", "state", "seen_at", "began_at", "version", "queues")
_SPARE_FIELDS = {
    "node": "node.name",
    "state": "state",
    "since": "since_at",
    "partitions": "partitions",
    "reservation": "reservation",
}


def show_status(as_json: Json = False) -> None:
    """Ends with 1 where a part does not get on, or none was seen."""
    rows = [asdict(part) for part in part_statuses.list_part_statuses(clock.now())]
    empty = "No part of Kintsugi has written within a day: systemctl status 'kintsugi-*'"
    output.print_rows(rows, _PART_COLUMNS, as_json=as_json, empty=empty)
    troubles = [row["trouble"] for row in rows if row["trouble"]]
    if not as_json:
        for trouble in troubles:
            output.echo(f"\n{trouble}")
    if troubles or not rows:
        raise typer.Exit(exit_codes.FAILED)


def list_runbooks(as_json: Json = False) -> None:
    try:
        books = library.load()
    except library.LibraryError as error:
        raise CommandError(str(error), returncode=exit_codes.FAILED) from error
    rows = []
    for name, book in books.items():
        mode = str(services.get_mode(name))
        rows.append({"name": name, "mode": mode, "version": book.version, "title": book.title})
    columns = ("name", "mode", "version", "title")
    output.print_rows(rows, columns, as_json=as_json, empty="No runbook.")


def _describe_mode(name: str, title: str, step_back: RunbookMode | None) -> dict[str, object]:
    mode = str(services.get_mode(name))
    row: dict[str, object] = {"runbook": name, "mode": mode, "title": title}
    if step_back is None:
        return {**row, "stepped_back_at": None, "stepped_back_why": ""}
    row["stepped_back_at"] = step_back.stepped_back_at
    row["stepped_back_why"] = step_back.stepped_back_why
    return row


def list_modes(as_json: Json = False) -> None:
    own = {row.runbook: row for row in RunbookMode.objects.exclude(stepped_back_at=None)}
    rows: list[dict[str, object]] = []
    for name, title in services.get_runbook_titles().items():
        rows.append(_describe_mode(name, title, own.get(name)))
    ceiling = services.get_site_mode()
    if ceiling is not None:
        title = "no runbook goes further"
        rows.insert(0, {"runbook": "site", "mode": str(ceiling), "title": title})
    output.print_rows(rows, ("runbook", "mode", "title"), as_json=as_json, empty="No runbook.")
    for back in () if as_json else own.values():
        output.echo(
            f"{back.runbook} stepped back to {back.mode} by itself: {back.stepped_back_why}."
            f" A person sets it again: kintsugi mode set {back.runbook} MODE."
        )


def list_wrong_rules(
    days: Annotated[int, typer.Option(min=1, max=_LONGEST, help="of runs that began since")] = 30,
    as_json: Json = False,
) -> None:
    rows = []
    for rule in services.list_wrong_rules(timezone.now() - timedelta(days=days)):
        numbers = list(rule.incidents) if as_json else _format_numbers(rule.incidents)
        rows.append({**asdict(rule), "incidents": numbers})
    columns = ("fault_type", "refuted", "last_at", "incidents")
    empty = f"No fault that was told of was refuted in {days} days."
    output.print_rows(rows, columns, as_json=as_json, empty=empty)


def _format_numbers(numbers: Sequence[int]) -> str:
    shown = " ".join(f"#{number}" for number in numbers[:_INCIDENTS])
    return f"{shown} ..." if len(numbers) > _INCIDENTS else shown


def report_dry_runs(
    runbook: Annotated[str, typer.Argument(help="one of them; without it, each")] = "",
    days: Annotated[int, typer.Option(min=1, max=_LONGEST, help="that began since then")] = 30,
    as_json: Json = False,
) -> None:
    if runbook and runbook not in services.get_runbook_titles():
        raise CommandError(f"There is no runbook {runbook}.", returncode=exit_codes.FAILED)
    now = timezone.now()
    since = now - timedelta(days=days)
    episodes = services.load_episodes(since, now, runbook=runbook)
    reports = {
        name: services.compute_report(found)
        for name, found in services.group_by_runbook(episodes).items()
    }
    if as_json:
        drains = services.list_external_drains(since, now, episodes)
        report_rows = {name: asdict(report) for name, report in reports.items()}
        episode_rows = [asdict(episode) for episode in episodes]
        drain_rows = [asdict(drain) for drain in drains]
        output.print_json(
            {
                "since": since,
                "until": now,
                "runbooks": report_rows,
                "episodes": episode_rows,
                "external_drains": drain_rows,
            }
        )
        return
    for name, report in reports.items():
        output.echo(name)
        for sentence in services.describe_report(report):
            output.echo(f"  {sentence}")
    if not reports:
        output.echo(f"No runbook in shadow would have drained a node in {days} days.")


def show_breaker(as_json: Json = False) -> None:
    """Exits 1 while it has tripped, so that a script can ask."""
    tripped = Breaker.objects.filter(closed_at=None).first()
    facts = {
        "has_tripped": tripped is not None,
        "since": tripped.tripped_at if tripped is not None else None,
        "why": tripped.why if tripped is not None else None,
    }
    output.print_facts(facts, as_json=as_json)
    if tripped is not None:
        raise typer.Exit(exit_codes.FAILED)


def list_spares(as_json: Json = False) -> None:
    rows = []
    for spare in Spare.objects.select_related("node", "stands_for"):
        stands_for = spare.stands_for.name if spare.stands_for is not None else None
        rows.append(output.make_row(spare, _SPARE_FIELDS) | {"stands_for": stands_for})
    columns = ("node", "state", "stands_for", "since", "partitions", "reservation")
    output.print_rows(rows, columns, as_json=as_json, empty="No spare.")
