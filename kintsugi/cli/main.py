"""Builds `kintsugi` from its table of verbs and runs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError
from typer.core import TyperGroup

from kintsugi.cli import exit_codes, output
from kintsugi.cli.grammar import OBJECTS, VERBS, Verb
from kintsugi.cli.lazy import LazyVerb
from kintsugi.cli.site import NoSite
from kintsugi.configuration import settings_file
from kintsugi.version import get_version

_HELP = (
    "Fault management for Slurm GPU clusters. An object, a verb, what it is about: `kintsugi"
    " incident list`, `kintsugi incident show 12`. --json prints what scripts read."
)


def main(words: Sequence[str] | None = None) -> NoReturn:
    """The whole command, with the process's own words if None; ends with one of `exit_codes`."""
    try:
        build()(words, prog_name="kintsugi")
    except NoSite as error:
        _end(str(error), exit_codes.NO_SITE)
    except CommandError as error:
        _end(str(error), error.returncode)
    except ImproperlyConfigured as error:
        _end(str(error), exit_codes.USAGE)
    except DatabaseError as error:
        _end(f"The database does not answer: {str(error).strip()}", exit_codes.NO_SITE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(exit_codes.FAILED)
    sys.exit(exit_codes.OK)


def build(verbs: Iterable[Verb] = VERBS) -> TyperGroup:
    """Every object with its verbs; what a verb needs is loaded when it is chosen."""
    app = typer.Typer(
        help=_HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    app.callback()(_read_options)
    root = typer.main.get_command(app)
    if not isinstance(root, TyperGroup):
        raise TypeError("kintsugi has verbs")
    for verb in verbs:
        *parents, name = verb.words
        group = _get_object_group(root, parents[0]) if parents else root
        group.add_command(LazyVerb(verb), name)
    return root


def _get_object_group(root: TyperGroup, name: str) -> TyperGroup:
    group = root.commands.get(name)
    if not isinstance(group, TyperGroup):
        group = TyperGroup(
            name=name, help=OBJECTS[name], no_args_is_help=True, rich_markup_mode=None
        )
        root.add_command(group, name)
    return group


def _print_version(is_asked: bool) -> None:
    if is_asked:
        output.echo(f"kintsugi {get_version()}")
        raise typer.Exit


def _read_options(
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"the site's settings; default: {settings_file.DEFAULT_PATH}"
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="print the version and end"
        ),
    ] = False,
) -> None:
    if config is not None:
        os.environ[settings_file.VARIABLE] = str(config)
        return
    found = settings_file.find_default_path()
    if found is not None:
        os.environ.setdefault(settings_file.VARIABLE, str(found))


def _end(text: str, code: int) -> NoReturn:
    output.complain(text)
    sys.exit(code)
