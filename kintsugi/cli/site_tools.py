"""What a site's own tools tell on the command line: a check asks for nodes to be taken out of
service, by Kintsugi's hands and under its guards; a commit hook or a playbook tells of a change."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer
from django.core.management.base import CommandError
from django.utils import timezone

from detectors.provenance import Forger, Provenance, Transport
from incidents.maintenance import site_changes
from incidents.maintenance.site_changes import ChangeDraft, ChangeRefused
from incidents.models import SiteChange
from incidents.people.drain_requests import DrainRequest, DrainRequestRefused
from kintsugi import tasks
from kintsugi.cli import exit_codes, hosts, output
from kintsugi.cli.incidents import Json, Limit
from kintsugi.management import typed_times

_HOW_IT_GOES_ON = {
    False: "`kintsugi incident show` tells what becomes of it: caps, breaker and modes hold.",
    True: "What Kintsugi drained for it is verified and given back when nothing else stands there.",
}

_CHANGE_FIELDS = {
    "change": "pk",
    "at": "at",
    "by": "author",
    "what": "summary",
    "reference": "reference",
}


def drain_nodes(
    nodes: Annotated[list[str], typer.Argument(metavar="NODES...", help="host lists")],
    by: Annotated[str, typer.Option(metavar="CHECK", help="which check asks, such as nhc")],
    because: Annotated[str, typer.Option(metavar="W", help="why; people read it in Slurm")] = "",
    end: Annotated[
        bool, typer.Option("--end", help="the node need not be drained any more")
    ] = False,
    as_json: Json = False,
) -> None:
    """Each node for itself: what is refused of one keeps no other. Raises CommandError."""
    actor = getpass.getuser()
    told_by = Provenance(by, Transport.PERSON, actor, forger=Forger.NOBODY)
    rows, refusals = [], []
    for name in hosts.parse(nodes):
        request = DrainRequest(node=name, check=by, because=because, is_end=end)
        try:
            incident_id = tasks.pipeline().request_drain(request, told_by)
        except DrainRequestRefused as refusal:
            refusals.append(f"{name}: {refusal}")
            continue
        rows.append({"node": name, "incident": incident_id})
    output.print_rows(rows, ("node", "incident"), as_json=as_json, empty="Nothing was asked for.")
    if rows and not as_json:
        output.echo(f"\n{_HOW_IT_GOES_ON[end]}")
    if refusals:
        raise CommandError("\n".join(refusals), returncode=exit_codes.FAILED)


def add_change(
    summary: Annotated[str, typer.Option(metavar="W", help="what was changed, in a sentence")],
    by: Annotated[str, typer.Option(metavar="WHO", help="default: this user")] = "",
    on: Annotated[
        list[str] | None,
        typer.Option(metavar="HOSTS", help="host lists; default: the whole site"),
    ] = None,
    at: Annotated[str, typer.Option(metavar="T", help="when it took effect; default: now")] = "",
    ref: Annotated[
        str, typer.Option(metavar="R", help="a commit, a ticket; told twice, it counts once")
    ] = "",
) -> None:
    """Raises CommandError."""
    now = timezone.now()
    teller = getpass.getuser()
    draft = ChangeDraft(
        summary=summary,
        author=by or teller,
        at=typed_times.moment("--at", at) if at else now,
        reference=ref,
        machines=hosts.parse(on or ()),
    )
    try:
        change = site_changes.record_change(draft, teller=teller, now=now)
    except ChangeRefused as refusal:
        raise CommandError(str(refusal), returncode=exit_codes.USAGE) from refusal
    output.echo(
        f"Change {change.pk} is recorded: incidents that begin in the 24 hours after it show it."
    )


def list_changes(limit: Limit = output.MOST_ROWS, as_json: Json = False) -> None:
    found = SiteChange.objects.all()
    rows = []
    for change in found[:limit]:
        places = [path.partition("/")[2] for path in change.machines]
        row = output.make_row(change, _CHANGE_FIELDS)
        rows.append(row | {"on": ", ".join(places) or "the whole site"})
    columns = (*_CHANGE_FIELDS, "on")
    output.print_rows(rows, columns, as_json=as_json, empty="No change was told of.")
    output.print_left_out(len(rows), found.count())
