"""`explain` and `parse`: what detectors make of text. They need neither settings nor database."""

from __future__ import annotations

import typer

from detectors.__main__ import main


def explain(context: typer.Context) -> None:
    raise typer.Exit(main(["explain", *context.args]))


def parse(context: typer.Context) -> None:
    raise typer.Exit(main(["parse", *context.args]))
