"""`manage.py inventory import FILE.toml...`: brings the inventory tables up to what the files say."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from incidents import inventory
from kintsugi import clock

_SHOWN = 20


class Command(BaseCommand):
    help = "Imports nodes, GPUs, switches, ports, cables and aliases. Importing the same files again changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("do", choices=["import"])
        parser.add_argument("files", nargs="+", type=Path, metavar="FILE.toml", help="read one after the other")
        parser.add_argument("--dry-run", action="store_true", help="tell what would change, and change nothing")

    def handle(self, *, files: list[Path], dry_run: bool, **options: Any) -> None:
        try:
            topology = inventory.load(*files)
        except inventory.InventoryError as error:
            raise CommandError(f"Nothing was imported.\n{error}") from error
        difference = inventory.apply(topology, clock.now(), is_dry_run=dry_run)
        for title, lines in (
            ("would be added" if dry_run else "added", difference.added),
            ("would be changed" if dry_run else "changed", difference.changed),
            ("in the database but not in the files, kept", difference.gone),
        ):
            if lines:
                self.stdout.write(f"{title}: {_counted(lines)}")
            for line in lines if dry_run or len(lines) <= _SHOWN else ():
                self.stdout.write(f"  {line}")
        if not (difference.added or difference.changed):
            self.stdout.write("The inventory is as the files say.")


def _counted(lines: list[str]) -> str:
    """`101 nodes, 800 GPUs`: how many lines there are of each kind."""
    parts = ("GPU", "NVSwitch", "NIC", "module")
    kinds = Counter(next((part for part in parts if f" {part} " in line), line.split(" ", 1)[0]) for line in lines)
    plurals = {"switch": "switches", "alias": "aliases", "NVSwitch": "NVSwitches"}
    return ", ".join(
        f"{count} {kind if count == 1 else plurals.get(kind, kind + 's')}" for kind, count in kinds.items()
    )
