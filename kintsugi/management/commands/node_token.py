"""`manage.py node_token create|rotate|list|revoke`: the tokens with which nodes' own checks
speak."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from incidents.inventory import node_tokens as stored
from incidents.models import Node, NodeToken
from incidents.topology import topology
from incidents.vocabulary.changes import Refused
from kintsugi.management.person import add_actor
from kintsugi.management.store import StoreCommand


class Command(StoreCommand):
    help = (
        "Creates, lists and revokes the tokens of nodes for kintsugi-check --post. A token is shown"
        " when it is created and never again: keep it in a file that only root reads."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True, metavar="create|rotate|list|revoke")
        for name, help_text in (
            ("create", "one more token for each node"),
            ("rotate", f"the same, and those of before end after {stored.OVERLAP.days} days"),
        ):
            act = acts.add_parser(name, help=help_text)
            act.add_argument("nodes", nargs="+", help="names or host lists, such as gn[001-100]")
            act.add_argument(
                "--days", type=int, default=stored.LASTS.days, help="how long it is valid"
            )
            _add_actor(act)
        listed = acts.add_parser("list", help="those that are valid: since when, till when, used")
        listed.add_argument("nodes", nargs="*", help="names or host lists; all without them")
        listed.add_argument("--json", action="store_true")
        revoked = acts.add_parser("revoke", help="refused from now on")
        revoked.add_argument("nodes", nargs="*", help="names or host lists: all of their tokens")
        revoked.add_argument("--id", type=int, action="append", default=[], help="this one alone")
        _add_actor(revoked)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["act"] == "list":
            names = _expand(options["nodes"]) if options["nodes"] else None
            self.stdout.write(_format_list(names, is_json=options["json"]))
            return
        if options["act"] == "revoke":
            self._revoke(options)
            return
        self._create(options)

    def _create(self, options: dict[str, Any]) -> None:
        from kintsugi.clients import node_tokens  # noqa: PLC0415  (the audit log: a list needs none)

        if not 1 <= options["days"] <= 3650:
            raise CommandError("--days is a number from 1 to 3650.")
        nodes = _find_nodes(options["nodes"])
        lasts = timedelta(days=options["days"])
        is_rotation = options["act"] == "rotate"
        by = {"actor": options["actor"], "now": timezone.now()}
        created = node_tokens.create(nodes, lasts=lasts, is_rotation=is_rotation, **by)
        for node, token in created:
            self.stdout.write(f"{node.name} {token}")

    def _revoke(self, options: dict[str, Any]) -> None:
        from kintsugi.clients import node_tokens  # noqa: PLC0415  (as above)

        if not options["nodes"] and not options["id"]:
            raise CommandError("Name nodes, or a token by --id; `kintsugi token list` shows them.")
        by = {"actor": options["actor"], "now": timezone.now()}
        for node in _find_nodes(options["nodes"]):
            for text in node_tokens.revoke_all(node, **by):
                self.stdout.write(text)
        answers = [node_tokens.revoke(pk, **by) for pk in options["id"]]
        for answer in answers:
            if isinstance(answer, str):
                self.stdout.write(answer)
        refused = [answer.reason for answer in answers if isinstance(answer, Refused)]
        if refused:
            raise CommandError("\n".join(refused))


def _add_actor(act: CommandParser) -> None:
    add_actor(act, "who does so, for the record")


def _expand(texts: list[str]) -> list[str]:
    try:
        return [name for text in texts for name in topology.expand(text)]
    except ValueError as error:
        raise CommandError(str(error)) from error


def _find_nodes(texts: list[str]) -> list[Node]:
    names = _expand(texts)
    known = stored.get_known_nodes(names)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CommandError(
            f"not in the inventory: {', '.join(unknown)}. `kintsugi inventory import` takes them"
            " in."
        )
    return [known[name] for name in names]


def _format_list(names: list[str] | None, *, is_json: bool) -> str:
    rows = stored.get_valid(timezone.now(), names)
    if is_json:
        return json.dumps([_as_json(row) for row in rows])
    return "\n".join(_format_line(row) for row in rows) or "None."


def _format_line(row: NodeToken) -> str:
    used = "never used"
    if row.last_used_at is not None:
        used = f"last used {_format_time(row.last_used_at)} from {row.last_address or 'unknown'}"
    since = f"since {_format_time(row.created_at)}, by {row.created_by}"
    return f"{row.pk}  {row.node.name}  {since}, till {_format_time(row.expires_at)}; {used}"


def _format_time(at: Any) -> str:
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M %Z}"


def _as_json(row: NodeToken) -> dict[str, Any]:
    created_at = row.created_at.isoformat()
    expires_at = row.expires_at.isoformat()
    last_used_at = row.last_used_at.isoformat() if row.last_used_at else None
    return {
        "id": row.pk,
        "node": row.node.name,
        "created_at": created_at,
        "created_by": row.created_by,
        "expires_at": expires_at,
        "last_used_at": last_used_at,
        "last_address": row.last_address,
    }
