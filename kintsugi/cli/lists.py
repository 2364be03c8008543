"""Runbooks, modes, the breaker and spares on the command line. They are only read here."""

from __future__ import annotations

import typer
from django.core.management.base import CommandError

from incidents.models import Spare
from kintsugi.cli import exit_codes, output
from kintsugi.cli.incidents import Json
from runbooks import services
from runbooks.library import library
from runbooks.models import Breaker

_SPARE_FIELDS = {
    "node": "node.name",
    "state": "state",
    "since": "since_at",
    "partitions": "partitions",
    "reservation": "reservation",
}


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


def list_modes(as_json: Json = False) -> None:
    rows = [
        {"runbook": name, "mode": str(services.get_mode(name)), "title": title}
        for name, title in services.get_runbook_titles().items()
    ]
    ceiling = services.get_site_mode()
    if ceiling is not None:
        title = "no runbook goes further"
        rows.insert(0, {"runbook": "site", "mode": str(ceiling), "title": title})
    output.print_rows(rows, ("runbook", "mode", "title"), as_json=as_json, empty="No runbook.")


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
