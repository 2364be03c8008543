"""`manage.py node_token NODE...`: the token with which a node's own check speaks for that node."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from incidents.models import Node
from incidents.topology import topology
from kintsugi.clients import node_tokens
from kintsugi.management.store import StoreCommand


class Command(StoreCommand):
    help = (
        "Prints the tokens of nodes for kintsugi-check --post: keep each in a file that only root"
        " reads."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("nodes", nargs="+", help="names or host lists, such as gn[001-100]")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            names = [name for text in options["nodes"] for name in topology.expand(text)]
        except ValueError as error:
            raise CommandError(str(error)) from error
        known = set(
            Node.objects.inventoried().filter(name__in=names).values_list("name", flat=True)
        )
        unknown = [name for name in names if name not in known]
        if unknown:
            raise CommandError(
                f"not in the inventory: {', '.join(unknown)}. `kintsugi inventory import` takes"
                " them in."
            )
        for name in names:
            self.stdout.write(f"{name} {node_tokens.token(name)}")
