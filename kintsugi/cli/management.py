"""Runs a management command as a verb of `kintsugi`, with the exit codes of all verbs."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from functools import partial
from typing import Any

import typer
from django.core.management import BaseCommand, get_commands, load_command_class
from django.core.management.base import CommandError

from kintsugi.cli import exit_codes, output, site
from kintsugi.cli.grammar import Needs, Verb
from kintsugi.management.store import StoreCommand

_ENDLESS = ("up", "receive")
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
    """Parses `words` with the command's own parser and runs it. Raises CommandError, SystemExit.

    Every command that ends takes `--json`; where it has no JSON of its own, `_run_as_json` tells
    what came of it.
    """
    name, *first = verb.manage
    spoken = " ".join(verb.words)
    command = _load(name)
    parser = command.create_parser("kintsugi", name if first else spoken)
    leaf = _find_leaf_parser(parser, [*first, *words])
    has_own_json = any("--json" in action.option_strings for action in leaf._actions)
    is_answer = name not in _ENDLESS and not has_own_json
    if is_answer:
        leaf.add_argument("--json", action="store_true", help="print one JSON object")
    try:
        options = vars(parser.parse_args([*first, *words]))
    except CommandError as error:
        text = str(error).removeprefix("Error: ")
        problem = f"{text}\nkintsugi {spoken} --help tells what it takes."
        raise CommandError(problem, returncode=exit_codes.USAGE) from error
    if isinstance(command, StoreCommand):  # which some options of it do not need
        site.begin(verb, partial(command.require_store, options))
    else:
        site.begin(verb)
    arguments = options.pop("args", ())
    if is_answer and options.pop("json"):
        _run_as_json(verb, command, arguments, options)
    else:
        command.execute(*arguments, **options)


def _run_as_json(
    verb: Verb, command: BaseCommand, arguments: Sequence[str], options: dict[str, Any]
) -> None:
    """Prints whether it was done, and the lines that a person would have read. Raises SystemExit
    with the command's own exit code."""
    out, err = io.StringIO(), io.StringIO()
    code, refusal = exit_codes.OK, ""
    try:
        command.execute(*arguments, **options, stdout=out, stderr=err)
    except CommandError as error:
        code, refusal = error.returncode, str(error)
    text = out.getvalue().splitlines()
    problems = [*err.getvalue().splitlines(), *refusal.splitlines()]
    spoken = " ".join(verb.words)
    answer = {"site": site.get_site_name(), "verb": spoken, "done": code == exit_codes.OK}
    output.print_json({**answer, "code": code, "text": text, "problems": problems})
    raise SystemExit(code)


def manage(context: typer.Context) -> None:
    """`kintsugi manage COMMAND ...`: without a command, the names of all."""
    if not context.args or context.args[0] in ("-h", "--help"):
        output.echo(
            "kintsugi manage COMMAND [WORDS]. Commands: " + ", ".join(sorted(get_commands()))
        )
        return
    name, *words = context.args
    run(
        Verb(("manage", name), "", manage=(name,), is_change=True, needs=Needs.SETTINGS),
        words,
    )


def _find_leaf_parser(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> argparse.ArgumentParser:
    """The parser of the command's own verb, where the command has verbs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words and words[0] in action.choices:
            return _find_leaf_parser(action.choices[words[0]], words[1:])
    return parser


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
