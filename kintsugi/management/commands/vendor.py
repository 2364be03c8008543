"""`manage.py vendor list|open|move|note|bundle|times`: what the vendor replaces, from the call to
the verified part."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from incidents.models import VendorCase
from incidents.vendor import cases, texts
from incidents.vendor.cases import Facts
from incidents.vocabulary.changes import Refused
from incidents.vocabulary.part_kinds import Part
from incidents.vocabulary.vendor_states import CaseState, Move
from kintsugi.management.person import add_actor
from kintsugi.management.store import StoreCommand

UNKNOWN, USAGE = 1, 2
_PLAIN_FIELDS = (
    "part",
    "resource",
    "old_serial",
    "new_serial",
    "vendor",
    "number",
    "state",
    "is_advance",
    "dead_on_arrival",
)


class Command(StoreCommand):
    help = (
        "Opens, moves and lists vendor cases, packs their evidence, tells how long vendors take"
        " (docs/vendor.md)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(
            dest="act", required=True, metavar="list|open|move|note|bundle|times"
        )
        list_parser = acts.add_parser("list", help="cases that are not closed")
        list_parser.add_argument(
            "--closed", action="store_true", help="those that are, the latest first"
        )
        open_parser = acts.add_parser("open", help="a case for the root of an incident")
        open_parser.add_argument("incident", type=int)
        open_parser.add_argument(
            "--resource",
            default="",
            help="another part of its machine, such as node/gn042/nic/mlx5_4",
        )
        open_parser.add_argument(
            "--part", choices=[part.value for part in Part], help="where the path does not say it"
        )
        move = acts.add_parser("move", help="what happened to the case or its part")
        move.add_argument("case", type=int)
        move.add_argument("what", choices=[move.value for move in Move])
        move.add_argument("--serial", default="", help="of the part that was put in")
        note = acts.add_parser(
            "note", help="what became known: number, vendor, advance replacement"
        )
        note.add_argument("case", type=int)
        bundle = acts.add_parser("bundle", help="the evidence as one archive")
        bundle.add_argument("case", type=int)
        bundle.add_argument("--out", type=Path, required=True, metavar="FILE.tar.gz")
        bundle.add_argument(
            "--field-diagnostics",
            default="",
            metavar="PATTERN",
            help="files on the node to take in",
        )
        times = acts.add_parser("times", help="how long each stage takes, by vendor and part")
        for act in (list_parser, times):
            act.add_argument("--json", action="store_true", help="one JSON list (docs/vendor.md)")
        for act in (open_parser, move, note):
            act.add_argument("--note", default="", help="a word for the timeline")
            add_actor(act)
            act.add_argument("--vendor", default="")
            act.add_argument("--number", default="", help="the vendor's own number of the case")
            act.add_argument(
                "--advance",
                action="store_true",
                help="the new part comes before the old one goes back",
            )

    def handle(self, *args: Any, **options: Any) -> None:
        acts = {
            "list": _list,
            "open": _open,
            "move": _move,
            "note": _note,
            "bundle": _pack_bundle,
            "times": _list_lead_times,
        }
        self.stdout.write(acts[options["act"]](options, timezone.now()))


def _build_facts(options: dict[str, Any]) -> Facts:
    return Facts(options["vendor"], options["number"], True if options["advance"] else None)


def _open(options: dict[str, Any], now: datetime) -> str:
    part = Part(options["part"]) if options["part"] else None
    outcome = cases.open_case(
        options["incident"],
        resource=options["resource"],
        part=part,
        facts=_build_facts(options),
        **_build_author(options, now),
    )
    return _get_text(outcome)


def _move(options: dict[str, Any], now: datetime) -> str:
    move = Move(options["what"])
    outcome = cases.move(
        options["case"],
        move,
        serial=options["serial"],
        facts=_build_facts(options),
        **_build_author(options, now),
    )
    return _get_text(outcome)


def _note(options: dict[str, Any], now: datetime) -> str:
    author = _build_author(options, now)
    return _get_text(cases.describe(options["case"], _build_facts(options), **author))


def _build_author(options: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Who does it, when, and a word for the timeline."""
    return {"actor": options["actor"], "now": now, "note": options["note"]}


def _get_text(outcome: cases.Opened | cases.CaseMoved | Refused) -> str:
    if isinstance(outcome, Refused):
        raise CommandError(outcome.reason, returncode=UNKNOWN)
    return outcome.text


def _pack_bundle(options: dict[str, Any], now: datetime) -> str:
    from kintsugi import vendor_bundle  # noqa: PLC0415  (node access: only packing asks)
    from kintsugi.clients import wiring  # noqa: PLC0415  (node access: only packing asks)

    bundle = vendor_bundle.collect(
        options["case"],
        shell=wiring.build_node_shell(),
        now=now,
        field_diagnostics=options["field_diagnostics"],
    )
    if isinstance(bundle, Refused):
        raise CommandError(bundle.reason, returncode=UNKNOWN)
    path = options["out"]
    try:
        path.write_bytes(bundle.content)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", returncode=USAGE) from error
    size = len(bundle.content)
    return f"{path}: {size:,} bytes. Its MANIFEST.txt says what is missing, and why."


def _list(options: dict[str, Any], now: datetime) -> str:
    cases_by_age = VendorCase.objects.order_by("-opened_at", "-pk")
    if options["closed"]:
        rows = cases_by_age.filter(state=CaseState.CLOSED)[:100]
    else:
        rows = cases_by_age.exclude(state=CaseState.CLOSED)
    if options["json"]:
        return json.dumps([_as_json(row) for row in rows], indent=1)
    return "\n".join(_format_line(row) for row in rows) or "None."


def _format_line(row: VendorCase) -> str:
    what = texts.format_part(row.part, row.resource)
    since = f"{timezone.localtime(row.since_at):%Y-%m-%d %H:%M %Z}"
    who = " ".join(word for word in (row.vendor, row.number) if word) or "no number yet"
    dead = f", {row.dead_on_arrival} dead on arrival" if row.dead_on_arrival else ""
    return f"{row.pk}  {row.state} since {since}  {what}  {who}  incident #{row.incident_id}{dead}"


def _as_json(row: VendorCase) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": row.pk, "incident": row.incident_id}
    for name in _PLAIN_FIELDS:
        fields[name] = getattr(row, name)
    for name in ("opened_at", "since_at", "closed_at"):
        time: datetime | None = getattr(row, name)
        fields[name] = time.isoformat() if time is not None else None
    return fields


def _list_lead_times(options: dict[str, Any], now: datetime) -> str:
    from incidents.statistics import vendor_statistics  # noqa: PLC0415  (numpy and scipy: only times need it)

    rows = vendor_statistics.compute_lead_times(now)
    if options["json"]:
        return json.dumps(vendor_statistics.as_json(rows), indent=1)
    lines = []
    for row in rows:
        dead = f", {row.dead_on_arrival} of {row.parts} parts dead on arrival" if row.parts else ""
        lines.append(f"{row.vendor}, {row.part}: {row.cases} cases{dead}")
        for stage in row.stages:
            name = f"  {stage.begins} to {stage.ends}"
            lines.append(name.ljust(26) + vendor_statistics.format_stage(stage))
    return "\n".join(lines)
