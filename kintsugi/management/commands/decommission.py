"""`manage.py decommission add|end|list`: nodes that are being taken away for good. No run begins or
goes on there."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from incidents.models import Decommission
from incidents.topology.topology import expand_typed
from kintsugi.management.person import add_actor
from kintsugi.management.store import StoreCommand
from runbooks.outcomes import ControlRefused, Outcome


class Command(StoreCommand):
    help = (
        "Says which nodes are being taken away for good, so that nothing is started on them"
        " (docs/inventory.md)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True, metavar="add|end|list")
        for name, help_text in (
            ("add", "nodes that leave: runs on them stop"),
            ("end", "nodes that stay after all"),
        ):
            act = acts.add_parser(name, help=help_text)
            act.add_argument("nodes", help="a Slurm host list, such as gn[001-004]")
            act.add_argument("--reason", required=True, help="why, for the record")
            add_actor(act, "who says so, for the record")
        acts.add_parser("list", help="which leave, by whom, since when, why").add_argument(
            "--json", action="store_true"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["act"] == "list":
            self.stdout.write(_list(is_json=options["json"]))
            return
        self.require_serving()
        from runbooks.people import decommission  # noqa: PLC0415  (it stops runs: the list needs none)

        change = decommission.begin if options["act"] == "add" else decommission.end
        facts = {"actor": options["actor"], "why": options["reason"], "now": timezone.now()}
        try:
            nodes = expand_typed(options["nodes"])
        except ValueError as error:
            raise CommandError(str(error)) from error
        outcomes = [change(node, **facts) for node in nodes]
        self._tell(outcomes)

    def _tell(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if not isinstance(outcome, ControlRefused):
                self.stdout.write(outcome.text)
        refused = [outcome.reason for outcome in outcomes if isinstance(outcome, ControlRefused)]
        if refused:
            raise CommandError("\n".join(refused))


def _list(*, is_json: bool) -> str:
    leaving = Decommission.objects.filter(ended_at=None).select_related("node")
    rows = leaving.order_by("node__name")
    if is_json:
        return json.dumps([_as_json(row) for row in rows])
    return "\n".join(_format_line(row) for row in rows) or "None."


def _format_line(row: Decommission) -> str:
    since = f"{timezone.localtime(row.set_at):%Y-%m-%d %H:%M %Z}"
    return f"{row.node.name}  since {since}, by {row.set_by}: {row.reason}"


def _as_json(row: Decommission) -> dict[str, str]:
    return {
        "node": row.node.name,
        "set_by": row.set_by,
        "set_at": row.set_at.isoformat(),
        "reason": row.reason,
    }
