"""Lines that no signature takes, on the command line. They are read here; `draft` alone
writes, into the site's files of the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from django.conf import settings
from django.core.management.base import CommandError
from django.utils import timezone

from detectors.catalog.catalog import CatalogError
from incidents.checks import unread_lines
from incidents.models import UnreadTemplate
from incidents.people import catalog_draft
from kintsugi.cli import exit_codes, output
from kintsugi.cli.incidents import Json, Limit

_FIELDS = {
    "key": "key",
    "program": "program",
    "severity": "severity",
    "lines": "count",
    "machines": "machine_count",
    "since": "first_at",
    "last": "last_at",
    "template": "template",
}
_COLUMNS = tuple(_FIELDS)
_MACHINE_FIELDS = {
    "machine": "machine",
    "lines": "count",
    "since": "first_at",
    "last": "last_at",
    "sample": "sample",
}


def list_unread(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORDS]...", help="all stand in program or template, or name a machine"
        ),
    ] = None,
    limit: Limit = output.MOST_ROWS,
    as_json: Json = False,
) -> None:
    found = unread_lines.list_templates(words or ())
    rows = [output.make_row(template, _FIELDS) for template in found[:limit]]
    output.print_rows(rows, _COLUMNS, as_json=as_json, empty="No unread line.")
    output.print_left_out(len(rows), found.count())


def show_unread(
    key: Annotated[str, typer.Argument(metavar="KEY", help="of `kintsugi unread list`")],
    as_json: Json = False,
) -> None:
    template = find(key)
    facts: dict[str, Any] = output.make_row(template, _FIELDS)
    machines = template.machines.order_by("-last_at", "pk")
    rows = [output.make_row(row, _MACHINE_FIELDS) for row in machines[: output.MOST_ROWS]]
    if as_json:
        output.print_json(facts | {"samples": template.samples, "on": rows})
        return
    output.print_facts(facts, as_json=False)
    output.echo()
    output.echo("\n".join(f"> {sample}" for sample in template.samples))
    output.echo()
    output.print_rows(rows, tuple(_MACHINE_FIELDS), as_json=False, empty="On no machine.")


def draft_row(
    key: Annotated[str, typer.Argument(metavar="KEY", help="of `kintsugi unread list`")],
    harmless: Annotated[
        str, typer.Option(metavar="REASON", help="a [[harmless]] row: why it means nothing")
    ] = "",
    fault_type: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="a [[signature]] row of this fault type")
    ] = "",
    on: Annotated[str, typer.Option(help="what it is a fault of: node, switch, nic, ...")] = "node",
    pattern: Annotated[str, typer.Option(help="in place of that of the template")] = "",
    write: Annotated[bool, typer.Option("--write", help="into KINTSUGI_CATALOG_DIR")] = False,
) -> None:
    """Shows the row and what it would have done to the last week's lines."""
    template = find(key)
    if bool(harmless) == bool(fault_type):
        raise CommandError("Say one of --harmless REASON and --type TYPE.")
    if harmless:
        draft = catalog_draft.draft_harmless(template, harmless, "this site")
    else:
        draft = catalog_draft.draft_signature(template, fault_type, on, pattern)
    directory: Path | None = settings.KINTSUGI["KINTSUGI_CATALOG_DIR"] or None
    output.echo(draft.row)
    try:
        trial = catalog_draft.try_out(draft, directory, timezone.now())
        output.echo(_format_trial(trial))
        if write:
            _write(draft, directory)
    except (CatalogError, OSError) as error:
        raise CommandError(str(error), returncode=exit_codes.FAILED) from error


def _format_trial(trial: catalog_draft.Trial) -> str:
    lines = [f"would have raised {name}: {count} lines" for name, count in trial.raised.items()]
    lines += [f"no longer unread: {name} ({n} lines)" for name, n in trial.silenced.items()]
    lines += [
        f"other faults of the last week would change: {what} ({count})"
        for what, count in trial.changed_faults.items()
    ]
    if trial.takes_nothing:
        lines.append("takes none of the last week's unread lines; give another --pattern")
    return "\n".join([f"In the last week, on {trial.machines} machines:", *lines])


def _write(draft: catalog_draft.RowDraft, directory: Path | None) -> None:
    if directory is None:
        raise CommandError("KINTSUGI_CATALOG_DIR is not set: name a folder for the site's rows.")
    path = catalog_draft.write(draft, directory)
    count = catalog_draft.forget_read(directory, timezone.now())
    output.echo(
        f"Written to {path}. It counts within a minute, without a restart;"
        f" {count} templates are no longer unread."
    )


def find(key: str) -> UnreadTemplate:
    """Raises CommandError where there is none."""
    found = unread_lines.list_templates().filter(key=key).first()
    if found is None:
        raise CommandError(
            f"There is no unread template {key}; `kintsugi unread list` shows them.",
            returncode=exit_codes.FAILED,
        )
    return found
