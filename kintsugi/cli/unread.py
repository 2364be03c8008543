"""Lines that no signature takes, on the command line. They are read here, never changed."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from django.core.management.base import CommandError

from incidents.checks import unread_lines
from incidents.models import UnreadTemplate
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
    typer.echo()
    typer.echo("\n".join(f"> {sample}" for sample in template.samples))
    typer.echo()
    output.print_rows(rows, tuple(_MACHINE_FIELDS), as_json=False, empty="On no machine.")


def find(key: str) -> UnreadTemplate:
    """Raises CommandError where there is none."""
    found = unread_lines.list_templates().filter(key=key).first()
    if found is None:
        raise CommandError(
            f"There is no unread template {key}; `kintsugi unread list` shows them.",
            returncode=exit_codes.FAILED,
        )
    return found
