"""Slurm's host lists as arguments and as verbs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from django.core.management.base import CommandError

from incidents.topology.topology import expand
from kintsugi.cli import exit_codes, output
from kintsugi.inventory.host_lists import fold

NODES_HELP = "names or host lists, such as gn[001-004]"
Hosts = Annotated[list[str], typer.Argument(metavar="HOSTS...", help=NODES_HELP)]


def expand_hosts(hosts: Hosts) -> None:
    for name in parse(hosts):
        output.echo(name)


def fold_hosts(hosts: Hosts) -> None:
    output.echo(fold(parse(hosts)))


def parse(words: Sequence[str]) -> list[str]:
    """Names in order, each once. Raises CommandError saying what is wrong with which list."""
    try:
        names = [name for word in words for name in expand(word)]
    except ValueError as error:
        raise CommandError(str(error), returncode=exit_codes.USAGE) from error
    return list(dict.fromkeys(names))
