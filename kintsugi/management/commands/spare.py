"""`manage.py spare list|add|remove|return`: the pool of hot spares, and what Slurm has of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from incidents.models import Spare
from incidents.reserve import spares
from incidents.vocabulary.changes import Refused
from kintsugi.management.store import StoreCommand
from runbooks.slurm.protocol import SlurmError, SlurmWriter


class Command(StoreCommand):
    help = (
        "Lists hot spares, adds and removes them, and gives one back that stands in"
        " (docs/vendor.md)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True, metavar="list|add|remove|return")
        acts.add_parser("list", help="the pool, and who stands in for whom")
        added = acts.add_parser(
            "add", help="a node that stands in for others from now on, and is kept free until then"
        )
        added.add_argument("node")
        added.add_argument(
            "--partition",
            action="append",
            default=[],
            help="whose nodes it stands in for; repeatable",
        )
        added.add_argument(
            "--reserved", action="store_true", help="kept free by a reservation, in its partitions"
        )
        acts.add_parser(
            "remove", help="no spare any more; what Slurm has it as stays"
        ).add_argument("node")
        acts.add_parser("return", help="give back one that stands in").add_argument("node")

    def handle(self, *args: Any, **options: Any) -> None:
        acts = {"list": _list, "add": _add, "remove": _remove, "return": _return_spare}
        if options["act"] != "list":
            self.require_serving()
        try:
            self.stdout.write(acts[options["act"]](options, timezone.now()))
        except SlurmError as error:
            raise CommandError(str(error)) from error


def _get_slurm_writer() -> SlurmWriter:
    """Raises SlurmRefusal in a process that only looks."""
    from kintsugi.clients import wiring  # noqa: PLC0415  (Slurm: the list does not ask it)

    return wiring.build_world().slurm_writer


def _keep_free(spare: Spare, now: datetime) -> None:
    """Raises SlurmError."""
    from runbooks import spare_swaps  # noqa: PLC0415  (what acts: the list needs none of it)

    spare_swaps.keep_free(spare, _get_slurm_writer(), now)


def _list(options: dict[str, Any], now: datetime) -> str:
    rows = Spare.objects.select_related("node", "stands_for")
    return "\n".join(_format_line(row) for row in rows) or "None."


def _format_line(row: Spare) -> str:
    who = f" for {row.stands_for.name}" if row.stands_for is not None else ""
    how = f"reservation {row.reservation}" if row.reservation else "by partition"
    since = f"{timezone.localtime(row.since_at):%Y-%m-%d %H:%M %Z}"
    return f"{row.node.name}  {row.state}{who} since {since}  {', '.join(row.partitions)}  {how}"


def _add(options: dict[str, Any], now: datetime) -> str:
    """Slurm first: a node that cannot be kept free is no spare."""
    slurm = _get_slurm_writer()
    known = slurm.read_partitions()
    unknown = [name for name in options["partition"] if name not in known]
    if unknown:
        raise CommandError(
            f"{', '.join(unknown)}: Slurm knows no such partition; there are {', '.join(known)}."
        )
    spare = spares.add(
        options["node"], partitions=options["partition"], is_reserved=options["reserved"], now=now
    )
    if isinstance(spare, Refused):
        raise CommandError(spare.reason)
    try:
        _keep_free(spare, now)
    except SlurmError:
        spares.remove(options["node"])
        raise
    return (
        f"{options['node']} is a spare for {', '.join(spare.partitions)}, and kept free until it is"
        " needed."
    )


def _remove(options: dict[str, Any], now: datetime) -> str:
    refused = spares.remove(options["node"])
    if refused is not None:
        raise CommandError(refused.reason)
    return f"{options['node']} is no spare any more. Bring it into its partitions in Slurm by hand."


def _return_spare(options: dict[str, Any], now: datetime) -> str:
    in_use = Spare.objects.select_related("node").filter(stands_for__isnull=False)
    spare = in_use.filter(node__name=options["node"]).first()
    if spare is None:
        raise CommandError(f"{options['node']} stands in for nobody.")
    spares.begin_leaving(spare, now)
    spare.refresh_from_db()
    _keep_free(spare, now)
    return f"{options['node']} is a spare again. Jobs that run there end in peace."
