"""`manage.py vendor list|open|move|note|bundle|times`: what the vendor replaces, from the call to
the verified part."""

from __future__ import annotations

import getpass
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
from kintsugi.management.store import StoreCommand

UNKNOWN, USAGE = 1, 2


class Command(StoreCommand):
    help = (
        "Opens, moves and lists vendor cases, packs their evidence, tells how long vendors take"
        " (docs/vendor.md)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(
            dest="act", required=True, metavar="list|open|move|note|bundle|times"
        )
        listed = acts.add_parser("list", help="cases that are not closed")
        listed.add_argument(
            "--closed", action="store_true", help="those that are, the latest first"
        )
        opened = acts.add_parser("open", help="a case for the root of an incident")
        opened.add_argument("incident", type=int)
        opened.add_argument(
            "--resource",
            default="",
            help="another part of its machine, such as node/gn042/nic/mlx5_4",
        )
        opened.add_argument(
            "--part", choices=[part.value for part in Part], help="where the path does not say it"
        )
        moved = acts.add_parser("move", help="what happened to the case or its part")
        moved.add_argument("case", type=int)
        moved.add_argument("what", choices=[move.value for move in Move])
        moved.add_argument("--serial", default="", help="of the part that was put in")
        noted = acts.add_parser(
            "note", help="what became known: number, vendor, advance replacement"
        )
        noted.add_argument("case", type=int)
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
        for each in (listed, times):
            each.add_argument("--json", action="store_true", help="one JSON list (docs/vendor.md)")
        for each in (opened, moved, noted):
            each.add_argument("--note", default="", help="a word for the timeline")
            each.add_argument(
                "--actor", default=getpass.getuser(), help="who does it, for the record"
            )
            each.add_argument("--vendor", default="")
            each.add_argument("--number", default="", help="the vendor's own number of the case")
            each.add_argument(
                "--advance",
                action="store_true",
                help="the new part comes before the old one goes back",
            )

    def handle(self, *args: Any, **options: Any) -> None:
        acts = {
            "list": _listed,
            "open": _opened,
            "move": _moved,
            "note": _noted,
            "bundle": _bundled,
            "times": _times,
        }
        self.stdout.write(acts[options["act"]](options, timezone.now()))


def _facts(options: dict[str, Any]) -> Facts:
    return Facts(options["vendor"], options["number"], True if options["advance"] else None)


def _opened(options: dict[str, Any], now: datetime) -> str:
    outcome = cases.open_case(
        options["incident"],
        actor=options["actor"],
        now=now,
        resource=options["resource"],
        part=Part(options["part"]) if options["part"] else None,
        facts=_facts(options),
        note=options["note"],
    )
    return _text(outcome)


def _moved(options: dict[str, Any], now: datetime) -> str:
    outcome = cases.move(
        options["case"],
        Move(options["what"]),
        actor=options["actor"],
        now=now,
        note=options["note"],
        serial=options["serial"],
        facts=_facts(options),
    )
    return _text(outcome)


def _noted(options: dict[str, Any], now: datetime) -> str:
    said = {"actor": options["actor"], "now": now, "note": options["note"]}
    return _text(cases.describe(options["case"], _facts(options), **said))


def _text(outcome: cases.Opened | cases.CaseMoved | Refused) -> str:
    if isinstance(outcome, Refused):
        raise CommandError(outcome.reason, returncode=UNKNOWN)
    return outcome.text


def _bundled(options: dict[str, Any], now: datetime) -> str:
    from kintsugi import vendor_bundle  # noqa: PLC0415  (node access: only packing asks)
    from kintsugi.clients import wiring  # noqa: PLC0415  (node access: only packing asks)

    found = vendor_bundle.collect(
        options["case"],
        shell=wiring.node_shell(),
        now=now,
        field_diagnostics=options["field_diagnostics"],
    )
    if isinstance(found, Refused):
        raise CommandError(found.reason, returncode=UNKNOWN)
    try:
        options["out"].write_bytes(found.content)
    except OSError as error:
        raise CommandError(f"{options['out']}: {error.strerror}", returncode=USAGE) from error
    return (
        f"{options['out']}: {len(found.content):,} bytes. Its MANIFEST.txt says what is missing,"
        " and why."
    )


def _listed(options: dict[str, Any], now: datetime) -> str:
    rows = VendorCase.objects.order_by("-opened_at", "-pk")
    closed = CaseState.CLOSED
    rows = rows.filter(state=closed)[:100] if options["closed"] else rows.exclude(state=closed)
    if options["json"]:
        return json.dumps([_as_json(row) for row in rows], indent=1)
    return "\n".join(_line(row) for row in rows) or "None."


def _line(row: VendorCase) -> str:
    what = texts.part(row.part, row.resource)
    since = f"{timezone.localtime(row.since_at):%Y-%m-%d %H:%M %Z}"
    who = " ".join(word for word in (row.vendor, row.number) if word) or "no number yet"
    dead = f", {row.dead_on_arrival} dead on arrival" if row.dead_on_arrival else ""
    return f"{row.pk}  {row.state} since {since}  {what}  {who}  incident #{row.incident_id}{dead}"


def _as_json(row: VendorCase) -> dict[str, Any]:
    plain = (
        "incident_id",
        "part",
        "resource",
        "old_serial",
        "new_serial",
        "vendor",
        "number",
        "state",
    )
    times = {name: getattr(row, name) for name in ("opened_at", "since_at", "closed_at")}
    return {
        "id": row.pk,
        **{name.removesuffix("_id"): getattr(row, name) for name in plain},
        "is_advance": row.is_advance,
        "dead_on_arrival": row.dead_on_arrival,
        **{name: at.isoformat() if at is not None else None for name, at in times.items()},
    }


def _times(options: dict[str, Any], now: datetime) -> str:
    from incidents.statistics import vendor_statistics  # noqa: PLC0415  (numpy and scipy: only times need it)

    rows = vendor_statistics.lead_times(now)
    if options["json"]:
        return json.dumps(vendor_statistics.as_json(rows), indent=1)
    lines = []
    for row in rows:
        dead = f", {row.dead_on_arrival} of {row.parts} parts dead on arrival" if row.parts else ""
        lines.append(f"{row.vendor}, {row.part}: {row.cases} cases{dead}")
        lines += [
            f"  {s.begins} to {s.ends}".ljust(26) + vendor_statistics.words(s) for s in row.stages
        ]
    return "\n".join(lines)
