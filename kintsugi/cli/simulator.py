"""`simulator run`: the demonstration, where the simulator is installed."""

from __future__ import annotations

import importlib.util
import runpy
import sys

import typer
from django.core.management.base import CommandError

from kintsugi.cli import exit_codes


def run_simulator(context: typer.Context) -> None:
    """Runs the demonstration's supervisor, which reads all further words."""
    if importlib.util.find_spec("fixtures") is None:
        raise CommandError(
            "The simulator is not installed: install kintsugi[simulator].",
            returncode=exit_codes.USAGE,
        )
    sys.argv[1:] = context.args
    runpy.run_module("fixtures.demo", run_name="__main__", alter_sys=True)
