"""Runs a management command as a verb of `kintsugi`, with the exit codes of all verbs."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from django.core.management import BaseCommand, get_commands, load_command_class
from django.core.management.base import CommandError

from kintsugi.cli import exit_codes, site
from kintsugi.cli.grammar import Needs, Verb

_OF_THE_SIMULATOR = ("demo", "inject", "scenario")
_HIDDEN_OPTIONS = {
    "--version",
    "--verbosity",
    "--settings",
    "--pythonpath",
    "--traceback",
    "--no-color",
    "--force-color",
    "--skip-checks",
}


def run(verb: Verb, words: Sequence[str]) -> None:
    """Parses `words` with the command's own parser and runs it. Raises CommandError, SystemExit."""
    name, *first = verb.manage
    spoken = " ".join(verb.words)
    command = _load(name)
    parser = command.create_parser("kintsugi", name if first else spoken)
    try:
        options = vars(parser.parse_args([*first, *words]))
    except CommandError as error:
        text = str(error).removeprefix("Error: ")
        problem = f"{text}\nkintsugi {spoken} --help tells what it takes."
        raise CommandError(problem, returncode=exit_codes.USAGE) from error
    site.begin(verb)
    command.execute(*options.pop("args", ()), **options)


def manage(context: typer.Context) -> None:
    """`kintsugi manage COMMAND ...`: without a command, the names of all."""
    if not context.args or context.args[0] in ("-h", "--help"):
        typer.echo(
            "kintsugi manage COMMAND [WORDS]. Commands: " + ", ".join(sorted(get_commands()))
        )
        return
    name, *words = context.args
    run(
        Verb(("manage", name), "", manage=(name,), is_change=True, needs=Needs.SETTINGS),
        words,
    )


def _load(name: str) -> BaseCommand:
    app = get_commands().get(name)
    if app is None and name in _OF_THE_SIMULATOR:
        raise CommandError(
            f"{name} belongs to the simulator: install kintsugi[simulator].",
            returncode=exit_codes.USAGE,
        )
    if app is None:
        raise CommandError(
            f"There is no command {name}; `kintsugi manage` names all.",
            returncode=exit_codes.USAGE,
        )
    command = app if isinstance(app, BaseCommand) else load_command_class(app, name)
    command.suppressed_base_arguments = _HIDDEN_OPTIONS
    return command
